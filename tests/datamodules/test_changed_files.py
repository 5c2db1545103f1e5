"""Files that were modified after earlier work are reported when that work is reused, but a copied folder is not."""

import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from oodlit import OODModule, Role
from oodlit.callbacks import FeatureCache, OODDetection
from oodlit.datamodules import DatasetSource, FileSource, MemorySource, OODDataModule, Sample, Stream
from oodlit.datamodules.stream_identity import ChangedFilesWarning, warn_of_changed_files
from oodlit.datamodules.thinning import thinned
from oodlit.detectors import MSP
from oodlit.errors import RunIsCompleteError
from oodlit.recorded import open_cache
from tests.gate.support import TinyNetwork, predict


def pictures(folder: Path, number: int = 40, *, seed: int = 0) -> list[Path]:
    folder.mkdir(parents=True)
    values = np.random.default_rng(seed).integers(256, size=(number, 8, 8, 3), dtype=np.uint8)
    paths = [folder / f"{place:03d}.png" for place in range(number)]
    for path, pixels in zip(paths, values, strict=True):
        Image.fromarray(pixels).save(path, compress_level=0)  # files of equal size
    return paths


def last_change(paths: list[Path]) -> float:
    return max(path.stat().st_ctime for path in paths)


def replace_later(path: Path, other: Path, since: float) -> None:
    """Replace a file by another one of its size; repeated until the clock of the file system has moved on."""
    while path.stat().st_ctime <= since:
        temporary = path.with_suffix(".new")
        shutil.copyfile(other, temporary)
        os.utime(temporary, (0, 0))  # older than the file that it replaces
        temporary.replace(path)


def told(*streams: Stream, since: float) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_changed_files(streams, since, "look")
    assert all(warning.category is ChangedFilesWarning for warning in caught)
    return [str(warning.message) for warning in caught]


class Folder:
    """A data set that lists its files as those of torchvision do."""

    def __init__(self, paths: list[Path]) -> None:
        self.samples = [(str(path), 0) for path in paths]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.open(self.samples[index][0]), 0


def test_some_new_files_are_reported_for_every_kind_of_source(tmp_path: Path) -> None:
    paths, others = pictures(tmp_path / "one"), pictures(tmp_path / "two", seed=1)
    since = last_change(paths)
    streams = [
        Stream("files", Role.OOD, FileSource(paths)),
        thinned(Stream("thin", Role.OOD, FileSource(paths)), 9),
        Stream("dataset", Role.OOD, DatasetSource(Folder(paths))),
        Stream("memory", Role.OOD, MemorySource([Sample("a", b"")])),
    ]
    assert told(*streams, since=since) == []
    for place in (3, 17):
        replace_later(paths[place], others[place], since)
    found = told(*streams, since=since)
    assert [text.split("'")[1] for text in found] == ["files", "thin", "dataset"]
    assert all(f"2 of 40 files (first: {paths[3]}) were modified after the earlier run" in text for text in found)


def test_a_copied_folder_is_not_reported(tmp_path: Path) -> None:
    paths, others = pictures(tmp_path / "one"), pictures(tmp_path / "two", seed=1)
    since = last_change(paths)
    for path, other in zip(paths, others, strict=True):
        replace_later(path, other, since)
    assert told(Stream("files", Role.OOD, FileSource(paths)), since=since) == []


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image, dtype=np.float32) / 255).permute(2, 0, 1)


@pytest.mark.parametrize("kind", ["run", "cache"])
def test_a_replaced_file_of_equal_size_is_reported_before_work_is_reused(tmp_path: Path, kind: str) -> None:
    paths, others = pictures(tmp_path / "far", 70), pictures(tmp_path / "others", 70, seed=1)
    inside = pictures(tmp_path / "val", 10, seed=2)
    streams = [
        Stream("val", Role.ID, FileSource(inside, labels=[0, 1] * 5), tuple("abcdefg")),
        Stream("far", Role.OOD, FileSource(paths)),
    ]
    module, data = OODModule(TinyNetwork(), transform=to_tensor), OODDataModule(streams)

    def work() -> None:
        if kind == "run":
            predict(module, data, OODDetection([MSP()], output_dir=tmp_path / "out", num_thumbnails=0, resume=True))
        else:
            predict(module, data, FeatureCache(tmp_path / "out"))

    def reuse() -> None:
        if kind == "cache":
            open_cache(tmp_path / "out", module, data)
        else:
            with pytest.raises(RunIsCompleteError):
                work()

    work()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ChangedFilesWarning)
        reuse()
    since = max(path.stat().st_mtime for path in (tmp_path / "out").rglob("*"))
    replace_later(paths[1], others[1], since)  # the sampled files are 0, 2, 4, ...
    with pytest.warns(
        ChangedFilesWarning, match=r"'far': 1 of 70 files .*001\.png\) was modified .* Only the contents of a sample"
    ):
        reuse()
