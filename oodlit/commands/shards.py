"""`oodlit shards`: write, check and describe shards."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from oodlit.commands import UsageError

if TYPE_CHECKING:
    from oodlit.datamodules.shards import Listing

__all__ = ["build", "info", "verify"]


def build(
    name: str,
    source: Path,
    *,
    out: Path,
    role: Literal["train", "id", "ood", "shift", "unit_test"] | None = None,
    file_list: Path | None = None,
    class_names: Path | None = None,
    flat: bool = False,
    incomplete: bool = False,
    shard_size: int = 1000,
    workers: int = 2,
    check: Literal["none", "header", "decode"] = "header",
) -> None:
    """Pack the images of a folder or archive into shards.

    Archives are not unpacked; image bytes are copied as they are. A build that was interrupted goes on when it is
    called again. NAME is a data set that 'oodlit list datasets' shows, or any name of your own; then --role says what
    the images are for, and folders are classes.

    Args:
        name: a known data set, or a name of your own
        source: folder, .zip, .tar or compressed tar
        out: folder of the shards
        role: what a set of your own is for: train, id, ood, shift or unit_test
        file_list: .csv with the columns path, label, group, or a text file with a path per line; for a set of your own
        class_names: text file with a class folder per line, in the order of the classifier; for a set of your own
        flat: the images have no classes, whatever their folders
        incomplete: accept a known set of which images are missing
        shard_size: images per shard
        workers: shards that are written at the same time
        check: "header": every image must have a readable header; "decode": all pixels; "none": nothing is looked at
    """
    from oodlit.console import console
    from oodlit.datamodules import descriptions
    from oodlit.datamodules.published import build_set, list_set
    from oodlit.datamodules.shards import build_shards, progress_bar
    from oodlit.errors import UnknownNameError
    from oodlit.roles import Role

    description = descriptions().get(name)
    own = {"--role": role, "--file_list": file_list, "--class_names": class_names, "--flat": flat or None}
    if description is not None:
        if extra := [option for option, value in own.items() if value is not None]:
            raise UsageError(f"{name!r} is a known data set; {', '.join(extra)} is for sets of your own")
        total = len(list_set(description, source, complete=not incomplete))
        with progress_bar(f"packing {name}", total) as advance:
            made = build_set(
                description,
                source,
                out,
                complete=not incomplete,
                shard_size=shard_size,
                workers=workers,
                check=check,
                progress=advance,
            )
    else:
        if role is None:
            hint = str(UnknownNameError.of("data set", name, descriptions()))
            raise UsageError(f"{hint} - for a set of your own add --role train, id, ood, shift or unit_test")
        listing = _listing(source, Role(role), file_list=file_list, class_names=class_names, flat=flat)
        with progress_bar(f"packing {name}", len(listing)) as advance:
            made = build_shards(
                listing,
                out,
                name=name,
                role=Role(role),
                class_names=listing.class_names,
                shard_size=shard_size,
                workers=workers,
                check=check,
                progress=advance,
            )
    classes = f", {len(made.class_names)} classes" if made.class_names else ""
    console().print(
        f"{out}: {made.num_samples} images of {made.name!r} ({made.role}{classes}) in {len(made.shards)} shards",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _listing(source: Path, role: object, *, file_list: Path | None, class_names: Path | None, flat: bool) -> "Listing":
    from oodlit.datamodules.shards import class_listing, listed_listing
    from oodlit.roles import Role

    names = None if class_names is None else class_names.read_text(encoding="utf-8").split("\n")
    names = None if names is None else [line.strip() for line in names if line.strip()]
    if file_list is not None:
        return listed_listing(file_list, source)
    return class_listing(source, Role(role), class_names=names, by_folder=not flat)


def verify(directories: list[Path], *, headers_only: bool = False, duplicates: bool = False) -> int:
    """Read every sample of shards; check files, checksums, counts, labels, keys and images.

    The exit code is 1 if anything is wrong.

    Args:
        directories: folders of shards
        headers_only: do not decode the images
        duplicates: look for images that occur more than once, within a folder and across folders
    """
    from oodlit.console import console
    from oodlit.datamodules.shards import Verification, find_duplicates, progress_bar, shard_info, verify_shards

    found: list[Verification] = []
    for directory in directories:
        total = sum(split.num_samples for split in shard_info(directory).values())
        with progress_bar(f"reading {directory}", total) as advance:
            found += verify_shards(directory, decode=not headers_only, progress=advance)
    say = console()
    for report in found:
        split = f" [{report.info.split}]" if report.info.split else ""
        verdict = "ok" if report.ok else f"{len(report.problems)} problems"
        say.print(f"{report.folder}{split}: {report.num_samples} images, {verdict}", highlight=False, markup=False)
        for problem in report.problems:
            say.print(f"  {problem}", highlight=False, markup=False, soft_wrap=True)
        for stray in report.strays:
            say.print(f"  no part of a sample: {stray}", highlight=False, markup=False, soft_wrap=True)
    for group in find_duplicates(found) if duplicates else []:
        say.print(f"same image: {', '.join(group.keys)}", highlight=False, markup=False, soft_wrap=True)
    return int(not all(report.ok for report in found))


def info(directories: list[Path]) -> None:
    """Say what folders of shards hold, from their manifests; they are counted where there is none.

    Args:
        directories: folders of shards
    """
    from rich.table import Table
    from rich.text import Text

    from oodlit.console import console
    from oodlit.datamodules.shards import shard_info

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("folder", "data set", "split", "role", "images", "classes", "shards", "MB"):
        table.add_column(heading, justify="right" if heading in ("images", "classes", "shards", "MB") else "left")
    for directory in directories:
        for split in shard_info(directory).values():
            size = "" if split.size is None else f"{split.size / 1e6:.1f}"
            classes = len(split.class_names) or len(_found(split.label_counts, split.group_counts)) or ""
            row = (directory, split.name, split.split, split.role or "", split.num_samples, classes, len(split.shards))
            table.add_row(*(Text(str(cell)) for cell in (*row, size)))
    console().print(table)


def _found(labels: Mapping[int, int], groups: Mapping[int, int]) -> Mapping[int, int]:
    return groups or labels
