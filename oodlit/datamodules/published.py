"""A published data set where the user has it: from its folder or archive to a listing, to shards, to a stream."""

import os.path
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from oodlit.base.atomic import write_text
from oodlit.datamodules.decode import MAX_PIXELS
from oodlit.datamodules.folders import file_source
from oodlit.datamodules.generated.corruptions import CorruptedListing, CorruptedSource
from oodlit.datamodules.generated.unit_test_source import UnitTestListing, unit_test_source
from oodlit.datamodules.sets import descriptions
from oodlit.datamodules.sets.description import DatasetDescription, differences, select
from oodlit.datamodules.sets.imagenet21k.classes import exclusions_text
from oodlit.datamodules.sets.imagenet21k.description import IMAGENET21K
from oodlit.datamodules.sets.imagenet_classes import class_names as imagenet_names
from oodlit.datamodules.sets.imagenet_shift import IMAGENET_C
from oodlit.datamodules.sets.ninco import UNIT_TEST_SET
from oodlit.datamodules.severity.imagenet21k_listing import PoolListing, list_imagenet21k
from oodlit.datamodules.severity.split import FolderSplit
from oodlit.datamodules.shards.build import Progress, build_shards
from oodlit.datamodules.shards.copies import hexdigest
from oodlit.datamodules.shards.files import open_files
from oodlit.datamodules.shards.listing import Assignment, Listing, read_text
from oodlit.datamodules.shards.manifest import INFO_NAMES, ShardInfo, read_info
from oodlit.datamodules.shards.reader import ShardSource
from oodlit.datamodules.shards.verify import Verification, verify_shards
from oodlit.datamodules.stream import Source, Stream
from oodlit.errors import DataError
from oodlit.roles import Role

AnyListing = Listing | UnitTestListing | CorruptedListing | PoolListing

LEFT_OUT = "left_out.txt"
"""Beside the shards of a pool: classes that are not in it, with reasons."""


class UnofficialArchiveWarning(UserWarning):
    """An archive is not byte by byte the published one, though its names and numbers fit."""


def list_set(
    description: DatasetDescription,
    source: str | Path,
    *,
    complete: bool = True,
    only: Collection[str] | None = None,
) -> AnyListing:
    """The images of a set in a folder or archive, ready to be packed.

    Paths are taken relative to the deepest folder that all images share, so that an archive and its unpacked folder
    give the same keys.

    Args:
        description: The set.
        source: Folder, .zip, .tar or compressed tar; archives are not unpacked to disk. For "unit_tests" and
            "imagenet_c" also the shards of ID images: 400 images per test are then drawn at their sizes, or all of them
            under the paper's 15 corruptions at all severities (extra "corruptions").
        complete: See `select`.
        only: See `select`.

    Raises:
        DataError: As `select`, or the source cannot be read.

    Warns:
        UnofficialArchiveWarning: The source is an archive with another MD5 than the published one.
    """
    if description is UNIT_TEST_SET and Path(source).is_dir() and holds_shards(Path(source)):
        return UnitTestListing(unit_test_source(ShardSource(source)))
    if description is IMAGENET_C and Path(source).is_dir() and holds_shards(Path(source)):
        return _corrupted(ShardSource(source), complete=complete)
    if description is IMAGENET21K:
        return list_imagenet21k(source, complete=complete)
    files = open_files(source)
    selection = select(description, files.paths, complete=complete, only=only)
    if description.md5 and Path(source).is_file():
        with Path(source).open("rb") as file:
            md5 = hexdigest(file, "md5")
        if md5 != description.md5:
            warnings.warn(
                f"{description.name}: {source} has MD5 {md5}, the published archive {description.md5}; names and"
                " numbers of its images fit, their content is unknown",
                UnofficialArchiveWarning,
                stacklevel=2,
            )
    prefix = _shared(selection.paths)
    prefix += "/" if prefix else ""
    assignments = {
        path: Assignment(label, group, path.removeprefix(prefix))
        for path, label, group in zip(selection.paths, selection.labels, selection.groups, strict=True)
    }
    return Listing(files, assignments, selection.group_names or description.class_names)


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
        source: What `list_set` takes or returns; a listing that is at hand saves another look through the archive.
        out: Folder of the shards.
        complete: See `select`.
        only: See `select`.
        options: Further arguments of `build_shards`.

    Returns:
        What the manifest says.

    Raises:
        DataError: As `list_set` and `build_shards`.
    """
    facts: dict[str, Any] = dict(description.facts)
    if not complete:
        facts["complete"] = False
    if isinstance(source, str | Path):
        source = list_set(description, source, complete=complete, only=only)
    if isinstance(source, UnitTestListing):
        formats = sorted({template.format for template in source.source.templates})
        facts |= {"seed": source.source.seed, "format": formats, "generated": True}
    if isinstance(source, CorruptedListing):
        facts |= {"seed": source.source.seed, "quality": source.source.quality, "generated": True}
    if isinstance(source, PoolListing):
        facts |= source.facts
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
    location: str | Path | Sequence[str | Path],
    *,
    name: str | None = None,
    complete: bool = True,
    only: Collection[str] | None = None,
) -> Stream:
    """A stream of a published set, from its shards or straight from its folder.

    Args:
        description: The set.
        location: Folder with shards (ours, or those published for timm); a pattern, URL or list of shards; or a folder
            of images in the official layout.
        name: Name of the stream; None (default) = that of the set.
        complete: See `select`; for shards the total is compared.
        only: See `select`; for folders of images alone.

    Raises:
        DataError: Nothing readable is there, or numbers differ from the known ones.
    """
    name = name or description.name
    if isinstance(location, str | Path) and Path(location).is_dir() and not holds_shards(Path(location)):
        if description.role is Role.POOL:
            raise DataError(
                f"{location}: images of {description.name} are not read from where they lie; pack the pool with"
                f" `oodlit shards build {description.name} {location} --out FOLDER` first"
            )
        listing = list_set(description, location, complete=complete, only=only)
        assert isinstance(listing, Listing)  # other listings are made from shards
        folder = Path(location)
        source: Source = file_source(folder, listing, root=folder / _shared(listing.assignments))
        return _stream(description, name, source, listing.class_names)
    shards = ShardSource(location)
    expected = description.expected_count
    problems = [] if expected in (None, len(shards)) else [f"{len(shards)} images, {expected} expected"]
    if counts := shards.info.group_counts:
        names = shards.info.class_names
        problems = differences(description, Counter({names[i] if i < len(names) else "": n for i, n in counts.items()}))
    if complete and problems:
        raise DataError(
            f"{name}: the shards hold {'; '.join(problems)} - build them from the official archive,"
            " or take what is there with complete=False (the true numbers then stand beside every result)"
        )
    return _stream(description, name, shards, shards.info.class_names or description.class_names)


def verify_set(
    folder: str | Path, *, decode: bool = True, max_pixels: int = MAX_PIXELS, progress: Progress | None = None
) -> list[Verification]:
    """`verify_shards`, with the published numbers of the sets that the manifest names.

    Sets that were built with complete=False are compared with their manifest alone.

    Args:
        folder: Folder of shards.
        decode: Whether every image is decoded.
        max_pixels: See `verify_shards`.
        progress: See `verify_shards`.

    Returns:
        One report per split; everything that is wrong is in its problems.

    Raises:
        DataError: As `verify_shards`.
    """
    reports: list[Verification] = []
    how: dict[str, Any] = {"decode": decode, "max_pixels": max_pixels, "progress": progress}
    infos = read_info(folder)
    if not infos:  # without a name there are no published numbers
        return verify_shards(folder, **how)
    for split, info in infos.items():
        description = descriptions().get(info.name) if info.extra.get("complete", True) else None
        if description is None:
            reports += verify_shards(folder, split=split or None, **how)
            continue
        numbers = (
            dict.fromkeys(info.class_names, description.per_group) if description.per_group else description.classes
        )
        expected = {name: count for name, count in numbers.items() if count is not None}
        for report in verify_shards(folder, split=split or None, expected=expected or None, **how):
            for problem in _wrong_numbers(description, report):
                report.add_problem(problem)
            reports.append(report)
    return reports


def read_file_list(path: str | Path) -> list[str]:
    """File names of a published list: one per line, with or without a number behind it.

    Raises:
        DataError: The list is empty.
    """
    names = []
    for line in read_text(path).splitlines():
        head, _, tail = line.strip().rpartition(" ")
        name = head if head and tail.lstrip("-").isdecimal() else line.strip()
        if name:
            names.append(name)
    if not names:
        raise DataError(f"{path}: the list is empty")
    return names


def _corrupted(images: ShardSource, *, complete: bool) -> CorruptedListing:
    if complete and len(images) != IMAGENET_C.per_group:
        raise DataError(
            f"imagenet_c: {len(images)} ID images to be corrupted, {IMAGENET_C.per_group} expected - take them with"
            " complete=False, --incomplete on the command line (the true numbers then stand beside every result)"
        )
    return CorruptedListing(CorruptedSource(images))


def _wrong_numbers(description: DatasetDescription, report: Verification) -> Iterator[str]:
    """How the number of images, and that per label, differ from the published ones."""
    if description.expected_count not in (None, report.num_samples):
        yield f"{report.num_samples} images, {description.expected_count} are expected"
    each = description.per_label
    wrong = {label: count for label, count in sorted(report.label_counts.items()) if each not in (None, count)}
    if wrong:
        shown = ", ".join(f"label {label}: {count}" for label, count in list(wrong.items())[:5])
        yield f"{len(wrong)} labels do not have the expected {each} images ({shown})"


def _stream(description: DatasetDescription, name: str, source: Source, class_names: tuple[str, ...]) -> Stream:
    label_names = imagenet_names() if description.role is Role.SHIFT else ()
    release = str(source.info.extra.get("release") or "") if isinstance(source, ShardSource) else ""
    split = FolderSplit(release) if description.role is Role.POOL else None
    return Stream(name, description.role, source, class_names, description.prepared, label_names, split)


def holds_shards(folder: Path) -> bool:
    """Whether a folder holds shards, not images."""
    return any((folder / name).is_file() for name in INFO_NAMES) or any(folder.glob("*.tar"))


def _shared(paths: Iterable[str]) -> str:
    """The folder that all images share; "" if there is none."""
    shared = os.path.commonpath({PurePosixPath(path).parent.as_posix() for path in paths})
    return "" if shared == "." else shared
