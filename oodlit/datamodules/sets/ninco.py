"""NINCO: 64 manually verified OOD classes, unit tests, and cleaned subsets of other sets."""

import csv
from collections.abc import Collection, Iterator, Mapping
from importlib import resources
from pathlib import PurePosixPath
from typing import NamedTuple

from oodlit.datamodules.generated.unit_test_kinds import UNIT_TESTS
from oodlit.datamodules.sets.description import DatasetDescription, Membership, Placement, published, published_facts


class NincoClass(NamedTuple):
    """One OOD class of NINCO."""

    folder: str
    """Folder in the archive, and name of the group in results."""
    n_images: int
    """Number of images."""
    name: str
    """Name in the paper."""
    short_name: str
    """Name in the paper's tables."""
    source: str
    """The data set that the images were taken from."""
    in_21k: bool
    """Whether ImageNet-21k has this class or one that contains it, so that pre-trained networks have seen it."""


def _classes() -> Iterator[NincoClass]:
    text = resources.files("oodlit.datamodules.sets").joinpath("ninco_classes.csv").read_text(encoding="utf-8")
    for folder, n_images, name, short_name, source, in_21k in csv.reader(text.splitlines()[1:]):
        yield NincoClass(folder, int(n_images), name, short_name, source, in_21k == "True")


NINCO_CLASSES = tuple(_classes())
"""The 64 classes in the order of the published list."""


def below(folder: str, groups: Collection[str]) -> Placement:
    """Placement of files at `folder/<group>/...`, or at `<group>/...` if the source is that folder."""
    known = {group.lower() for group in groups}

    def place(path: PurePosixPath) -> Membership | None:
        parents = path.parts[:-1]
        if folder in parents:
            parents = parents[parents.index(folder) + 1 :]
        elif not parents or parents[0].lower() not in known:
            return None
        return Membership(group=parents[0]) if parents else None

    return place


_FOLDERS = ("NINCO_OOD_classes", "NINCO_OOD_unit_tests", "NINCO_popular_datasets_subsamples")
"""Folders of the archive, one per set."""


def _of_archive(name: str, position: int, classes: Mapping[str, int]) -> DatasetDescription:
    """One of the sets of the archive; images of the others cause no warning."""
    others = tuple(folder for folder in _FOLDERS if folder != _FOLDERS[position])
    return published(name, below(_FOLDERS[position], classes), classes=classes, other_folders=others)


NINCO = _of_archive("ninco", 0, {c.folder: c.n_images for c in NINCO_CLASSES})
NINCO_UNIT_TESTS = _of_archive("ninco_unit_tests", 1, dict.fromkeys(UNIT_TESTS, 400))
NINCO_POPULAR = _of_archive("ninco_popular", 2, published_facts("ninco_popular")["classes"])
UNIT_TEST_SET = published("unit_tests", below("unit_tests", UNIT_TESTS), classes=dict.fromkeys(UNIT_TESTS))
