"""`oodlit shards`: write, check and describe shards."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from oodlit.base.errors import DataError, UnknownNameError, UsageError, add_note
from oodlit.base.secrets import mask_text
from oodlit.cli.command import naming_options
from oodlit.cli.console import console, progress_bar, say, status

if TYPE_CHECKING:
    from oodlit.datamodules.shards import ShardInfo

HEADINGS = {
    "build": {
        "Your own data set": ("role", "class_names", "flat"),
        "Known data sets": ("labels", "incomplete"),
        "ImageNet-21K": ("exclude", "split", "release", "estimation", "test"),
        "Files": ("file_list", "out", "shard_size", "workers", "check", "max_pixels"),
    }
}
_POOL = {"exclude": (), "split": None, "release": "fall11", "estimation": 150, "test": 50}
"""Defaults of the options for ImageNet-21K."""
_MAX_PIXELS = 89_478_485
"""`oodlit.datamodules.decode.MAX_PIXELS`, whose import is slow."""
_AS_OPTIONS = {"complete=False": "--incomplete", "only=...": "--file_list", "flat=True": "--flat"}


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
    max_pixels: int = _MAX_PIXELS,
    exclude: Path | None = None,
    split: Path | None = None,
    release: Literal["fall11", "winter21"] = "fall11",
    estimation: int = 150,
    test: int = 50,
) -> None:
    """Write a folder, archive or file list as shards.

    Archives are not unpacked, and image bytes are copied as they are. Run the command again to resume an interrupted
    build. NAME is a data set of 'oodlit list datasets'. For your own data, choose a name and
    pass --role; each folder is then a class.

    Args:
        name: a known data set, or your own name
        source: folder or archive; for unit tests, the shards of ID images
        out: folder for the shards
        role: role of your set: train, id, ood, shift or unit_test
        file_list: CSV with path, label and group; or text file of paths
        class_names: text file of class folders, in the classifier's order
        flat: ignore folders: the images have no classes
        labels: labels of imagenet_val or imagenet_c: file or devkit
        incomplete: accept a known set with missing images
        shard_size: images per shard
        workers: shards written in parallel
        max_pixels: reject images with more pixels
        exclude: file of classes to leave out; each line: wnid, reason
        split: CSV of file,part; part is estimation or test
        release: release of ImageNet-21K (default: fall11)
        estimation: images per class to estimate severity
        test: test images per class
        check: image check: none, header or decode (default: header)
    """
    from oodlit.datamodules import build_set, descriptions
    from oodlit.datamodules.published_sets import list_set, read_file_list
    from oodlit.datamodules.sets.imagenet import flat_val, read_val_labels
    from oodlit.datamodules.sets.imagenet_shift import flat_c
    from oodlit.datamodules.severity.imagenet21k_listing import list_imagenet21k

    pool: dict[str, Any] = {"exclude": (exclude,) if exclude else (), "split": split, "release": release}
    pool |= {"estimation": estimation, "test": test}
    if name != "imagenet21k" and (given := [option for option, value in pool.items() if value != _POOL[option]]):
        raise UsageError(f"--{given[0]} is for imagenet21k, not for {name!r}")
    if labels is not None and name not in ("imagenet_val", "imagenet_c"):
        raise UsageError(f"--labels is for imagenet_val and imagenet_c, not for {name!r}")
    if name == "imagenet21k" and file_list is not None:
        raise UsageError("imagenet21k does not support --file_list; pass --split, a CSV of file and part")
    how: dict[str, Any] = {"shard_size": shard_size, "workers": workers, "check": check, "max_pixels": max_pixels}
    description = descriptions().get(name)
    if flat and class_names is not None:
        raise UsageError("--class_names orders class folders, which --flat ignores; pass only one of them")
    if description is None:
        is_own = {"file_list": file_list, "class_names": class_names, "flat": flat}
        _build_own(name, source, out, role, incomplete=incomplete, reading=is_own, **how)
        return
    own = {"--role": role, "--class_names": class_names, "--flat": flat or None}
    if extra := [option for option, value in own.items() if value is not None]:
        raise UsageError(f"{name!r} is a known data set; omit {', '.join(extra)}, which only custom data sets accept")
    if labels is not None:  # in one folder, without class folders
        counted = {} if (name, incomplete) == ("imagenet_val", False) else {"count": None}
        description = (flat_val if name == "imagenet_val" else flat_c)(read_val_labels(labels, **counted))
    with status(f"listing {source}"), naming_options(_AS_OPTIONS):
        if name == "imagenet21k":
            known: Any = list_imagenet21k(source, complete=not incomplete, **pool)
        else:
            only = None if file_list is None else read_file_list(file_list)
            known = list_set(description, source, complete=not incomplete, only=only)
    with _kept(out), progress_bar(f"packing {name}", len(known)) as advance:
        _report(build_set(description, known, out, complete=not incomplete, progress=advance, **how), out)
    if name == "imagenet21k":
        say(f"{known.shortfall}; excluded classes and reasons: {out / 'left_out.txt'}")


def _build_own(
    name: str, source: Path, out: Path, role: str | None, *, incomplete: bool, reading: dict[str, Any], **how: Any
) -> None:
    from oodlit.base.roles import Role
    from oodlit.datamodules import descriptions
    from oodlit.datamodules.shards import build_shards, class_listing, listed_listing
    from oodlit.datamodules.shards.listing import read_text

    if role is None:
        hint = str(UnknownNameError.of("data set", name, descriptions()))
        raise UsageError(f"{hint}. For your own data set, add --role with one of: train, id, ood, shift, unit_test")
    if incomplete:
        raise UsageError("--incomplete is only for known data sets; your own data set may have any number of images")
    with status(f"listing {source}"), naming_options(_AS_OPTIONS):
        if reading["file_list"] is not None:
            listing = listed_listing(reading["file_list"], source)
        else:
            file = reading["class_names"]
            names = None if file is None else [*filter(None, map(str.strip, read_text(file).split("\n")))]
            listing = class_listing(source, Role(role), class_names=names, by_folder=not reading["flat"])
    how |= {"name": name, "role": Role(role), "class_names": listing.class_names}
    with _kept(out), progress_bar(f"packing {name}", len(listing)) as advance:
        _report(build_shards(listing, out, progress=advance, **how), out)


def _report(made: "ShardInfo", out: Path) -> None:
    classes = f", {len(made.class_names)} classes" if made.class_names else ""
    say(f"{out}: {made.num_samples} images of {made.name!r} ({made.role}{classes}) in {len(made.shards)} shards")


@contextmanager
def _kept(out: Path) -> Iterator[None]:
    """Add a note to the error of an interrupted build: it can be resumed."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        add_note(end, f"finished shards are kept in {out}; run the same command to resume")
        raise


def verify(
    directories: list[Path], *, headers_only: bool = False, duplicates: bool = False, max_pixels: int = _MAX_PIXELS
) -> int:
    """Read and check every sample of shards.

    Checks files, checksums, counts, labels, keys and images, and compares known data sets with their published
    numbers. The exit code is 1 if there is a problem.

    Args:
        directories: folders of shards
        headers_only: do not decode the images
        duplicates: report images that occur more than once
        max_pixels: report images with more pixels
    """
    from oodlit.datamodules import verify_set
    from oodlit.datamodules.shards import ShardReport, find_duplicates, read_info

    found: list[ShardReport] = []
    failed = False
    for directory in directories:
        try:
            splits = read_info(directory)
            total = sum(split.num_samples for split in splits.values()) if splits else None  # unknown without manifest
            with progress_bar(f"reading {directory.name or directory}", total) as advance:
                reports = verify_set(directory, decode=not headers_only, max_pixels=max_pixels, progress=advance)
        except DataError as error:  # go through the other folders first
            say(mask_text(str(error)))
            failed = True
            continue
        for report in reports:
            split = f" [{report.info.split}]" if report.info.split else ""
            verdict = "ok" if report.ok else f"{len(report.problems)} problems"
            say(f"{report.folder}{split}: {report.num_samples} images, {verdict}")
            for line in [*report.problems, *(f"file that is not part of a sample: {stray}" for stray in report.strays)]:
                say(f"  {line}")
        found += reports
    for group in find_duplicates(found) if duplicates else []:
        say(f"same image: {', '.join(group.keys)}")
    return int(failed or not all(report.ok for report in found))


def info(directories: list[Path]) -> None:
    """Describe folders of shards.

    Reads the manifest, or counts the samples if there is no manifest.

    Args:
        directories: folders of shards
    """
    from rich.table import Table
    from rich.text import Text

    from oodlit.datamodules.shards import shard_info

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("folder", "data set", "split", "role", "images", "classes", "shards", "MB", "remarks"):
        table.add_column(heading, justify="right" if heading in ("images", "classes", "shards", "MB") else "left")
    for directory in directories:
        with status(f"reading {directory}"):
            splits = shard_info(directory)
        for split in splits.values():
            size = "" if split.size is None else f"{split.size / 1e6:.1f}"
            classes = len(split.class_names) or len(split.group_counts) or len(split.label_counts) or ""
            row = (directory, split.name, split.split, split.role or "", split.num_samples, classes, len(split.shards))
            table.add_row(*(Text(str(cell)) for cell in (*row, size, _remarks(split))))
    console().print(table)


def _remarks(split: "ShardInfo") -> str:
    """Limitations of a data set that affect its numbers."""
    remarks = {
        "no manifest, counted": not split.split,
        "incomplete": not split.extra.get("complete", True),
        "generated": bool(split.extra.get("generated")),
        "no checksums": bool(split.split) and any(shard.sha256 is None for shard in split.shards),
    }
    return ", ".join(text for text, holds in remarks.items() if holds)
