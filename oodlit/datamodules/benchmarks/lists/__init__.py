"""Published lists of images: which files of a data set a benchmark uses.

Each list is a file `<name>.txt.xz` of this folder: one sorted path per line. The lists are those of OpenOOD v1.5 and
ImageNet-OOD.
"""

import lzma
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import PurePosixPath

from oodlit.base.errors import DataError, UnknownNameError
from oodlit.datamodules.subsets import SampleFacts

_VAL_NAME = re.compile(r"(?i)ILSVRC2012_val_\d{8}")
"""Name of a validation image of ImageNet-1k, to which some distributors add the wnid."""


@cache
def published_list(name: str) -> tuple[str, ...]:
    """The paths of a published list.

    Raises:
        UnknownNameError: There is no such list.

    Example:
        >>> len(published_list("textures_5160")), published_list("textures_5160")[0]
        (5160, 'banded/banded_0002.jpg')
    """
    folder = resources.files(__name__)
    UnknownNameError.check("list", name, {file.name[:-7] for file in folder.iterdir() if file.name.endswith(".txt.xz")})
    return tuple(lzma.decompress((folder / f"{name}.txt.xz").read_bytes()).decode().splitlines())


def listed(facts: Iterable[SampleFacts], names: Sequence[str], what: str) -> list[int]:
    """Find the samples of a list.

    Case and extension of a file do not matter, and it may be in other folders as well: "fog/1/a.JPEG" is the sample at
    "fog/1/n01440764/a.jpg". If several samples match, the one with the exact name counts.

    Args:
        facts: All samples of the source.
        names: Paths of the list.
        what: Name of the data set, for messages.

    Returns:
        Position of the sample for each name; -1 if it is missing.

    Raises:
        DataError: Several samples match a name, and not exactly one of them has this very name, or two names match the
            same sample.

    Example:
        >>> found = [SampleFacts(path, -1, -1) for path in ("x/b.PNG", "x/a.jpg", "y/a.jpg")]
        >>> listed(found, ["x/a.JPEG", "b.png", "c.png"], "mine")
        [1, 0, -1]
    """
    wanted: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        wanted.setdefault(_stem(PurePosixPath(name)), []).append(place)
    matches: dict[int, list[tuple[bool, int, str]]] = {}
    for position, (path, _, _) in enumerate(facts):
        pure = PurePosixPath(path)
        for place in wanted.get(_stem(pure), ()):
            wished = PurePosixPath(names[place])
            if _is_within(wished.parts[:-1], pure.parts[:-1]):
                matches.setdefault(place, []).append((pure.name == wished.name, position, path))
    positions = [-1] * len(names)
    for place, found in matches.items():
        exact = [one for one in found if one[0]] if len(found) > 1 else found
        if len(exact) != 1:
            raise DataError(
                f"{what}: {len(found)} images, such as {found[0][2]!r} and {found[1][2]!r}, match the listed file"
                f" {names[place]!r}; keep only one of these images"
            )
        positions[place] = exact[0][1]
    of_image: dict[int, int] = {}
    for place, position in enumerate(positions):
        if position >= 0 and (other := of_image.setdefault(position, place)) != place:
            raise DataError(
                f"{what}: the listed files {names[other]!r} and {names[place]!r} match the same image"
                f" {max(matches[place])[2]!r}; restore the original file names of the data set"
            )
    return positions


def _stem(path: PurePosixPath) -> str:
    """Name of a file without extension, in lower case."""
    known = _VAL_NAME.match(path.name)
    return (known[0] if known else path.stem).lower()


def _is_within(folders: Sequence[str], others: Sequence[str]) -> bool:
    """Whether all folders are among the others, in this order."""
    rest = iter(other.lower() for other in others)
    return all(folder.lower() in rest for folder in folders)
