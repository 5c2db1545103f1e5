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

    def place(path: PurePosixPath) -> Membership | None:
        parents = path.parts[:-1]
        if folder in parents:
            parents = parents[parents.index(folder) + 1 :]
        elif not parents or parents[0] not in groups:
            return None
        return Membership(group=parents[0]) if parents else None

    return place


def _part(name: str, folder: str, classes: Mapping[str, int | None] | None = None) -> DatasetDescription:
    """A set whose classes are the folders within a part of the archive; None = those in `facts.json`."""
    classes = published_facts()[name]["classes"] if classes is None else classes
    return published(name, below(folder, classes), classes=classes)


NINCO = _part("ninco", "NINCO_OOD_classes", {c.folder: c.n_images for c in NINCO_CLASSES})
NINCO_UNIT_TESTS = _part("ninco_unit_tests", "NINCO_OOD_unit_tests", dict.fromkeys(UNIT_TESTS, 400))
UNIT_TEST_SET = _part("unit_tests", "unit_tests", dict.fromkeys(UNIT_TESTS))
NINCO_POPULAR = _part("ninco_popular", "NINCO_popular_datasets_subsamples")
