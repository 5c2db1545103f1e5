"""Sources other than shards."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jaxtyping
import numpy as np
import pytest
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.sources import DatasetSource, FileSource, MemorySource
from oodlit.datamodules.stream import Sample, Stream, find_samples
from oodlit.errors import DataError, InvalidArgumentError, PreprocessingError
from oodlit.roles import Role
from tests.tiny_shards import tiny_image


def write(folder: Path, *names: str) -> list[Path]:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(tiny_image(number))
    return [folder / name for name in names]


class TestFileSource:
    def test_keys_are_paths_below_the_common_folder(self, tmp_path: Path) -> None:
        paths = write(tmp_path, "d/a/1.x.png", "d/b/1.png")
        source = pickle.loads(pickle.dumps(FileSource(paths, labels=[3, 4], groups=[0, 1])))
        samples = list(source.read(0, 2))
        assert [(s.key, s.label, s.group) for s in samples] == [("a/1%2Ex%2Epng", 3, 0), ("b/1%2Epng", 4, 1)]
        assert [s.image for s in samples] == [tiny_image(0), tiny_image(1)]
        assert [s.key for s in FileSource(paths, root=tmp_path).read(0, 9)] == ["d/a/1%2Ex%2Epng", "d/b/1%2Epng"]
        assert list(find_samples(source, ["b/1%2Epng"])) == ["b/1%2Epng"]

    def test_a_single_file_and_a_relative_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path, "a.png")
        monkeypatch.chdir(tmp_path)
        source = FileSource(["a.png"])
        os.chdir("/")
        (sample,) = source.read(0, 1)
        assert (sample.key, sample.error) == ("a%2Epng", None)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        source = FileSource([tmp_path / "no.png"])
        with pytest.raises(DataError, match=r"data set 's': .*no\.png, key 'no\.png': cannot be read: .*No such file"):
            list(StreamLoader(Stream("s", Role.OOD, source)))

    def test_refusals(self, tmp_path: Path) -> None:
        paths = write(tmp_path, "a/1.png", "b/2.png")
        with pytest.raises(InvalidArgumentError, match="expected labels to have one entry per file, got 1 for 2 files"):
            FileSource(paths, labels=[1])
        with pytest.raises(InvalidArgumentError, match=r"2\.png' is outside root"):
            FileSource(paths, root=tmp_path / "a")
        with pytest.raises(InvalidArgumentError, match="occurs twice"):
            FileSource([paths[0], paths[0]])


class Faulty:
    """A data set with a file that cannot be read, and one with a fault in its code."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if index == 1:
            raise OSError("cannot identify image file")
        if index == 2:
            raise KeyError("a fault in its code")
        return Image.new("RGB", (2, 2)), 0


class Endless(IterableDataset):
    """Has neither a length nor access by position."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def to_ones(image: Image.Image) -> Tensor:
    return Tensor([[[1.0]]])


class TestDatasetSource:
    def test_unreadable_items_follow_the_policy_and_faults_do_not(self) -> None:
        stream = Stream("s", Role.OOD, DatasetSource(Faulty(), labelled=False))
        with pytest.raises(DataError, match="item 1 of Faulty, key '000001': cannot identify image file"):
            list(StreamLoader(stream, to_ones, batch_size=2))
        loader = iter(StreamLoader(stream, to_ones, batch_size=2, on_error="skip"))
        batch = next(loader)
        assert batch["label"].tolist() == [-1]
        assert batch["skipped"] == [("s/000001", "cannot identify image file")]
        with pytest.raises(
            PreprocessingError, match=r"data set 's': item 2 of Faulty, key '000002': the data set failed \(KeyError"
        ):
            next(loader)

    def test_items_must_be_pairs(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"item 0 of list: expected a pair \(image, label\)"):
            list(DatasetSource([5]).read(0, 1))

    @pytest.mark.parametrize("item", [Tensor([1.0]), (Tensor([1.0]),), [Tensor([1.0])], (Tensor([1.0]), "a note")])
    def test_images_alone_are_enough_without_labels(self, item: Any) -> None:
        (sample,) = DatasetSource([item], labelled=False).read(0, 1)
        assert (sample.image, sample.label) == (Tensor([1.0]), -1)
        with pytest.raises(InvalidArgumentError, match=r"item 0 of list: .*got \(Tensor.*pass labelled=False"):
            list(DatasetSource([item]).read(0, 1))

    @pytest.mark.parametrize("item", [(), (Tensor([1.0]), None), (np.zeros(3), 0)])
    def test_other_items_are_refused(self, item: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"item 0 of list: expected a pair \(image, label\)"):
            list(DatasetSource([item]).read(0, 1))

    def test_without_labels_the_error_does_not_recommend_what_was_done(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"expected a PIL image or a tensor, .* got \(ndarray, int\)$"):
            list(DatasetSource([(np.zeros(3), 0)], labelled=False).read(0, 1))

    def test_loaders_and_iterable_data_sets_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        with pytest.raises(InvalidArgumentError, match=r"got DataLoader; pass .*loader\.dataset"):
            DatasetSource(DataLoader([(Tensor([1.0]), 0)]))
        for other in (Endless(), iter([])):
            with pytest.raises(InvalidArgumentError, match=rf"__getitem__, got {type(other).__name__}; define both"):
                DatasetSource(other)


def test_memory_source() -> None:
    with pytest.raises(InvalidArgumentError, match="key 'a' occurs twice"):
        MemorySource([Sample("a", b""), Sample("a", b"")])
    with pytest.raises(DataError, match=r"1 of 2 keys \(first: 'b'\) was not found in"):
        find_samples(MemorySource([Sample("a", b"")]), ["a", "b"])


def test_a_data_set_in_place_of_a_source_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"'mine': expected a source, got list; use DatasetSource"):
        Stream.__post_init__(SimpleNamespace(name="mine", source=[]))  # past the checks of types in tests
