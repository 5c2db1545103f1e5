"""Choose some classes of a classifier, by index, name or WordNet id."""

from collections.abc import Sequence
from typing import TypeAlias

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.base.known_classes.imagenet import class_names as imagenet_names
from oodlit.base.known_classes.imagenet import wnids

ClassChoice: TypeAlias = Sequence[int | str] | None
"""Indices, names or WordNet ids of classes; None or empty = all."""


def chosen_indices(chosen: ClassChoice, names: Sequence[str], count: int = 0) -> tuple[int, ...]:
    """Class indices of chosen classes, ascending; () for all.

    Args:
        chosen: Indices, names or, for ImageNet-1k, WordNet ids or readable names.
        names: Names of all classes in the order of the logits; empty = unknown.
        count: Number of all classes, if `names` are unknown; 0 = unknown.

    Raises:
        InvalidArgumentError: An index is out of range, a class is chosen twice, or only one is chosen.
        UnknownNameError: There is no class of this name.

    Example:
        >>> chosen_indices(["dog", 0], ["cat", "bird", "dog"]), chosen_indices(["n01443537", 7], (), 1000)
        ((0, 2), (1, 7))
    """
    if isinstance(chosen, str):
        raise InvalidArgumentError(f"class_subset: expected a list of classes, got {chosen!r}")
    if not chosen:
        return ()
    count = len(names) or count
    known = {name: index for index, name in enumerate(names)}
    if count == len(wnids()) and (not names or {*names} in ({*wnids()}, {*imagenet_names()})):
        known |= {name: index for all_names in (imagenet_names(), wnids()) for index, name in enumerate(all_names)}
    for one in chosen:
        if isinstance(one, str):
            UnknownNameError.check("class", one, known)
        elif isinstance(one, bool) or one < 0 or (count and one >= count):
            raise InvalidArgumentError(f"class_subset: expected class indices from 0 to {count - 1}, got {one!r}")
    found = [known[one] if isinstance(one, str) else int(one) for one in chosen]
    if len(set(found)) < len(found) or len(found) < 2:
        raise InvalidArgumentError(
            f"class_subset: expected at least two different classes, got {len(set(found))} in a list of {len(found)}"
        )
    return tuple(sorted(found))
