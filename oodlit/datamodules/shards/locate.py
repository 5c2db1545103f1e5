"""Locate shards by path, pattern, list or URL, and read their manifests."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from braceexpand import braceexpand

from oodlit.base.errors import DataError
from oodlit.base.secrets import mask_address
from oodlit.datamodules.keys import is_hidden, repeated
from oodlit.datamodules.shards.manifest import INFO_NAMES, ShardInfo, ShardRecord, local_info, parse_info, select_split
from oodlit.datamodules.shards.remote import Cache, is_url, split_url

Shards: TypeAlias = str | Path | Sequence[str | Path]
"""A folder of shards, a pattern, path or URL, or a list of paths or URLs."""
_MOST_GAPS = 1000
"""Largest number of gaps per file: with more gaps, the numbers do not count the files but are ids or dates."""
_OTHER = re.compile(r"(?i).*\.(tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|lz4|z))")


def locate(shards: Shards, split: str | None, cache: Cache) -> tuple[str, ShardInfo]:
    """Find shards by folder, path, URL, pattern or list.

    Args:
        shards: See `ShardSource`.
        split: Split of the manifest; None if there is only one.
        cache: Cache of remote manifests.

    Returns:
        Folder and records; samples = -1 if no manifest has the count. If the folder is "", names are paths or URLs.

    Raises:
        DataError: There is no shard, one is listed twice, or the files differ from the manifest.
        InvalidArgumentError: `split` is missing or unknown.
    """
    if not isinstance(shards, str | Path):
        return "", _from_paths([str(path) for path in shards], split, cache)
    text = str(shards)
    if is_url(text) and text.endswith("/"):
        manifest, shown = cache.fetch_manifest(text + INFO_NAMES[0]), mask_address(text)
        return text, select_split(parse_info(manifest, shown + INFO_NAMES[0]), split, shown)
    if is_url(text) or not Path(text).is_dir():
        paths = _expand(text)
        info = _from_paths(paths, split, cache)
        if not is_url(text) and re.search(r"[*?]", text) and any(record.samples < 0 for record in info.shards):
            _check_complete([path.rpartition("/")[2] for path in paths], (), text)
        return "", info
    return text, _from_folder(text, split)


def _from_folder(folder: str, split: str | None) -> ShardInfo:
    """Records of a folder's shards: from its manifest, or without counts if there is no manifest."""
    infos = local_info(folder)
    found = sorted(path.name for path in Path(folder).glob("*.tar") if not is_hidden(path.name))
    if infos:
        listed = {record.file for info in infos.values() for record in info.shards}
        if extra := [name for name in found if name not in listed]:
            raise DataError(
                f"{folder}: {len(extra)} shards (first: {extra[0]!r}) are not in the manifest; remove these files, or"
                " remove the manifest to count the samples again"
            )
        return select_split(infos, split, folder)
    if not found:
        raise DataError(f"{folder}: this folder contains no shards (*.tar); build them with `oodlit shards build`")
    if unpacked := [name for name in found if Path(folder, name).with_suffix("").is_dir()]:
        raise DataError(
            f"{folder}: {unpacked[0]!r} is probably not a shard, but an archive that was unpacked next to it. Use"
            f" {Path(folder, unpacked[0]).with_suffix('')} as a folder of images, or pass a list of shards"
        )
    _check_complete(found, [path.name for path in Path(folder).iterdir() if not is_hidden(path.name)], folder)
    return ShardInfo(split or "", tuple(ShardRecord(name, -1) for name in found))


def _expand(pattern: str) -> list[str]:
    paths = list(braceexpand(pattern)) if "{" in pattern and not Path(pattern).exists() else [pattern]
    found: list[str] = []
    for path in paths:
        if re.search(r"[*?]", path) and not is_url(path):
            root = Path(path).anchor or "."
            matches = Path(root).glob(path.removeprefix(Path(path).anchor))
            found.extend(sorted(str(match) for match in matches if not is_hidden(match.name)))
        else:
            found.append(path)
    if not found:
        raise DataError(f"{pattern!r}: no shard matches this pattern")
    return found


def _from_paths(paths: list[str], split: str | None, cache: Cache) -> ShardInfo:
    """Records of single shards, from manifests in their folders if they list the shards."""
    known: dict[str, dict[str, ShardRecord]] = {}
    records = []
    for path in paths:
        folder, name = split_url(path)[:2] if is_url(path) else path.rpartition("/")[::2]
        if folder not in known:
            infos = _remote_info(folder, cache) if is_url(path) else local_info(folder or ".")
            known[folder] = {record.file: record for info in infos.values() for record in info.shards}
        record = known.get(folder, {}).get(name, ShardRecord(name, -1))
        records.append(replace(record, file=path))
    if twice := repeated(paths):
        raise DataError(f"shard {mask_address(twice[0])} is listed twice")
    if not records:
        raise DataError("no shards were given; pass a folder, a pattern or a list of paths")
    return ShardInfo(split or "", tuple(records))


def _remote_info(folder: str, cache: Cache) -> dict[str, ShardInfo]:
    """Manifest in the folder of remote shards; empty if there is none."""
    url = f"{folder}/{INFO_NAMES[0]}"
    try:
        return parse_info(cache.fetch_manifest(url), mask_address(url))
    except DataError as error:
        if isinstance(error.__cause__, FileNotFoundError | PermissionError):
            return {}
        raise


def check_files(folder: str, info: ShardInfo, *, may_be_damaged: bool) -> None:
    """Check that local shards exist and have the size in the manifest.

    Args:
        folder: Folder of the shards; "" = their names are paths or URLs.
        info: The shards.
        may_be_damaged: Whether to skip shards with a known count, whose missing samples are marked when reading.

    Raises:
        DataError: A shard is missing, or its size differs from the manifest.
    """
    for record in info.shards:
        path = join(folder, record.file)
        if is_url(path) or (may_be_damaged and record.samples >= 0):
            continue
        if not Path(path).is_file():
            if Path(path).is_dir():
                raise DataError(f"{path}: expected a shard (.tar), got a folder; to read its shards, pass it alone")
            if not path.endswith(".tar"):
                raise DataError(f"{path} does not exist; expected a folder of shards, a shard, a pattern or a URL")
            raise DataError(f"shard {path} is missing; restore it, or rebuild the shards")
        size = Path(path).stat().st_size
        if record.size not in (None, size):
            raise DataError(
                f"shard {path}: expected {record.size} bytes according to the manifest, got {size}; restore it"
            )


def join(folder: str, file: str) -> str:
    """Join a folder and a file name to a path or URL.

    Example:
        >>> join("https://example.org/", "a.tar"), join("", "x/a.tar")
        ('https://example.org/a.tar', 'x/a.tar')
    """
    return f"{folder.rstrip('/')}/{file}" if folder else file


def _check_complete(names: Sequence[str], neighbours: Sequence[str], where: str) -> None:
    """Refuse shards without a manifest if other shards of the set are missing or have an unsupported format.

    Args:
        names: The shards to read.
        neighbours: All files of the folder.
        where: The folder or pattern, for messages.

    Raises:
        DataError: A number is missing, or a file looks like a compressed shard.
    """
    if other := sorted(name for name in set(neighbours) - set(names) if _OTHER.fullmatch(name)):
        raise DataError(
            f"{where}: {len(other)} files (first: {other[0]!r}) would be ignored, because shards must be uncompressed"
            " and end in .tar; decompress these files, remove them if they are copies, or pass a list of shards"
        )
    if missing := _missing(names):
        raise DataError(
            f"{where}: judging by the numbers in the file names, {len(missing)} shards (first:"
            f" {', '.join(missing[:3])}) are missing; restore them, or pass a list of shards"
        )


def _missing(names: Sequence[str]) -> list[str]:
    """Names that are missing from a numbering.

    Example:
        >>> _missing(["x-0000.tar", "x-0002.tar"]), _missing(["a-2019.tar", "a-2021.tar"])
        (['x-0001.tar'], [])
        >>> _missing(["x-1-of-3.tar", "x-3-of-3.tar"])
        ['x-2-of-3.tar']
    """
    by_template: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    runs = {name: list(re.finditer(r"\d+", name)) for name in names}
    for name, found in runs.items():
        for run in found:
            by_template[name[: run.start()], name[run.end() :]][run[0]] = None
    missing: dict[str, None] = {}
    for name, found in runs.items():
        # the last number that differs between files is their index
        for run in reversed(found):
            template = name[: run.start()], name[run.end() :]
            total = re.match(r"-of-0*(\d+)", template[1])
            if total or len(by_template[template]) > 1:
                missing |= dict.fromkeys(_gaps(*template, list(by_template[template]), int(total[1]) if total else 0))
                break
    return list(missing)


def _gaps(before: str, after: str, texts: list[str], total: int) -> list[str]:
    numbers = {int(text) for text in texts}
    padded = any(text.startswith("0") and len(text) > 1 for text in texts)
    first = min(0 if 0 in numbers or (total and total not in numbers) else 1, *numbers)
    if not padded and not total and min(numbers) > 1:
        return []
    stop = first + total if total else max(numbers) + 1
    if not total and stop - first > _MOST_GAPS * len(numbers):
        return []
    width = len(texts[0]) if padded or total else 1
    return [f"{before}{number:0{width}d}{after}" for number in range(first, stop) if number not in numbers]
