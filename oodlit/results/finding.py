"""A finding: a remark that a run makes about its numbers."""

import msgspec


class FindingWarning(UserWarning):
    """Something in a run makes the numbers doubtful."""


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
