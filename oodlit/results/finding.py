"""A finding: a remark that a run makes about its numbers."""

import msgspec

from oodlit.base.text.singular import singular


class FindingWarning(UserWarning):
    """Something in a run makes the numbers doubtful."""


_OF_DETECTORS = frozenset({"controls", "failed", "reversed", "ties"})
"""Kinds of findings about single detectors."""


class Finding(msgspec.Struct, frozen=True):
    """A remark that a run makes about its numbers.

    Args:
        kind: "chance", "classes", "backwards", "reversed", "accuracy", "class_lists", "random", or another
            kind that a caller chooses.
        text: One or two sentences.
        is_good: True for a sign that the setup is right.
    """

    kind: str
    text: str
    is_good: bool = False

    def __post_init__(self) -> None:
        """Put nouns after the number 1 into the singular."""
        msgspec.structs.force_setattr(self, "text", singular(self.text))

    @property
    def is_of_detectors(self) -> bool:
        """Whether it is about the numbers of single detectors, not about all numbers of the run."""
        return self.kind in _OF_DETECTORS
