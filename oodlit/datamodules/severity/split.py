"""Split a pool into images that estimate the severity of their class and images that test the detectors.

The part of an image only depends on its key, not on order, shards or processes. There are three ways: a fraction of
hashed keys (`part_of`), exact numbers per class if all keys are known (`draw`), and a list of files (`read_split`).
"""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.datamodules.keys import key_digest
from oodlit.datamodules.shards.listing import read_text

TEST_SHARE = 0.25
"""50 of 200 images, as published."""


class Part(str, Enum):
    """Purpose of an image of a pool."""

    ESTIMATION = "estimation"
    TEST = "test"

    def __str__(self) -> str:
        """Name in files and keys."""
        return self.value


def part_of(key: str, test_share: float = TEST_SHARE) -> Part:
    """Part of one image: TEST for about a fraction `test_share` of all keys, by their hash.

    Args:
        key: Key within the data set, or another stable name of the image.
        test_share: Fraction of test images, 0 < test_share < 1.

    Raises:
        InvalidArgumentError: The fraction is out of range.

    Example:
        >>> [str(part_of(f"sea/{i}")) for i in range(4)]
        ['estimation', 'test', 'estimation', 'test']
    """
    if not 0 < test_share < 1:
        raise InvalidArgumentError(f"expected test_share to be in (0, 1), got {test_share}")
    return Part.TEST if _rank(key) < test_share * 2.0**64 else Part.ESTIMATION


def draw(keys: Iterable[str], *, estimation: int = 150, test: int = 50) -> dict[str, Part]:
    """Draw images of one class by the hash of their keys: the first are TEST, the next ESTIMATION.

    Args:
        keys: Keys of all images of the class, each once, in any order.
        estimation: Number of images that estimate the severity, at least 1.
        test: Number of test images, at least 1.

    Returns:
        The drawn keys, sorted, with their part. If a class has too few images, all are drawn, and both numbers shrink
        in proportion (test images rounded to nearest, with one image per part if there are two).

    Raises:
        InvalidArgumentError: A number is below 1.

    Example:
        >>> drawn = draw(["a", "b", "c", "d", "e", "f"], estimation=3, test=1)
        >>> [(key, str(part)) for key, part in drawn.items()]
        [('a', 'test'), ('d', 'estimation'), ('e', 'estimation'), ('f', 'estimation')]
    """
    if estimation < 1 or test < 1:
        raise InvalidArgumentError(f"expected estimation and test to be at least 1, got {estimation} and {test}")
    wanted = estimation + test
    chosen = sorted(keys, key=lambda key: (_rank(key), key))[:wanted]
    if len(chosen) < wanted:
        test = (2 * len(chosen) * test + wanted) // (2 * wanted)
        test = max(1, min(test, len(chosen) - 1)) if len(chosen) > 1 else 0
    parts = {key: Part.TEST if index < test else Part.ESTIMATION for index, key in enumerate(chosen)}
    return {key: parts[key] for key in sorted(parts)}


def read_split(path: str | Path) -> dict[str, Part]:
    """Read a list of two columns, file and part ("estimation" or "test"), separated by a comma or a tab.

    Args:
        path: The list, in UTF-8; a first line "file,part" is a header.

    Raises:
        DataError: A line has other columns or an unknown part, a file is listed twice, or the list is empty.
    """
    text = read_text(path)
    parts: dict[str, Part] = {}
    known = {str(part): part for part in Part}
    separator = "\t" if "\t" in text else ","
    for number, row in enumerate(csv.reader(io.StringIO(text), delimiter=separator), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and cells == ["file", "part"]):
            continue
        if len(cells) != 2 or not cells[0] or cells[1] not in known:
            raise DataError(
                f"{path}, line {number}: expected a file and its part (estimation or test), separated by {separator!r},"
                f" got {separator.join(row)!r}"
            )
        name = cells[0].removeprefix("./")
        if name in parts:
            raise DataError(f"{path}, line {number}: {name!r} is listed twice")
        parts[name] = known[cells[1]]
    if not parts:
        raise DataError(f"{path}: expected lines of the form file,part; got an empty list")
    return parts


def _rank(key: str) -> int:
    """64-bit hash that decides the part of a key; independent of the hash that identifies keys."""
    return key_digest(f"severity\0{key}")


@dataclass(frozen=True)
class FolderSplit:
    """Split by the first folder of the key, as pools with a fixed split are packed.

    Args:
        release: Release of the packed images; empty = unknown.

    Example:
        >>> split = FolderSplit("fall11")
        >>> split("test/n02512053/1%2Ejpg"), split("n02512053/1%2Ejpg"), str(split)
        (<Part.TEST: 'test'>, None, 'as packed from fall11')
    """

    release: str = ""

    def __call__(self, key: str) -> Part | None:
        """Part of the image with this key; None if it is not used."""
        first = key.partition("/")[0]
        return Part(first) if first in set(map(str, Part)) else None

    def __str__(self) -> str:
        """Description in results."""
        return f"as packed from {self.release}" if self.release else "as packed"
