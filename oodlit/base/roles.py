"""Roles of streams of images in a run."""

from enum import Enum

from oodlit.base.errors import InvalidArgumentError

__all__ = ["KNOWN_CLASSES", "NAMES_OF_LABELS", "UNKNOWN_CLASSES", "Role"]


class Role(str, Enum):
    """The role of a stream, which decides how its outputs are used."""

    TRAIN = "train"
    """Training images of the classifier, used for fitting detectors and for the thresholds of DER."""
    ID = "id"
    """In-distribution validation images: the positive class of every OOD metric. A run has exactly one such stream."""
    OOD = "ood"
    """Images of classes unknown to the classifier. Groups are OOD classes."""
    SHIFT = "shift"
    """Known classes under input shift (corruptions, renditions), with their labels. Groups are kinds of shift."""
    UNIT_TEST = "unit_test"
    """Synthetic images that no classifier should accept. Groups are the tests. They are never part of means."""
    POOL = "pool"
    """Images of many unknown classes, sorted by severity and evaluated at several levels; part of each class estimates
    its severity. Groups are OOD classes."""

    @classmethod
    def _missing_(cls, value: object) -> "Role":
        """Raise for an unknown role.

        Raises:
            InvalidArgumentError: Always, since enumerations call this for unknown values.
        """
        raise InvalidArgumentError(f"expected a role ({', '.join(map(repr, map(str, cls)))}), got {value!r}")

    def __str__(self) -> str:
        """Return the plain value, as in tables and files."""
        return self.value

    @property
    def split_name(self) -> str:
        """The default split of a set with this role."""
        return {Role.TRAIN: "train", Role.ID: "validation"}.get(self, "test")


KNOWN_CLASSES = frozenset({Role.TRAIN, Role.ID, Role.SHIFT})
"""Roles with classes known to the classifier: images can have labels."""
UNKNOWN_CLASSES = frozenset({Role.OOD, Role.UNIT_TEST, Role.POOL})
"""Roles with classes unknown to the classifier: every prediction is wrong."""
NAMES_OF_LABELS = frozenset({Role.TRAIN, Role.ID})
"""Roles with class names for labels. For all other roles, class names are for groups."""
