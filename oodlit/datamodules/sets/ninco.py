"""NINCO: 64 manually verified OOD classes, unit tests, and cleaned subsets of other sets."""

import csv
from collections.abc import Collection, Iterator
from importlib import resources
from pathlib import PurePosixPath
from typing import NamedTuple

from oodlit.datamodules.generated.unit_test_kinds import UNIT_TESTS
from oodlit.datamodules.sets.description import Membership, Placement, published, published_facts


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


NINCO = published(
    "ninco",
    below("NINCO_OOD_classes", {c.folder for c in NINCO_CLASSES}),
    classes={c.folder: c.n_images for c in NINCO_CLASSES},
)
NINCO_UNIT_TESTS = published(
    "ninco_unit_tests", below("NINCO_OOD_unit_tests", UNIT_TESTS), classes=dict.fromkeys(UNIT_TESTS, 400)
)
UNIT_TEST_SET = published("unit_tests", below("unit_tests", UNIT_TESTS), classes=dict.fromkeys(UNIT_TESTS))
_POPULAR = published_facts("ninco_popular")["classes"]
NINCO_POPULAR = published("ninco_popular", below("NINCO_popular_datasets_subsamples", _POPULAR))
