"""The photos for the ImageNet demo, found in an installed package that is never imported."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

from oodlit.datamodules.benchmarks.photos import SIZES, PhotosBenchmark
from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.generated.unit_test_kinds import UNIT_TESTS
from oodlit.errors import DataError, InvalidArgumentError, MissingExtraError
from oodlit.roles import Role
from tests.callbacks.processes import check_ended, run_function


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> PhotosBenchmark:
    try:
        importlib.metadata.version("foolbox")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the extra 'imagenet-demo'")
    return PhotosBenchmark(tmp_path_factory.mktemp("photos"), per_test=2)


def test_streams(data):
    assert [(s.name, s.role, len(s)) for s in data.streams] == [
        ("imagenet_photos", Role.ID, 20),
        ("other_pictures", Role.OOD, 80),
        ("unit_tests", Role.UNIT_TEST, 34),
    ]
    assert data.stream("other_pictures").class_names == ("CIFAR-10", "CIFAR-100", "MNIST", "Fashion-MNIST")
    assert data.stream("unit_tests").class_names == tuple(UNIT_TESTS)


def test_labels_are_those_of_the_file_names(data):
    stream = data.stream("imagenet_photos")
    labels = [s.label for s in stream.source.read(0, 20)]
    assert labels[:4] == [243, 559, 438, 990]
    assert [stream.class_names[label] for label in labels[:2]] == ["bull mastiff", "folding chair"]


def test_groups_of_the_other_pictures(data):
    stream = data.stream("other_pictures")
    samples = list(stream.source.read(0, 80))
    assert all(s.key.startswith(("cifar10/", "cifar100/", "mnist/", "fashionMNIST/")[s.group]) for s in samples)
    assert {decode_image(s.image).size for s in samples} <= {(32, 32), (28, 28)}


def test_unit_tests_have_imagenet_sizes(data):
    samples = list(data.stream("unit_tests").source.read(0, 2))
    assert [decode_image(s.image).size for s in samples] == list(SIZES[:2])


def make_without_foolbox(folder: Path) -> None:
    PhotosBenchmark(folder, per_test=1)
    assert "foolbox" not in sys.modules


def test_foolbox_is_not_imported(data, tmp_path):
    """In a process in which no other test has imported it."""
    check_ended(run_function(make_without_foolbox, tmp_path / "new", folder=tmp_path / "logs", each=[{}], timeout=120))


def test_missing_or_other_package(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(MissingExtraError, match=r"PhotosBenchmark requires .*pip install 'oodlit\[imagenet-demo\]'"):
        PhotosBenchmark()
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [])
    with pytest.raises(DataError, match=r"foolbox: expected 20 pictures of each data set"):
        PhotosBenchmark()
    monkeypatch.undo()
    with pytest.raises(InvalidArgumentError, match="0 templates"):
        PhotosBenchmark(per_test=0)
