"""Detect missing shards without a manifest, from the numbers in their names."""

import re
from collections import defaultdict
from collections.abc import Sequence

from oodlit.errors import DataError

_MOST_GAPS = 1000
"""With more gaps per file, the numbers are not a numbering but have another meaning (WordNet ids, dates)."""
_OTHER = re.compile(r"(?i).*\.(tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|lz4|z))")


def check_all_there(names: Sequence[str], neighbours: Sequence[str], where: str) -> None:
    """Refuse shards without a manifest if others of the same set are missing, or have an unsupported format.

    Args:
        names: The shards to read.
        neighbours: All files of the folder.
        where: The folder or pattern, for messages.

    Raises:
        DataError: A number is missing, or a file looks like a compressed shard.
    """
    if other := sorted(name for name in set(neighbours) - set(names) if _OTHER.fullmatch(name)):
        raise DataError(
            f"{where}: {other[0]!r} ({len(other)} in total) would be ignored, because shards must be uncompressed and"
            f" end in .tar; decompress it, remove it if it is a copy, or pass a list of shards"
        )
    if missing := _missing(names):
        raise DataError(
            f"{where}: missing {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''} ({len(missing)} in total)"
            f" among {len(names)} numbered shards without a manifest; restore them, or pass a list of shards"
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
