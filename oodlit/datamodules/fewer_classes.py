"""Reduce a run to some of the known classes: images of the others are left out, or become an OOD set."""

from collections.abc import Sequence
from dataclasses import replace

from oodlit.base.errors import DataError
from oodlit.base.roles import KNOWN_CLASSES, Role
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.subsets import SubsetSource, facts_of


def with_class_subset(
    streams: Sequence[Stream], names: Sequence[str], kept: Sequence[int], dropped_as: str | None = None
) -> list[Stream]:
    """Keep the images of some classes, and number these classes 0, 1, ....

    Streams of unknown classes stay as they are.

    Args:
        streams: Streams with labels in one order of classes.
        names: Names of all classes in this order; empty = unknown.
        kept: Indices of the classes to keep, ascending.
        dropped_as: Name of an OOD set with the ID images of the other classes; None (default) = they are left out.

    Raises:
        DataError: No image of a stream remains, or no ID image has another class.
    """
    found = [_subset(stream, names, kept) if stream.role in KNOWN_CLASSES else stream for stream in streams]
    if dropped_as is not None:
        inside = next(stream for stream in streams if stream.role is Role.ID)
        found.append(_dropped(inside, names, set(kept), dropped_as))
    return found


def _subset(stream: Stream, names: Sequence[str], kept: Sequence[int]) -> Stream:
    labels = {old: new for new, old in enumerate(kept)}
    positions = [position for position, fact in enumerate(facts_of(stream.source)) if fact.label in labels]
    if not positions:
        raise DataError(f"data set {stream.name!r}: no image has one of the {len(kept)} classes of class_subset")
    known = tuple(names[index] for index in kept) if names else ()
    class_names = stream.class_names if stream.role is Role.SHIFT else known
    source = SubsetSource(stream.source, positions, labels=labels)
    return replace(stream, source=source, class_names=class_names, label_names=known)


def _dropped(inside: Stream, names: Sequence[str], kept: set[int], name: str) -> Stream:
    facts = list(facts_of(inside.source))
    positions = [position for position, fact in enumerate(facts) if fact.label >= 0 and fact.label not in kept]
    if not positions:
        raise DataError(f"dropped_as={name!r}: class_subset drops no image of {inside.name!r}; omit dropped_as")
    present = sorted({facts[position].label for position in positions})
    groups = {old: new for new, old in enumerate(present)}
    source = SubsetSource(inside.source, positions, labels={}, groups=groups, group_by_label=True)
    class_names = tuple(names[index] if names else str(index) for index in present)
    return Stream(name, Role.OOD, source, class_names)
