"""Which images of a pool estimate the severity of their class, and which test the detectors on it.

The part of an image follows from its key alone, whatever the order, the shards and the number of processes. Three ways:
a share of hashed keys (`part_of`), exact numbers per class once all its keys are known (`draw`), and a list of files
(`read_split`).
"""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from oodlit.datamodules.keys import key_digest
from oodlit.datamodules.shards.listing import read_text
from oodlit.errors import DataError, InvalidArgumentError

TEST_SHARE = 0.25
"""50 of 200 images, as published."""


class Part(str, Enum):
    """What an image of a pool is for."""

    ESTIMATION = "estimation"
    TEST = "test"

    def __str__(self) -> str:
        """The name in files and keys."""
        return self.value


def part_of(key: str, test_share: float = TEST_SHARE) -> Part:
    """The part of one image: TEST for about `test_share` of all keys, by their hash.

    Args:
        key: Key within the data set, or another name that stays with the image.
        test_share: Share of the test images, 0 < share < 1.

    Raises:
        InvalidArgumentError: The share is out of its range.

    Example:
        >>> [str(part_of(f"sea/{i}")) for i in range(4)]
        ['estimation', 'test', 'estimation', 'test']
    """
    if not 0 < test_share < 1:
        raise InvalidArgumentError(f"test_share={test_share}; a share above 0 and below 1 is needed")
    return Part.TEST if _rank(key) < test_share * 2.0**64 else Part.ESTIMATION


def draw(keys: Iterable[str], *, estimation: int = 150, test: int = 50) -> dict[str, Part]:
    """Draw the images of one class by the hash of their keys: the first are TEST, the next ESTIMATION.

    Args:
        keys: Keys of all images of the class, each once, in any order.
        estimation: Number of images that estimate the severity, at least 1.
        test: Number of test images, at least 1.

    Returns:
        The drawn keys, sorted, with their part. Of a class that has too few images all are drawn, and both numbers
        shrink in proportion (test images rounded to the nearest, but one of each part where there are two images).

    Raises:
        InvalidArgumentError: A number is below 1.

    Example:
        >>> drawn = draw(["a", "b", "c", "d", "e", "f"], estimation=3, test=1)
        >>> [(key, str(part)) for key, part in drawn.items()]
        [('a', 'test'), ('d', 'estimation'), ('e', 'estimation'), ('f', 'estimation')]
    """
    if estimation < 1 or test < 1:
        raise InvalidArgumentError(f"draw(estimation={estimation}, test={test}): both must be at least 1")
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
        DataError: A line has other columns or another part, a file is listed twice, or the list is empty.
    """
    text = read_text(path)
    parts: dict[str, Part] = {}
    known = {str(part): part for part in Part}
    for number, row in enumerate(csv.reader(io.StringIO(text), delimiter="\t" if "\t" in text else ","), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and cells == ["file", "part"]):
            continue
        if len(cells) != 2 or not cells[0] or cells[1] not in known:
            raise DataError(
                f"{path}, line {number}: {','.join(row)!r}; a file and its part (estimation or test) are needed"
            )
        name = cells[0].removeprefix("./")
        if name in parts:
            raise DataError(f"{path}, line {number}: {name!r} is listed twice")
        parts[name] = known[cells[1]]
    if not parts:
        raise DataError(f"{path}: the list is empty; a line per file is needed: file,part")
    return parts


def _rank(key: str) -> int:
    """64 bits that decide over a key; other ones than those that tell keys apart."""
    return key_digest(f"severity\0{key}")


@dataclass(frozen=True)
class FolderSplit:
    """The part of an image is the first folder of its key: how pools with a fixed split are packed.

    Args:
        release: Of the images that were packed, for the record; empty = unknown.

    Example:
        >>> split = FolderSplit("fall11")
        >>> split("test/n02512053/1%2Ejpg"), split("n02512053/1%2Ejpg"), str(split)
        (<Part.TEST: 'test'>, None, 'as packed from fall11')
    """

    release: str = ""

    def __call__(self, key: str) -> Part | None:
        """The part of the image with this key within its set; None = it is used for neither."""
        first = key.partition("/")[0]
        return Part(first) if first in set(map(str, Part)) else None

    def __str__(self) -> str:
        """As results describe it."""
        return f"as packed from {self.release}" if self.release else "as packed"
