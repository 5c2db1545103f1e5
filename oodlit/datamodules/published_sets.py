"""List, pack, read and verify published data sets."""

import os.path
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from oodlit.base.atomic import write_text
from oodlit.base.errors import DataError
from oodlit.base.known_classes.imagenet import class_names as imagenet_names
from oodlit.base.roles import Role
from oodlit.base.text.warn import warn
from oodlit.datamodules.benchmarks.lists import published_list
from oodlit.datamodules.decode import MAX_PIXELS
from oodlit.datamodules.folders import file_source
from oodlit.datamodules.generated.corruptions import CorruptedListing, CorruptedSource
from oodlit.datamodules.generated.unit_test_source import UnitTestListing, unit_test_source
from oodlit.datamodules.keys import is_hidden
from oodlit.datamodules.sets import descriptions
from oodlit.datamodules.sets.description import DatasetDescription, differences, select
from oodlit.datamodules.sets.imagenet21k.classes import IMAGENET21K, exclusions_text, is_wnid, wnid_of
from oodlit.datamodules.sets.imagenet_shift import IMAGENET_C
from oodlit.datamodules.sets.ninco import UNIT_TEST_SET
from oodlit.datamodules.severity.imagenet21k_listing import PoolListing, list_imagenet21k
from oodlit.datamodules.severity.split import FolderSplit
from oodlit.datamodules.shards.archives import Files, open_files, open_tars
from oodlit.datamodules.shards.build import Progress, build_shards
from oodlit.datamodules.shards.download import checksum
from oodlit.datamodules.shards.listing import Assignment, Listing, is_image, read_text
from oodlit.datamodules.shards.locate import Shards
from oodlit.datamodules.shards.manifest import INFO_NAMES, ShardInfo, read_info
from oodlit.datamodules.shards.reader import ShardSource
from oodlit.datamodules.shards.verify import ShardReport, verify_shards
from oodlit.datamodules.stream import Source, Stream

AnyListing = Listing | UnitTestListing | CorruptedListing | PoolListing

LEFT_OUT = "left_out.txt"
"""File next to the shards of a pool: the excluded classes with reasons."""


class UnofficialArchiveWarning(UserWarning):
    """Warning for an archive with another checksum than the published one."""


def list_set(
    description: DatasetDescription, source: str | Path, *, complete: bool = True, only: Collection[str] | None = None
) -> AnyListing:
    """List the images of a set in a folder or archive, ready to be packed.

    Paths are relative to the deepest folder that all images share, so an archive and its unpacked folder have the same
    keys.

    Args:
        description: The set.
        source: Folder, .zip, .tar or compressed tar; archives are not unpacked to disk. "unit_tests" and "imagenet_c"
            also accept shards of ID images: 400 images per test are generated at their sizes, or all of them under the
            paper's 15 corruptions at all severities (extra "corruptions"). A folder of tars `<wnid>.tar`, or a tar of
            them, is read without unpacking, such as a release of ImageNet-21k, of which the published list of the set
            is used.
        complete: See `select`.
        only: See `select`.

    Raises:
        DataError: As `select`, or the source cannot be read.

    Warns:
        UnofficialArchiveWarning: The MD5 of the archive differs from the published one.
        UserWarning: As `select`. Or `complete` is False, and there are images outside the published list of the set,
            which are left out.
    """
    if description is UNIT_TEST_SET and Path(source).is_dir() and holds_shards(Path(source)):
        return UnitTestListing(unit_test_source(ShardSource(source)))
    if description is IMAGENET_C and Path(source).is_dir() and holds_shards(Path(source)):
        return _corrupted(ShardSource(source), complete=complete)
    if description is IMAGENET21K:
        return list_imagenet21k(source, complete=complete)
    files, name = _files(description, source, only)
    only = published_list(name) if name else only
    selection = select(description, files.paths, complete=complete, only=only)
    others = sum(is_image(path) and not is_hidden(path) for path in files.paths) - len(selection.paths)
    if name and others and not complete:
        warn(f"{description.name}: left out {others:,} images that are not in the published list {name!r}")
    if description.md5 and Path(source).is_file() and (md5 := checksum(Path(source))) != description.md5:
        text = f"{description.name}: {source} is not the official archive (expected MD5 {description.md5}, got {md5})"
        way_out = "It is used anyway; download the official archive if results must be comparable with published ones"
        warn(f"{text}. {way_out}", UnofficialArchiveWarning)
    prefix = _shared(selection.paths, zip(selection.labels, selection.groups, strict=True))
    prefix += "/" if prefix else ""
    rows = zip(selection.paths, selection.labels, selection.groups, selection.names, strict=True)
    assignments = {path: Assignment(label, group, new or path.removeprefix(prefix)) for path, label, group, new in rows}
    return Listing(files, assignments, selection.group_names or description.class_names, file_list=name)


def _files(description: DatasetDescription, source: str | Path, only: Collection[str] | None) -> tuple[Files, str]:
    """Files of a source, and the name of the published list that chooses from them; "" = none."""
    name = "" if only is not None else description.file_list
    names = published_list(name) if name else only
    files = open_tars(source, is_wnid, None if names is None else {*map(wnid_of, names)})
    if files is None:
        return open_files(source), name
    if names is None and description.role is not Role.TRAIN:
        raise DataError(
            f"{description.name}: {source} contains one tar per class, but no published list states which images to"
            " use; pass a list of files with only=..."
        )
    return files, name


def build_set(
    description: DatasetDescription,
    source: str | Path | AnyListing,
    out: str | Path,
    *,
    complete: bool = True,
    only: Collection[str] | None = None,
    **options: Any,
) -> ShardInfo:
    """Pack a published set into shards below `out`.

    Args:
        description: The set.
        source: A source that `list_set` accepts, or its result, which saves reading the archive again.
        out: Folder of the shards.
        complete: See `select`.
        only: See `select`.
        options: Other arguments of `build_shards`.

    Returns:
        The content of the manifest.

    Raises:
        DataError: As `list_set` and `build_shards`.
    """
    facts: dict[str, Any] = {**description.facts, **({} if complete else {"complete": False})}
    if isinstance(source, str | Path):
        source = list_set(description, source, complete=complete, only=only)
    if isinstance(source, UnitTestListing):
        formats = sorted({template.format for template in source.source.templates})
        facts |= {"seed": source.source.seed, "format": formats, "generated": True}
    if isinstance(source, CorruptedListing):
        facts |= {"seed": source.source.seed, "quality": source.source.quality, "generated": True}
    if isinstance(source, PoolListing):
        facts |= source.facts
    if isinstance(source, Listing) and source.file_list:
        facts["list"] = source.file_list
    info = build_shards(
        source,
        out,
        name=description.name,
        role=description.role,
        class_names=source.class_names,
        extra=facts,
        **options,
    )
    if isinstance(source, PoolListing):
        write_text(Path(out) / LEFT_OUT, exclusions_text(source.reasons))
    return info


def set_stream(
    description: DatasetDescription,
    location: Shards,
    *,
    name: str | None = None,
    complete: bool = True,
    only: Collection[str] | None = None,
    any_set: bool = False,
) -> Stream:
    """A stream of a published set, from its shards or directly from its folder.

    Args:
        description: The set.
        location: Folder of shards (built with oodlit, or published for timm); a pattern, URL or list of shards; or a
            folder of images in the official layout.
        name: Name of the stream; None (default) = that of the set.
        complete: See `select`; for shards, only totals are compared.
        only: See `select`; for folders of images only.
        any_set: Whether shards of another known data set, and images outside the list of the set, are accepted.

    Raises:
        DataError: There is nothing readable, the shards are of another known data set, or counts differ from the
            published ones.
    """
    name = name or description.name
    if isinstance(location, str | Path) and Path(location).is_dir() and not holds_shards(Path(location)):
        if description.role is Role.POOL:
            raise DataError(
                f"{location}: images of {description.name} must be packed first; run"
                f" `oodlit shards build {description.name} {location} --out FOLDER`"
            )
        own = replace(description, file_list="") if any_set else description  # the caller applies a list
        listing = list_set(own, location, complete=complete, only=only)
        assert isinstance(listing, Listing)  # other listings need shards
        folder = Path(location)
        classes = ((one.label, one.group) for one in listing.assignments.values())
        source: Source = file_source(folder, listing, root=folder / _shared(listing.assignments, classes))
        own = own if only is None else replace(own, expected_count=len(only))
        return _stream(own, name, source, listing.class_names)
    shards = ShardSource(location)
    if not any_set and (there := shards.info.name) != description.name and there in descriptions():
        raise DataError(f"{location}: expected shards of {description.name!r}, got shards of {there!r}")
    expected = description.expected_count
    problems = [] if expected in (None, len(shards)) else [f"expected {expected} images, got {len(shards)}"]
    if counts := shards.info.group_counts:
        names = shards.info.class_names
        problems = differences(description, Counter({names[i] if i < len(names) else "": n for i, n in counts.items()}))
    if complete and problems:
        raise DataError(
            f"{name}: the shards differ from the published set ({'; '.join(problems)}); build them from the official"
            " archive, or pass complete=False to use them as they are (results then show the actual counts)"
        )
    return _stream(description, name, shards, shards.info.class_names or description.class_names)


def verify_set(
    folder: str | Path, *, decode: bool = True, max_pixels: int = MAX_PIXELS, progress: Progress | None = None
) -> list[ShardReport]:
    """Verify shards with `verify_shards`, and compare counts with the published ones.

    Sets built with complete=False are only compared with their manifest.

    Args:
        folder: Folder of shards.
        decode: Whether to decode every image.
        max_pixels: See `verify_shards`.
        progress: See `verify_shards`.

    Returns:
        One report per split, with a list of problems.

    Raises:
        DataError: As `verify_shards`.
    """
    reports: list[ShardReport] = []
    how: dict[str, Any] = {"decode": decode, "max_pixels": max_pixels, "progress": progress}
    infos = read_info(folder)
    if not infos:  # without a name there are no published counts
        return verify_shards(folder, **how)
    for split, info in infos.items():
        description = descriptions().get(info.name) if info.extra.get("complete", True) else None
        if description is None:
            reports += verify_shards(folder, split=split or None, **how)
            continue
        if listed := info.extra.get("list"):
            description = replace(description, expected_count=len(published_list(listed)), per_group=None)
        each = description.per_group
        numbers = dict.fromkeys(info.class_names, each) if each else description.classes
        expected = {name: count for name, count in numbers.items() if count is not None}
        for report in verify_shards(folder, split=split or None, expected=expected or None, **how):
            for problem in _wrong_numbers(description, report):
                report.add_problem(problem)
            reports.append(report)
    return reports


def read_file_list(path: str | Path) -> list[str]:
    """Read the file names of a published list: one per line, optionally followed by a number.

    Raises:
        DataError: The list is empty.
    """
    names = [re.sub(r" -*\d+$", "", line.strip()) for line in read_text(path).splitlines() if line.strip()]
    if not names:
        raise DataError(f"{path}: expected a list of file names, got an empty file")
    return names


def _corrupted(images: ShardSource, *, complete: bool) -> CorruptedListing:
    if complete and len(images) != IMAGENET_C.per_group:
        raise DataError(
            f"imagenet_c: expected {IMAGENET_C.per_group} ID images, got {len(images)}; pass complete=False"
            " to use these images (results then show the actual counts)"
        )
    return CorruptedListing(CorruptedSource(images))


def _wrong_numbers(description: DatasetDescription, report: ShardReport) -> Iterator[str]:
    """Differences from the published number of images, in total and per label."""
    if description.expected_count not in (None, report.num_samples):
        yield f"expected {description.expected_count} images, got {report.num_samples}"
    each = description.per_label
    if wrong := {label: count for label, count in sorted(report.label_counts.items()) if each not in (None, count)}:
        shown = ", ".join(f"label {label}: {count}" for label, count in list(wrong.items())[:5])
        yield f"expected {each} images per label, but {len(wrong)} labels have more or fewer ({shown})"


def _stream(description: DatasetDescription, name: str, source: Source, class_names: tuple[str, ...]) -> Stream:
    label_names = imagenet_names() if description.role is Role.SHIFT else ()
    release = str(source.info.extra.get("release") or "") if isinstance(source, ShardSource) else ""
    split = FolderSplit(release) if description.role is Role.POOL else None
    facts = (description.prepared, label_names, split, description.expected_count)
    return Stream(name, description.role, source, class_names, *facts)


def holds_shards(folder: Path) -> bool:
    """Whether a folder contains shards rather than images."""
    return any((folder / name).is_file() for name in INFO_NAMES) or any(folder.glob("*.tar"))


def _shared(paths: Iterable[str], classes: Iterable[tuple[int, int]]) -> str:
    """The folder that all images share; "" if there is none. The folder of a single class stays in the keys."""
    folders = {PurePosixPath(path).parent.as_posix() for path in paths}
    if len(folders) == len(found := {*classes}) == 1 and found != {(-1, -1)}:
        folders = {PurePosixPath(folder).parent.as_posix() for folder in folders}
    shared = os.path.commonpath(folders)
    return "" if shared == "." else shared
