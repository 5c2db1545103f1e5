"""`oodlit data check`: compare data sets with their published counts and checksums."""

from pathlib import Path
from typing import TYPE_CHECKING

from oodlit.base.errors import DataError
from oodlit.cli.command import naming_options

if TYPE_CHECKING:
    from oodlit.datamodules import DatasetDescription


def check(folder: Path) -> int:
    """Check data sets against counts and checksums.

    Checks each subfolder that has the name of a known data set: archives by checksum, images by number and classes. The
    exit code is 1 if anything differs. Run this command before 'oodlit shards build'.

    Args:
        folder: folder with a subfolder NAME for each data set
    """
    from oodlit.cli.console import say
    from oodlit.datamodules import descriptions

    if not (found := [about for name, about in descriptions().items() if (folder / name).is_dir()]):
        raise DataError(f"{folder}: expected subfolders named as in 'oodlit data list', such as {folder / 'ninco'}")
    failed, build = 0, "to 'oodlit shards build'"
    for about in found:
        try:
            with naming_options({"complete=False": f"--incomplete {build}", "only=...": f"--file_list {build}"}):
                lines = _lines(about, folder / about.name)
            for line in lines:
                say(f"{about.name}: {line}")
        except DataError as error:
            failed += 1
            say(f"FAILED {error}")
    return int(failed > 0)


def _lines(about: "DatasetDescription", folder: Path) -> list[str]:
    """What matches.

    Raises:
        DataError: A checksum or a count differs.
    """
    from oodlit.cli.console import status
    from oodlit.datamodules.published_sets import holds_shards, list_set
    from oodlit.datamodules.shards.download import checksum

    archives = [file for file in about.files if (folder / file.name).is_file()]
    lines, places = [], [folder / file.name for file in archives] or [folder]
    for file in archives:
        with status(f"reading {folder / file.name}"):
            if file.md5 and (md5 := checksum(folder / file.name)) != file.md5:
                raise DataError(
                    f"{folder / file.name}: wrong checksum; download it again (expected MD5 {file.md5}, got {md5})"
                )
        lines.append(f"{file.name}: {'checksum matches' if file.md5 else 'no checksum is known'}")
    if not archives and holds_shards(folder):
        return [f"{folder} contains shards; run 'oodlit shards verify {folder}'"]
    if archives and (about.by_hand or len(about.files) > 1):
        return lines  # archives of archives, or of a part: unpack them to check counts
    with status(f"counting {places[0]}"):
        listing = list_set(about, places[0])
    next_step = f"oodlit shards build {about.name} {places[0]} --out shards/{about.name}"
    is_known = about.expected_count or about.per_group
    count = "as published" if is_known else "not compared, because no published number is known"
    return [*lines, f"{len(listing):,} images, {count}; next: {next_step}"]
