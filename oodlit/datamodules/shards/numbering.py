"""Which shards are missing, by the names of those that are there. Only a manifest knows it better."""

import re
from collections import defaultdict
from collections.abc import Sequence

from oodlit.errors import DataError

_SHARE = 1000
"""Names with more gaps than this per file are no numbering: the numbers mean something else (WordNet ids, dates)."""
_OTHER = re.compile(r"(?i).*\.(tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|lz4|z))")


def check_all_there(names: Sequence[str], neighbours: Sequence[str], where: str) -> None:
    """Refuse shards without manifest if others of the same set are missing, or lie there in a form that is not read.

    Args:
        names: The shards that would be read.
        neighbours: All files of the folder.
        where: The folder or pattern, for messages.

    Raises:
        DataError: A number is left out, or a file looks like a compressed shard.
    """
    if other := sorted(name for name in set(neighbours) - set(names) if _OTHER.fullmatch(name)):
        raise DataError(
            f"{where}: {other[0]!r} ({len(other)} in all) is not read: shards are uncompressed and end in .tar; unpack"
            " it (gunzip), remove it if it is a second copy, or pass the list of the shards that are meant"
        )
    if missing := _missing(names):
        raise DataError(
            f"{where}: {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''} ({len(missing)} in all) missing"
            f" among {len(names)} numbered shards without manifest; restore them, or pass the list of the shards that"
            " are meant"
        )


def _missing(names: Sequence[str]) -> list[str]:
    """Names that a numbering leaves out.

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
        # the last number that differs between files is the one that counts them
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
    if not total and stop - first > _SHARE * len(numbers):
        return []
    width = len(texts[0]) if padded or total else 1
    return [f"{before}{number:0{width}d}{after}" for number in range(first, stop) if number not in numbers]
