"""One thing that a run says of itself, beside its numbers."""

from typing import NamedTuple


class FindingWarning(UserWarning):
    """A run has found something that makes its numbers doubtful."""


class Finding(NamedTuple):
    """One thing that a run says of itself.

    Args:
        kind: "chance", "classes", "backwards", "accuracy", "class_lists" or what else a caller gives.
        text: One or two sentences.
        is_good: True for a sign that the set-up is right.
    """

    kind: str
    text: str
    is_good: bool = False
