"""What a stream of images is for in a run."""

from enum import Enum

__all__ = ["KNOWN_CLASSES", "NAMES_OF_LABELS", "UNKNOWN_CLASSES", "Role"]


class Role(str, Enum):
    """The role of one stream; decides what happens with its outputs."""

    TRAIN = "train"
    """Training images of the classifier: detectors are fitted on them, thresholds of DER taken from them."""
    ID = "id"
    """In-distribution validation images: the positive class of every OOD metric. Exactly one in a run."""
    OOD = "ood"
    """Images of classes that the classifier does not know. Groups are OOD classes."""
    SHIFT = "shift"
    """Known classes under input shift (corruptions, renditions); labels are kept. Groups are kinds of shift."""
    UNIT_TEST = "unit_test"
    """Synthetic images that nothing should accept. Groups are the tests. They never enter means."""

    POOL = "pool"
    """Images of many classes that the classifier does not know, sorted by severity and evaluated at levels of it; a
    part of each class tells its severity. Groups are OOD classes."""

    def __str__(self) -> str:
        """The plain value, as in tables and files."""
        return self.value

    @property
    def split_name(self) -> str:
        """The split of a set with this role, unless its builder names another."""
        return {Role.TRAIN: "train", Role.ID: "validation"}.get(self, "test")


KNOWN_CLASSES = frozenset({Role.TRAIN, Role.ID, Role.SHIFT})
"""Their images show classes that the classifier knows: they can have labels."""
UNKNOWN_CLASSES = frozenset({Role.OOD, Role.UNIT_TEST, Role.POOL})
"""Their images show what the classifier does not know: whatever it predicts is wrong."""
NAMES_OF_LABELS = frozenset({Role.TRAIN, Role.ID})
"""Their class names belong to the labels; those of all other roles belong to the groups."""
