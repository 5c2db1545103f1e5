"""Choose some classes of a classifier, by index, name or WordNet id."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.base.known_classes.imagenet import class_names as imagenet_names
from oodlit.base.known_classes.imagenet import wnids

ClassChoice: TypeAlias = Iterable[Any] | None
"""Indices, names or WordNet ids of classes; None or empty = all."""


def as_choice(chosen: object) -> list[Any]:
    """Return chosen classes as a list; empty for all.

    Raises:
        InvalidArgumentError: It is text, which is one class and not a list, or not iterable.
    """
    if chosen is None:
        return []
    if isinstance(chosen, str) or not isinstance(chosen, Iterable):
        raise InvalidArgumentError(f"class_subset: expected a list of classes, got {chosen!r}")
    return list(chosen)


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
    if not (classes := as_choice(chosen)):
        return ()
    count = len(names) or count
    known = {name: index for index, name in enumerate(names)}
    if count == len(wnids()) and (not names or {*names} in ({*wnids()}, {*imagenet_names()})):
        known |= {name: index for all_names in (imagenet_names(), wnids()) for index, name in enumerate(all_names)}
    for one in classes:
        if isinstance(one, str):
            UnknownNameError.check("class", one, known)
        elif not hasattr(one, "__index__") or isinstance(one, bool) or one < 0 or (count and one >= count):
            upper = f"to {count - 1}" if count else "upwards"
            raise InvalidArgumentError(f"class_subset: expected class indices from 0 {upper}, got {one!r}")
    found = [known[one] if isinstance(one, str) else int(one) for one in classes]
    if same := [one for place, one in enumerate(classes) if found[place] in found[:place]]:
        raise InvalidArgumentError(f"class_subset: expected different classes, but {same[0]!r} is the same as another")
    if len(found) < 2:
        raise InvalidArgumentError(f"class_subset: expected at least two different classes, got only {classes[0]!r}")
    return tuple(sorted(found))
