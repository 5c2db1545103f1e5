"""Select the classes of ImageNet-21k that are OOD for a classifier of ImageNet-1k.

Excluded are the ID classes, their hypernyms and hyponyms (computed from WordNet), oodlit's list `same_or_part.txt`, and
users' lists in the same format, each class with a reason. COOD's authors also excluded classes that look alike, and did
not publish that list, so a pool built here differs from theirs.

The relations are those of WordNet 3.0 (`is_a.txt.gz`, license in `WORDNET_LICENSE.txt`), including instance-of
relations. A wnid is "n" and the offset in WordNet 3.0; ids of 3.1 do not match.
"""

import gzip
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath

from oodlit.base.errors import DataError, UnknownNameError
from oodlit.base.known_classes.imagenet import first_lemmas, info_lines, wnids
from oodlit.datamodules.sets.description import Membership, published
from oodlit.datamodules.shards.listing import read_text

RELEASES = ("fall11", "winter21")
"""fall11 has 21,841 classes; winter21 is missing about 2,700 of them, mostly of people."""


@cache
def fall11_wnids() -> tuple[str, ...]:
    """The 21,841 classes of the fall 2011 release, sorted.

    Example:
        >>> len(fall11_wnids()), fall11_wnids()[0]
        (21841, 'n00004475')
    """
    return tuple(sorted(info_lines("imagenet22k_synsets.txt")))


def left_out(lists: Iterable[str | Path] = ()) -> dict[str, str]:
    """Classes of ImageNet-21k that are excluded as OOD classes for ImageNet-1k, each with a reason.

    Args:
        lists: Additional lists, see `read_exclusions`.

    Returns:
        Reason by wnid, sorted by wnid. If several apply, the first of: ID class, hypernym or hyponym, oodlit's list,
        additional lists in their order.

    Raises:
        DataError: A list cannot be read.

    Example:
        >>> found = left_out()
        >>> len(fall11_wnids()) - sum(wnid in found for wnid in fall11_wnids())
        18624
        >>> found["n01443537"], found["n02512053"], found["n02848216"]  # goldfish, fish, blade
        ('ID class', 'hypernym of n01440764', 'blade: part of n04270147 spatula')
    """
    reasons = dict(_left_out())
    for path in lists:
        reasons = read_exclusions(path) | reasons
    return dict(sorted(reasons.items()))


@cache
def _left_out() -> Mapping[str, str]:
    """Return the excluded classes with reasons, without the lists of the user."""
    own = resources.files("oodlit.datamodules.sets.imagenet21k") / "same_or_part.txt"
    known = frozenset(fall11_wnids())
    related = {wnid: reason for wnid, reason in relatives(wnids()).items() if wnid in known}
    ours = parse_exclusions(own.read_text(encoding="utf-8"), "same_or_part.txt")
    return {**ours, **related, **dict.fromkeys(wnids(), "ID class")}


def read_exclusions(path: str | Path) -> dict[str, str]:
    """Read a list of classes to exclude: one wnid and reason per line, separated by a space; "#" starts a comment.

    Raises:
        DataError: A line has no wnid or no reason, or repeats a class.
    """
    return parse_exclusions(read_text(path), path)


def parse_exclusions(text: str, where: str | Path) -> dict[str, str]:
    r"""Parse the text of a list for `read_exclusions`.

    Example:
        >>> parse_exclusions("# mine\nn02848216 looks like a knife\n", "list")
        {'n02848216': 'looks like a knife'}
    """
    reasons: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        wnid, _, reason = line.strip().partition(" ")
        if not is_wnid(wnid) or not reason.strip():
            raise DataError(
                f"{where}, line {number}: expected a wnid (n and eight digits), a space and a reason,"
                f" got {line.strip()!r}"
            )
        if wnid in reasons:
            raise DataError(f"{where}, line {number}: {wnid} is listed twice")
        reasons[wnid] = reason.strip()
    return reasons


def exclusions_text(reasons: Mapping[str, str]) -> str:
    r"""Format a list for `read_exclusions`.

    Example:
        >>> exclusions_text({"n02848216": "ID class"})
        'n02848216 ID class\n'
    """
    return "".join(f"{wnid} {reason}\n" for wnid, reason in reasons.items())


def is_wnid(name: str) -> bool:
    """Whether a name is a WordNet id: "n" and eight digits.

    Example:
        >>> is_wnid("n01443537"), is_wnid("goldfish")
        (True, False)
    """
    return len(name) == 9 and name[0] == "n" and name[1:].isascii() and name[1:].isdigit()


def wnid_of(path: str) -> str:
    """The last folder of a path that is a wnid, or the name of the file up to "_".

    Example:
        >>> wnid_of("n01443537/a.JPEG"), wnid_of("n01443537_36.JPEG")
        ('n01443537', 'n01443537')
    """
    pure = PurePosixPath(path)
    return next((name for name in reversed(pure.parent.parts) if is_wnid(name)), pure.name.partition("_")[0])


def in_part_and_class(path: PurePosixPath) -> Membership | None:
    """Membership by folder, if the folder is named by a wnid.

    Example:
        >>> in_part_and_class(PurePosixPath("n02512053/n02512053_1.JPEG")).group
        'n02512053 fish'
    """
    wnid = path.parent.name
    return Membership(group=class_name(wnid)) if is_wnid(wnid) else None


def class_name(wnid: str) -> str:
    """Wnid and first name of a class.

    Example:
        >>> class_name("n02512053")
        'n02512053 fish'
    """
    return f"{wnid} {first_lemmas()[wnid]}" if wnid in first_lemmas() else wnid


IMAGENET21K = published("imagenet21k", in_part_and_class)


@cache
def hypernyms() -> Mapping[str, tuple[str, ...]]:
    """Direct hypernyms by wnid, of ImageNet-21k's classes and all nouns above them.

    Example:
        >>> hypernyms()["n01443537"]  # goldfish: a cyprinid
        ('n01439121',)
    """
    packed = resources.files("oodlit.datamodules.sets.imagenet21k") / "is_a.txt.gz"
    rows = (line.split() for line in gzip.decompress(packed.read_bytes()).decode("ascii").splitlines())
    return {f"n{own}": tuple(f"n{above}" for above in hypernym) for own, *hypernym in rows}


@cache
def ancestors(wnid: str) -> frozenset[str]:
    """All direct and indirect hypernyms of a class.

    Raises:
        UnknownNameError: The table does not contain the wnid.

    Example:
        >>> "n02512053" in ancestors("n01443537")  # a goldfish is a fish
        True
    """
    if wnid not in hypernyms():
        raise UnknownNameError(f"expected the WordNet 3.0 id of an ImageNet-21k class or of a hypernym, got {wnid!r}")
    above = hypernyms()[wnid]
    return frozenset(above).union(*(ancestors(one) for one in above))


def relatives(wnids: Collection[str]) -> dict[str, str]:
    """Hypernyms and hyponyms of some classes, each with a reason.

    Args:
        wnids: Classes of the classifier.

    Returns:
        "hypernym of ..." or "hyponym of ..." by wnid, without `wnids` themselves. A noun that is both counts as
        hypernym.

    Raises:
        UnknownNameError: The table does not contain the wnid.

    Example:
        >>> found = relatives(["n01443537"])
        >>> found["n02512053"]
        'hypernym of n01443537'
    """
    own = frozenset(wnids)
    found: dict[str, str] = {}
    for wnid in sorted(own):
        for above in ancestors(wnid) - own:
            found.setdefault(above, f"hypernym of {wnid}")
    for wnid in hypernyms():
        if wnid not in own and wnid not in found and (above_it := ancestors(wnid) & own):
            found[wnid] = f"hyponym of {min(above_it)}"
    return found
