"""Is-a relations of ImageNet-21k's classes, from WordNet 3.0 (`is_a.txt.gz`, license in `WORDNET_LICENSE.txt`).

Hypernyms include instance-of relations. A wnid is "n" and the offset in WordNet 3.0; ids of 3.1 do not match.
"""

import gzip
from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources

from oodlit.base.errors import UnknownNameError


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
        raise UnknownNameError(f"expected the WordNet 3.0 id of an ImageNet-21k class or of its hypernym, got {wnid!r}")
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
