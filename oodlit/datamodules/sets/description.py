"""What a data set is: name, role, classes, counts, licence, source, and where its files lie."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from oodlit.datamodules.sets.imagenet_classes import class_names as imagenet_names
from oodlit.datamodules.shards.files import is_hidden
from oodlit.datamodules.shards.listing import is_image
from oodlit.errors import DataError
from oodlit.roles import NAMES_OF_LABELS, Role


@dataclass(frozen=True)
class Membership:
    """What a path says about an image of a set.

    Args:
        label: Class index of the classifier; -1 = none.
        group: Name of the OOD class, unit test or kind of shift; "" = none.
    """

    label: int = -1
    group: str = ""


Placement = Callable[[PurePosixPath], Membership | None]
"""From a path, relative to the folder or archive, to its place; None = not part of the set."""


@dataclass(frozen=True)
class DatasetDescription:
    """Everything that is fixed about a published data set.

    Args:
        name: Name in configs, keys and tables; letters, digits and "_".
        title: Name in prose.
        role: What it is for.
        layout: Where its files lie in the official archive, for people.
        place: The same for the program.
        expected_count: Number of images; None = not fixed.
        classes: Number of images by group name, in the order in which results show the groups; None as a number = not
            fixed. Empty = the groups are the ones that are found, in sorted order.
        n_groups: Number of groups where the names are found; None = not fixed.
        per_group: Number of images of every group that is there; None = not fixed.
        per_label: Number of images of every class index that occurs; None = not fixed.
        label_subset: Class indices that occur, for sets that cover a part of the classes; empty = all.
        prepared: Images have the network's input size already (224 pixels) and are neither resized nor cropped.
        licence: As stated by its authors.
        source: Where to get it.
        citation: Authors, title, venue, year.
        md5: Of the official archive; "" = unknown.
    """

    name: str
    title: str
    role: Role
    layout: str
    place: Placement
    expected_count: int | None = None
    classes: Mapping[str, int | None] = field(default_factory=dict)
    n_groups: int | None = None
    per_group: int | None = None
    per_label: int | None = None
    label_subset: tuple[int, ...] = ()
    prepared: bool = False
    licence: str = "see source"
    source: str = ""
    citation: str = ""
    md5: str = ""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names by index: of the labels for TRAIN and ID sets, of the groups for others; empty = found in the files."""
        return imagenet_names() if self.role in NAMES_OF_LABELS else tuple(self.classes)

    @property
    def facts(self) -> dict[str, str]:
        """Licence, source and citation, for manifests."""
        return {"licence": self.licence, "source": self.source, "citation": self.citation}


@dataclass(frozen=True)
class Selection:
    """The files of one set among the paths of a folder or archive.

    Args:
        paths: The images, in sorted order.
        labels: Class index per image; -1 = none.
        groups: Index into `group_names` per image; -1 = none.
        group_names: Names of the groups.
    """

    paths: Sequence[str]
    labels: Sequence[int]
    groups: Sequence[int]
    group_names: tuple[str, ...]


def select(
    description: DatasetDescription,
    paths: Iterable[str],
    *,
    complete: bool = True,
    only: Collection[str] | None = None,
) -> Selection:
    """Pick the images of a set from all paths of a folder or archive, and check their numbers.

    Args:
        description: The set.
        paths: Relative paths of all files, with "/" between the parts.
        complete: True (default) compares the numbers of images, of groups and of images per group with the known ones.
            False takes what is there; the true numbers stand beside every result.
        only: File names (their last part counts) of the images that belong to the set, where a published list picks
            some of a larger folder. None (default) = all.

    Raises:
        DataError: No image is found, a listed one is missing or ambiguous, or numbers differ; the message lists all
            differences.

    Example:
        >>> def place(path):
        ...     return Membership(group=path.parent.name)
        >>> mine = DatasetDescription("mine", "Mine", Role.OOD, "<class>/<file>", place)
        >>> selection = select(mine, ["b/1.png", "a/2.png", "a/notes.txt"])
        >>> selection.paths, selection.groups, selection.group_names
        (['a/2.png', 'b/1.png'], [0, 1], ('a', 'b'))
    """
    places = _places(description, sorted(paths), only)
    counts = Counter(place.group for place in places.values())
    if complete and (problems := differences(description, counts)):
        raise DataError(
            f"{description.name}: {'; '.join(problems)} - get the official archive again, or take what is there"
            " with complete=False, --incomplete on the command line (the true numbers then stand beside every result)"
        )
    known = tuple(description.classes)
    extra = sorted(counts.keys() - set(known) - {""})
    names = known + tuple(extra) if not known or extra else known
    index = {name: i for i, name in enumerate(names)} | {"": -1}
    return Selection(
        paths=list(places),
        labels=[place.label for place in places.values()],
        groups=[index[place.group] for place in places.values()],
        group_names=names,
    )


def _places(
    description: DatasetDescription, paths: Sequence[str], only: Collection[str] | None
) -> dict[str, Membership]:
    """The images of the set among the paths."""
    listed = None if only is None else {PurePosixPath(name).name for name in only}
    places: dict[str, Membership] = {}
    for path in filter(is_image, paths):
        pure = PurePosixPath(path)
        if not is_hidden(path) and (listed is None or pure.name in listed) and (place := description.place(pure)):
            places[path] = place
    if not places:
        found = f"{len(paths)} files, first {paths[0]!r}" if paths else "no file at all"
        raise DataError(f"{description.name}: no image at {description.layout}; found {found}")
    if only is not None:
        _check_listed(description.name, only, places)
    covered = description.label_subset
    if other := [path for path, place in places.items() if covered and place.label not in covered]:
        raise DataError(
            f"{description.name}: {other[0]!r} ({len(other)} in all) is of a class that this set does not cover;"
            " is this another set?"
        )
    return places


def _check_listed(name: str, only: Collection[str], places: Mapping[str, Membership]) -> None:
    found = Counter(PurePosixPath(path).name for path in places)
    if twice := sorted(file for file, count in found.items() if count > 1):
        raise DataError(f"{name}: {found[twice[0]]} files are called {twice[0]!r}; which one the list means is unknown")
    if missing := sorted({PurePosixPath(file).name for file in only} - found.keys()):
        raise DataError(f"{name}: {len(missing)} of {len(only)} listed files are not there, first {missing[0]!r}")


def differences(description: DatasetDescription, counts: Counter[str]) -> list[str]:
    """How the numbers of images per group ("" = none) differ from the published ones; empty if they do not."""
    problems = []
    total = counts.total()
    if description.expected_count is not None and total != description.expected_count:
        problems.append(f"{total} images, {description.expected_count} expected")
    if description.n_groups is not None and len(counts) != description.n_groups:
        problems.append(f"{len(counts)} groups, {description.n_groups} expected")
    problems += [
        f"{name!r}: {counts[name]} images, {number} expected"
        for name, number in description.classes.items()
        if number is not None and counts[name] != number
    ]
    problems += [
        f"{name!r}: {number} images, {description.per_group} expected"
        for name, number in sorted(counts.items())
        if description.per_group is not None and number != description.per_group
    ]
    if description.classes and (extra := sorted(counts.keys() - description.classes.keys())):
        problems.append(f"unknown group {extra[0]!r}")
    shown = 8
    return problems if len(problems) <= shown else [*problems[:shown], f"and {len(problems) - shown} more differences"]
