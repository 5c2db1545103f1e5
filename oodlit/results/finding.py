"""A remark of a run about itself, beside its numbers."""

import msgspec


class FindingWarning(UserWarning):
    """A run has found something that makes its numbers doubtful."""


class Finding(msgspec.Struct, frozen=True):
    """A remark of a run about itself.

    Args:
        kind: "chance", "classes", "backwards", "reversed", "accuracy", "class_lists", "random", or another
            kind that a caller chooses.
        text: One or two sentences.
        is_good: True for a sign that the setup is right.
    """

    kind: str
    text: str
    is_good: bool = False
