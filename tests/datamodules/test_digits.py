"""The digits benchmark: real shards, disjoint splits, the same images every time."""

import gc
import pickle
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from oodlit.datamodules.benchmarks import digits as digits_module
from oodlit.datamodules.benchmarks.digits import DIGIT_CORRUPTIONS, DigitsBenchmark
from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.generated.unit_test_kinds import UNIT_TESTS
from oodlit.datamodules.keys import unescape_key
from oodlit.errors import InvalidArgumentError
from oodlit.roles import Role
from tests.callbacks.processes import check_ended, run_function


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("digits")


@pytest.fixture(scope="module")
def data(root) -> DigitsBenchmark:
    return DigitsBenchmark(root, per_test=3)


def samples(data: DigitsBenchmark, name: str):
    stream = data.stream(name)
    return list(stream.source.read(0, len(stream)))


def number(sample) -> int:
    """Index in scikit-learn's order."""
    return int(Path(unescape_key(sample.key)).stem)


def test_streams_and_their_order(data):
    assert [(s.name, s.role) for s in data.streams] == [
        ("digits_train", Role.TRAIN),
        ("digits_val", Role.ID),
        ("digits_near", Role.OOD),
        ("digits_shifted", Role.SHIFT),
        ("unit_tests", Role.UNIT_TEST),
    ]
    assert data.stream("digits_near").class_names == ("seven", "eight", "nine")
    assert data.stream("digits_shifted").class_names == tuple(DIGIT_CORRUPTIONS)
    assert data.stream("unit_tests").class_names == tuple(UNIT_TESTS)
    assert data.class_names == data.stream("digits_val").class_names == data.stream("digits_train").class_names


def test_every_digit_is_in_exactly_one_split(data):
    parts = [{number(s) for s in samples(data, name)} for name in ("digits_train", "digits_val", "digits_near")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 1797


def test_labels_groups_and_pixels_are_those_of_scikit_learn(data):
    digits = load_digits()
    for name in ("digits_train", "digits_val", "digits_near"):
        for sample in samples(data, name):
            index = number(sample)
            target = digits.target[index]
            assert (sample.label, sample.group) == ((target, -1) if target < 7 else (-1, target - 7))
            pixels = np.asarray(decode_image(sample.image))
            assert np.abs(pixels[..., 0] / 255 * 16 - digits.images[index]).max() < 0.04
            assert np.array_equal(pixels[..., 0], pixels[..., 2])


def test_shifted_digits_are_the_id_digits_with_their_labels(data):
    val = {number(s): s for s in samples(data, "digits_val")}
    shifted = samples(data, "digits_shifted")
    assert len(shifted) == len(val) * len(DIGIT_CORRUPTIONS)
    changed = 0
    for sample in shifted:
        assert sample.label == val[number(sample)].label
        assert sample.key.startswith(tuple(DIGIT_CORRUPTIONS)[sample.group] + "/")
        changed += sample.image != val[number(sample)].image
    assert changed > 0.999 * len(shifted)


def test_the_same_bytes_every_time(data, root, tmp_path):
    DigitsBenchmark(tmp_path, per_test=3)
    files = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.suffix in (".tar", ".json"))
    assert len(files) > 10
    assert all((tmp_path / f).read_bytes() == (root / f).read_bytes() for f in files)


def test_a_second_run_reads_the_existing_shards(data, root):
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*.tar")}
    DigitsBenchmark(root, per_test=3)
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*.tar")} == before


def test_another_seed_gives_another_split():
    val, other = ({entry.key for entry in digits_module._sets(seed, 1)[1].entries} for seed in (0, 1))
    assert len(val) == len(other) == 506
    assert len(val & other) < 300


def test_an_interrupted_write_leaves_nothing_that_is_read(tmp_path, monkeypatch):
    from oodlit.datamodules.shards import build

    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "write_info", fail)
    with pytest.raises(KeyboardInterrupt):
        DigitsBenchmark(tmp_path, per_test=3)
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*.tar"))
    assert len(DigitsBenchmark(tmp_path, per_test=3).stream("digits_near")) == 533


def make_digits(folder: Path, killed_after: float) -> None:
    """Write the shards; the system kills the process after this many seconds of CPU time, 0 = never."""
    signal.setitimer(signal.ITIMER_PROF, killed_after)
    DigitsBenchmark(folder, per_test=3)


def test_a_kill_at_any_moment_leaves_nothing_that_is_read(tmp_path):
    data, logs = tmp_path / "data", tmp_path / "logs"
    seconds = random.uniform(0.05, 1.0)
    (killed,) = run_function(make_digits, data, seconds, folder=logs, each=[{}], timeout=120)
    assert killed.code in (0, -signal.SIGPROF), killed.stderr
    check_ended(run_function(make_digits, data, 0.0, folder=logs, each=[{}, {}], timeout=120))  # at the same time
    again = DigitsBenchmark(data, per_test=3)
    assert [len(stream) for stream in again.streams] == [758, 506, 533, 3036, 51]
    assert not list(data.rglob("*.tmp"))


def test_loaders_give_every_sample_once(data):
    loaders = data.predict_dataloader()
    for stream, loader in zip(data.active_streams, loaders, strict=True):
        keys = [key for batch in loader for key in batch["key"]]
        assert len(keys) == len(set(keys)) == len(stream)
    batch = next(iter(loaders[1]))
    assert batch["image"].shape == (64, 3, 8, 8)
    assert batch["image"].min() >= -1
    assert batch["label"].min() >= 0


def test_fit_loaders(data):
    images, labels = zip(*data.train_dataloader(), strict=True)
    assert torch.cat(images).shape == (758, 3, 8, 8)
    assert torch.bincount(torch.cat(labels)).min() > 90
    again = torch.cat([y for _, y in data.train_dataloader()])
    assert torch.equal(torch.cat(labels), again)
    assert sum(len(y) for _, y in data.val_dataloader()) == 506


def test_images_for_thumbnails(data):
    key = data.stream("digits_near").full_key(samples(data, "digits_near")[5].key)
    image = data.read_images([key])[key]
    assert isinstance(image, Image.Image)
    assert image.size == (8, 8)


def test_the_temporary_folder_goes_with_the_object():
    data = DigitsBenchmark(per_test=1)
    folder = Path(data.stream("digits_val").source.folder)
    copy = pickle.loads(pickle.dumps(data.streams))
    assert folder.is_dir()
    del copy
    gc.collect()
    assert folder.is_dir()
    del data
    gc.collect()
    assert not folder.exists()


def test_bad_number_of_images():
    with pytest.raises(InvalidArgumentError, match="got count=0"):
        DigitsBenchmark(per_test=0)
