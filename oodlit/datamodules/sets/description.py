"""Descriptions of published data sets, and the selection of their files."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from oodlit.base.errors import DataError, suggestion
from oodlit.base.json_files import loads
from oodlit.base.known_classes.imagenet import class_names as imagenet_names
from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.base.text.warn import warn
from oodlit.datamodules.benchmarks.lists import listed
from oodlit.datamodules.keys import is_hidden
from oodlit.datamodules.shards.listing import is_image
from oodlit.datamodules.subsets import SampleFacts


@dataclass(frozen=True)
class Membership:
    """Label and group of an image, as given by its path.

    Args:
        label: Class index of the classifier; -1 = none.
        group: Name of the OOD class, unit test or kind of shift; "" = none.
        path: Path in the set, if it differs from that in the archive; "" = it does not.
    """

    label: int = -1
    group: str = ""
    path: str = ""


Placement = Callable[[PurePosixPath], Membership | None]
"""From a path within a folder or archive to label and group; None if the file is not part of the set."""


@dataclass(frozen=True)
class ArchiveFile:
    """An official archive of a data set.

    Args:
        url: Its address.
        md5: Its MD5; "" = unknown.
    """

    url: str
    md5: str = ""

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DatasetDescription:
    """Facts about a published data set.

    Args:
        name: Name in configurations, keys and tables; letters, digits and "_".
        title: Name in prose.
        role: Role of the set.
        layout: Paths in the official archive, for readers.
        place: Function from such a path to label and group.
        expected_count: Number of images; None = not fixed.
        classes: Number of images by group name, in the order of results; None as a number = not fixed. Empty = groups
            are named after their folders, in sorted order.
        n_groups: Number of groups if they are named after their folders; None = not fixed.
        per_group: Number of images of every group that occurs; None = not fixed.
        per_label: Number of images of every class index that occurs; None = not fixed.
        label_subset: Class indices that occur, for sets that cover only some classes; empty = all.
        prepared: Whether images already have the network's input size (224 pixels) and are not resized or cropped.
        licence: License as stated by the authors.
        source: Where to get the set.
        citation: Authors, title, venue, year.
        md5: MD5 of the official archive; "" = unknown.
        files: Official archives; empty = there is none with a fixed address.
        by_hand: What to do for a set that cannot be downloaded without a login or a choice; "" = nothing.
        file_list: Published list of its images, for a set that is a part of ImageNet-21k; "" = none.
        other_folders: Folders of its official archive with images of other sets.
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
    files: tuple[ArchiveFile, ...] = ()
    by_hand: str = ""
    file_list: str = ""
    other_folders: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names by index: of labels for TRAIN and ID sets, otherwise of groups; empty if named after folders."""
        return imagenet_names() if self.role in NAMES_OF_LABELS else tuple(self.classes)

    @property
    def facts(self) -> dict[str, str]:
        """License, source and citation for manifests."""
        return {"licence": self.licence, "source": self.source, "citation": self.citation}


def published(name: str, place: Placement, **others: Any) -> DatasetDescription:
    """Description of a set with facts from `published.json`.

    Args:
        name: Name of the set.
        place: Function from a path to label and group.
        others: Fields that are not in the file.
    """
    facts = published_facts(name) | others
    files = [{"md5": facts.get("md5", ""), **file} for file in facts.get("files", ())]
    made = {"role": Role(facts["role"]), "files": tuple(ArchiveFile(**file) for file in files)}
    return DatasetDescription(name=name, place=place, **facts | made)


def published_facts(name: str) -> dict[str, Any]:
    """Facts about a set in `published.json`, by field of `DatasetDescription`."""
    return _published()[name]


@cache
def _published() -> dict[str, dict[str, Any]]:
    text = resources.files("oodlit.datamodules.sets").joinpath("published.json").read_text(encoding="utf-8")
    return dict(loads(text))


@dataclass(frozen=True)
class Selection:
    """The files of one set among the paths of a folder or archive.

    Args:
        paths: The images, in sorted order.
        labels: Class index per image; -1 = none.
        groups: Index into `group_names` per image; -1 = none.
        group_names: Names of the groups.
        names: Path in the set per image, if it differs from that in the archive; "" = it does not.
    """

    paths: Sequence[str]
    labels: Sequence[int]
    groups: Sequence[int]
    group_names: tuple[str, ...]
    names: Sequence[str] = ()


def select(
    description: DatasetDescription, paths: Iterable[str], *, complete: bool = True, only: Collection[str] | None = None
) -> Selection:
    """Select the images of a set from all paths of a folder or archive, and check their counts.

    Args:
        description: The set.
        paths: Relative paths of all files, with "/" between the parts.
        complete: If True (default), the numbers of images, groups and images per group must be the published ones. If
            False, all images are used; results show the actual counts.
        only: Names of the images that belong to the set, for sets that are published as a list of files in a larger
            folder; see `listed`. Folders in the names that do not exist in the source are ignored. None (default) =
            all.

    Warns:
        UserWarning: `complete` is False or the published number of images is unknown, and images have other paths than
            those of the set. They are left out. Or `complete` is False, and listed images are missing.

    Raises:
        DataError: There is no image, a listed one is missing or ambiguous, images are in folders that are not classes
            of the set, or counts differ; the message lists the differences.

    Example:
        >>> def place(path):
        ...     return Membership(group=path.parent.name)
        >>> mine = DatasetDescription("mine", "Mine", Role.OOD, "<class>/<file>", place)
        >>> selection = select(mine, ["b/1.png", "a/2.png", "a/notes.txt"])
        >>> selection.paths, selection.groups, selection.group_names
        (['a/2.png', 'b/1.png'], [0, 1], ('a', 'b'))
    """
    ordered = sorted(paths)
    places = _places(description, ordered)
    if only is not None:
        places = _listed(description.name, only, places, complete=complete)
    counts = Counter(place.group for place in places.values())
    unknown = sorted(counts.keys() - description.classes.keys() - {""}) if description.classes else []
    if complete and (problems := differences(description, counts)):
        way_out = "pass complete=False to use the images as they are (results then show the actual counts)"
        way_out = "rename or move folders that are not classes of this set" if unknown else way_out
        raise DataError(f"{description.name}: {'; '.join(problems)}. Download the official archive again, or {way_out}")
    if unknown:
        shown = ", ".join(_with_hint(name, description) for name in unknown[:5]) + ", ..." * (len(unknown) > 5)
        text = (
            f"{sum(counts[name] for name in unknown)} images are in folders that are not classes of this set ({shown})"
        )
        raise DataError(f"{description.name}: {text}; rename these folders, or move them elsewhere")
    if only is None and (not complete or description.expected_count is None):
        _warn_of_others(description, [path for path in ordered if path not in places])
    names = tuple(description.classes) or tuple(sorted(counts.keys() - {""}))
    index = {name: i for i, name in enumerate(names)} | {"": -1}
    return Selection(
        paths=list(places),
        labels=[place.label for place in places.values()],
        groups=[index[place.group] for place in places.values()],
        group_names=names,
        names=[place.path for place in places.values()],
    )


def _places(description: DatasetDescription, paths: Sequence[str]) -> dict[str, Membership]:
    """Find the images of the set among the paths."""
    images = (path for path in paths if is_image(path) and not is_hidden(path))
    places = {path: place for path in images if (place := description.place(PurePosixPath(path)))}
    if not places:
        found = f"images of this set, only {len(paths)} other files (first: {paths[0]!r})" if paths else "files"
        raise DataError(f"{description.name}: found no {found}; expected layout: {description.layout}")
    covered = description.label_subset
    if other := [path for path, place in places.items() if covered and place.label not in covered]:
        raise DataError(
            f"{description.name}: {len(other)} images (first: {other[0]!r}) have classes that {description.name} does"
            " not cover; check that the source is the right data set"
        )
    return places


def _warn_of_others(description: DatasetDescription, paths: Sequence[str]) -> None:
    """Warn of images that do not match the layout of the set and are left out."""
    known = set(description.other_folders)
    if others := [p for p in paths if is_image(p) and not is_hidden(p) and not known & {*PurePosixPath(p).parts}]:
        text = f"{len(others)} images (first: {others[0]!r}) are left out; expected layout: {description.layout}"
        warn(f"{description.name}: {text}")


def _listed(
    name: str, only: Collection[str], places: Mapping[str, Membership], *, complete: bool
) -> dict[str, Membership]:
    """The images of a list."""
    paths = list(places)
    facts = [SampleFacts(place.path or path, -1, -1) for path, place in places.items()]
    folders = {part.lower() for fact in facts for part in PurePosixPath(fact.path).parts[:-1]}
    pure = {PurePosixPath(one): one for one in only}
    names = [PurePosixPath(*(p for p in one.parts[:-1] if p.lower() in folders), one.name).as_posix() for one in pure]
    positions = listed(facts, names, name)
    if missing := [one for one, position in zip(pure.values(), positions, strict=True) if position < 0]:
        shown = ", ".join(map(repr, sorted(missing)[:5]))
        text = f"{name}: could not find {len(missing)} of {len(pure)} listed files (first: {shown})"
        if complete or len(missing) == len(pure):
            way_out = ", or pass complete=False to leave out the missing files" if len(missing) < len(pure) else ""
            raise DataError(f"{text}; check that the source is the right data set{way_out}")
        warn(f"{text}; the missing files are left out")
    return {paths[position]: places[paths[position]] for position in sorted(positions) if position >= 0}


def differences(description: DatasetDescription, counts: Counter[str]) -> list[str]:
    """List differences between the number of images per group ("" = none) and the published ones."""
    problems = []
    total = counts.total()
    if description.expected_count is not None and total != description.expected_count:
        problems.append(f"expected {description.expected_count} images, got {total}")
    if description.n_groups is not None and len(counts) != description.n_groups:
        problems.append(f"expected {description.n_groups} classes, got {len(counts)}")
    if description.classes and (extra := sorted(counts.keys() - description.classes.keys())):
        problems.append(f"unknown class {_with_hint(extra[0], description)}")
    each = description.per_group
    numbers = dict.fromkeys(sorted(counts), each) if each else description.classes
    wrong = {name: number for name, number in numbers.items() if number not in (None, counts[name])}
    if empty := [name for name in wrong if not counts[name]]:
        problems.append(
            f"no images in {len(empty)} of {len(numbers)} classes (first: {', '.join(map(repr, empty[:3]))})"
        )
    problems += [
        f"expected {number} images in {name!r}, got {n}" for name, number in wrong.items() if (n := counts[name])
    ]
    shown = 8
    return problems if len(problems) <= shown else [*problems[:shown], f"and {len(problems) - shown} more differences"]


def _with_hint(name: str, description: DatasetDescription) -> str:
    """An unknown class of a set, with the nearest known ones."""
    hint = suggestion(name, description.classes)
    return f"{name!r} ({hint})" if hint else repr(name)
