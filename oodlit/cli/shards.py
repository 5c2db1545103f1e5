"""`oodlit shards`: write, check and describe shards."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from oodlit.datamodules import DatasetDescription
    from oodlit.datamodules.shards import Listing, ShardInfo, ShardReport

from oodlit.errors import UsageError, add_note


def build(
    name: str,
    source: Path,
    *,
    out: Path,
    role: Literal["train", "id", "ood", "shift", "unit_test"] | None = None,
    file_list: Path | None = None,
    class_names: Path | None = None,
    flat: bool = False,
    labels: Path | None = None,
    incomplete: bool = False,
    shard_size: int = 1000,
    workers: int = 2,
    check: Literal["none", "header", "decode"] = "header",
    max_pixels: int | None = None,
    exclude: Path | None = None,
    split: Path | None = None,
    release: Literal["fall11", "winter21"] = "fall11",
    estimation: int = 150,
    test: int = 50,
) -> None:
    """Write a folder, archive or file list as shards.

    Archives are not unpacked; image bytes are copied as they are. A build that was interrupted goes on when it is
    called again. NAME is a data set that 'oodlit list datasets' shows, or any name of your own; then --role says what
    the images are for, and folders are classes.

    Args:
        name: a known data set, or a name of your own
        source: folder, .zip, .tar or compressed tar; for unit_tests and imagenet_c also shards of the ID images to draw
            them from
        out: folder of the shards
        role: what a set of your own is for: train, id, ood, shift or unit_test
        file_list: .csv with the columns path, label, group, or a text file with a path per line; for a known set the
            published text file of the names that belong to it
        class_names: text file with a class folder per line, in the order of the classifier; for a set of your own
        flat: the images have no classes, whatever their folders
        labels: folder of the development kit, or list of labels; for imagenet_val as the official flat archive
        incomplete: accept a known set of which images are missing
        shard_size: images per shard
        workers: shards that are written at the same time
        max_pixels: images with more pixels are refused (default: that of decode_image)
        exclude: for imagenet21k: text file of further classes to leave out, a wnid and a reason a line
        split: for imagenet21k: published list of files and their part, estimation or test
        release: for imagenet21k: fall11 or winter21
        estimation: for imagenet21k: images per class that estimate its severity
        test: for imagenet21k: test images per class
        check: "header": every image must have a readable header; "decode": all pixels; "none": nothing is looked at
    """
    from oodlit.cli.console import say, status
    from oodlit.datamodules import build_set, descriptions
    from oodlit.datamodules.published_sets import AnyListing, list_set, read_file_list
    from oodlit.datamodules.severity.imagenet21k_listing import PoolListing, list_imagenet21k
    from oodlit.datamodules.shards import build_shards, progress_bar
    from oodlit.errors import UnknownNameError
    from oodlit.roles import Role

    description = descriptions().get(name)
    how: dict[str, Any] = {"shard_size": shard_size, "workers": workers, "check": check}
    how |= {} if max_pixels is None else {"max_pixels": max_pixels}
    if labels is not None and name != "imagenet_val":
        raise UsageError(f"--labels is for imagenet_val, not for {name!r}")
    of_pool: dict[str, Any] = {"exclude": (exclude,) if exclude else (), "split": split, "release": release}
    of_pool |= {"estimation": estimation, "test": test}
    usual: dict[str, Any] = {"exclude": (), "split": None, "release": "fall11", "estimation": 150, "test": 50}
    if name != "imagenet21k" and of_pool != usual:
        given = next(option for option, value in of_pool.items() if value != usual[option])
        raise UsageError(f"--{given} is for imagenet21k, not for {name!r}")
    if description is not None:
        own = {"--role": role, "--class_names": class_names, "--flat": flat or None}
        if extra := [option for option, value in own.items() if value is not None]:
            raise UsageError(f"{name!r} is a known data set; {', '.join(extra)} is for sets of your own")
        if labels is not None:
            description = _flat_val(labels, any_count=incomplete)
        only = None if file_list is None else read_file_list(file_list)
        with status(f"listing {source}"), _told():
            if name == "imagenet21k":
                if file_list is not None:
                    raise UsageError("--file_list is not for imagenet21k; --split takes a list of files and parts")
                known: AnyListing = list_imagenet21k(source, complete=not incomplete, **of_pool)
            else:
                known = list_set(description, source, complete=not incomplete, only=only)
        with _kept(out), progress_bar(f"packing {name}", len(known)) as advance:
            made = build_set(description, known, out, complete=not incomplete, progress=advance, **how)
        if isinstance(known, PoolListing):
            say(f"{known.shortfall}: see {out / 'left_out.txt'}")
    else:
        if role is None:
            hint = str(UnknownNameError.of("data set", name, descriptions()))
            raise UsageError(f"{hint} - for a set of your own add --role train, id, ood, shift or unit_test")
        if incomplete:
            raise UsageError("--incomplete is for known data sets; of your own, what is there is taken")
        with status(f"listing {source}"), _told():
            listing = _listing(source, Role(role), file_list=file_list, class_names=class_names, flat=flat)
        names = listing.class_names
        with _kept(out), progress_bar(f"packing {name}", len(listing)) as advance:
            made = build_shards(listing, out, name=name, role=Role(role), class_names=names, progress=advance, **how)
    classes = f", {len(made.class_names)} classes" if made.class_names else ""
    say(f"{out}: {made.num_samples} images of {made.name!r} ({made.role}{classes}) in {len(made.shards)} shards")


@contextmanager
def _kept(out: Path) -> Iterator[None]:
    """Whoever ends a build is told what becomes of it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        add_note(end, f"shards that are finished stay in {out}, and the same command goes on from there")
        raise


@contextmanager
def _told() -> Iterator[None]:
    """Warnings as lines on standard error, without the place in the code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            told = dict.fromkeys(str(warning.message) for warning in caught)
            sys.stderr.write("".join(f"warning: {text}\n" for text in told))


def _flat_val(labels: Path, *, any_count: bool) -> "DatasetDescription":
    from oodlit.datamodules.sets.imagenet import flat_val, read_val_labels

    return flat_val(read_val_labels(labels, count=None) if any_count else read_val_labels(labels))


def _listing(source: Path, role: object, *, file_list: Path | None, class_names: Path | None, flat: bool) -> "Listing":
    from oodlit.datamodules.shards import class_listing, listed_listing
    from oodlit.datamodules.shards.listing import read_text
    from oodlit.roles import Role

    names = None if class_names is None else read_text(class_names).split("\n")
    names = None if names is None else [line.strip() for line in names if line.strip()]
    if file_list is not None:
        return listed_listing(file_list, source)
    return class_listing(source, Role(role), class_names=names, by_folder=not flat)


def verify(
    directories: list[Path], *, headers_only: bool = False, duplicates: bool = False, max_pixels: int | None = None
) -> int:
    """Read every sample of shards and check it.

    Files, checksums, counts, labels, keys and images are looked at; known data sets are compared with the published
    numbers, too. The exit code is 1 if anything is wrong.

    Args:
        directories: folders of shards
        headers_only: do not decode the images
        duplicates: look for images that occur more than once, within a folder and across folders
        max_pixels: images with more pixels are a problem (default: that of decode_image)
    """
    from oodlit.cli.console import say
    from oodlit.datamodules.shards import ShardReport, find_duplicates
    from oodlit.errors import DataError

    found: list[ShardReport] = []
    failed = False
    for directory in directories:
        try:
            limit = {} if max_pixels is None else {"max_pixels": max_pixels}
            reports = _verified(directory, decode=not headers_only, **limit)
        except DataError as error:  # the other folders are still of interest
            say(error)
            failed = True
            continue
        for report in reports:
            split = f" [{report.info.split}]" if report.info.split else ""
            verdict = "ok" if report.ok else f"{len(report.problems)} problems"
            say(f"{report.folder}{split}: {report.num_samples} images, {verdict}")
            for problem in report.problems:
                say(f"  {problem}")
            for stray in report.strays:
                say(f"  no part of a sample: {stray}")
        found += reports
    for group in find_duplicates(found) if duplicates else []:
        say(f"same image: {', '.join(group.keys)}")
    return int(failed or not all(report.ok for report in found))


def _verified(directory: Path, **how: Any) -> "list[ShardReport]":
    from oodlit.datamodules import verify_set
    from oodlit.datamodules.shards import progress_bar, read_info

    splits = read_info(directory)
    total = sum(split.num_samples for split in splits.values()) if splits else None  # without a manifest: unknown
    with progress_bar(f"reading {directory.name or directory}", total) as advance, _told():
        return verify_set(directory, progress=advance, **how)


def info(directories: list[Path]) -> None:
    """Say what a folder of shards holds.

    The manifest says it; where there is none, samples are counted.

    Args:
        directories: folders of shards
    """
    from rich.table import Table
    from rich.text import Text

    from oodlit.cli.console import console, status
    from oodlit.datamodules.shards import shard_info

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("folder", "data set", "split", "role", "images", "classes", "shards", "MB", "remarks"):
        table.add_column(heading, justify="right" if heading in ("images", "classes", "shards", "MB") else "left")
    for directory in directories:
        with status(f"reading {directory}"), _told():
            splits = shard_info(directory)
        for split in splits.values():
            size = "" if split.size is None else f"{split.size / 1e6:.1f}"
            classes = len(split.class_names) or len(split.group_counts) or len(split.label_counts) or ""
            row = (directory, split.name, split.split, split.role or "", split.num_samples, classes, len(split.shards))
            table.add_row(*(Text(str(cell)) for cell in (*row, size, _remarks(split))))
    console().print(table)


def _remarks(split: "ShardInfo") -> str:
    """What a reader should know of a set before using its numbers."""
    remarks = {
        "no manifest, counted": not split.split,
        "incomplete": not split.extra.get("complete", True),
        "generated": bool(split.extra.get("generated")),
        "no checksums": bool(split.split) and any(shard.sha256 is None for shard in split.shards),
    }
    return ", ".join(text for text, holds in remarks.items() if holds)
