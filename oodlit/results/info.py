"""Descriptions of the data sets of a run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from oodlit.base.checks import check_items, check_names
from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.metrics.settings import Settings
from oodlit.metrics.severity.levels import level_starts
from oodlit.results.names import check_name


@dataclass(frozen=True)
class DatasetInfo:
    """One data set of a run.

    Args:
        name: Name of the data set; the part of every key before the first slash.
        role: Purpose of the data set.
        class_names: Names of the groups: OOD classes, unit tests or kinds of shift. Empty = the set has no groups.
        num_samples: Expected number of images; None = unknown.
        id_classes: For a pool, the number of classes that the classifier knows, which is the size of a level.
        split: For a pool, which of its images are test images, as text.

    Raises:
        InvalidArgumentError: A name is empty or has control characters, a group's name occurs twice, or a pool has
            fewer classes than the classifier.

    Example:
        >>> DatasetInfo("near", Role.OOD, ("seven", "eight")).class_names
        ('seven', 'eight')
    """

    name: str
    role: Role
    class_names: tuple[str, ...] = ()
    num_samples: int | None = None
    id_classes: int | None = None
    split: str = ""

    def __post_init__(self) -> None:
        """Check names."""
        check_name(self.name, "data set")
        check_names(f"DatasetInfo {self.name!r}", "class_names", self.class_names)
        object.__setattr__(self, "role", Role(self.role))
        object.__setattr__(self, "class_names", tuple(self.class_names))
        if self.role in NAMES_OF_LABELS:  # names of labels, which no table shows
            return
        for name in self.class_names:
            check_name(name, f"DatasetInfo {self.name!r}: class")
        if len(set(self.class_names)) < len(self.class_names):
            twice = sorted({n for n in self.class_names if self.class_names.count(n) > 1})
            raise InvalidArgumentError(f"DatasetInfo {self.name!r}: class names occur twice: {', '.join(twice[:5])}")
        if self.role is Role.POOL:
            self.check_pool(len(self.class_names))

    def check_pool(self, num_classes: int) -> None:
        """Raise unless this number of classes is enough for the levels of the pool."""
        if self.id_classes is None:
            raise InvalidArgumentError(
                f"DatasetInfo {self.name!r}: a pool requires id_classes, the number of classes known to the classifier"
            )
        if self.id_classes == 0:
            raise InvalidArgumentError(
                f"pool {self.name!r}: the size of the severity levels is the number of classes known to the classifier."
                " The network returns no logits, and the ID set has no class names; pass class_names for the ID set"
            )
        try:
            level_starts(num_classes, self.id_classes)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"pool {self.name!r}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        entry = asdict(self) | {"role": str(self.role), "class_names": list(self.class_names)}
        of_pools = ("id_classes", "split")
        return {name: value for name, value in entry.items() if self.role is Role.POOL or name not in of_pools}


def id_dataset(datasets: Sequence[DatasetInfo]) -> DatasetInfo:
    """The one data set with role ID.

    Raises:
        InvalidArgumentError: There is none, or more than one, a name occurs twice, or `datasets` is not a list.
    """
    check_items("Results", "datasets", datasets, DatasetInfo)
    names = [info.name for info in datasets]
    if len(set(names)) < len(names):
        raise InvalidArgumentError(
            f"data set names must be distinct, but one is repeated: {max(names, key=names.count)}"
        )
    found = [info for info in datasets if info.role is Role.ID]
    if len(found) != 1:
        raise InvalidArgumentError(
            f"expected exactly one data set with role 'id', got {len(found)} among these:"
            f" {', '.join(f'{i.name} ({i.role})' for i in datasets) or 'none'}"
        )
    return found[0]


def check_classes(settings: Settings, datasets: Sequence[DatasetInfo]) -> None:
    """Raise unless every class chosen in the settings is a group of its data set, and means are over OOD sets."""
    check_aggregates(settings, datasets)
    known = {info.name: info for info in datasets}
    for name, classes in settings.classes.items():
        UnknownNameError.check("data set in classes=", name, known)
        if not classes:
            raise InvalidArgumentError(f"classes={{{name!r}: []}}: expected at least one class")
        if known[name].role in NAMES_OF_LABELS:
            raise InvalidArgumentError(
                f"classes={{{name!r}: ...}}: expected an OOD set, a pool, unit tests or a shifted set, but {name!r} has"
                f" role {known[name].role}"
            )
        if known[name].role is Role.POOL:
            known[name].check_pool(len(set(classes)))
        for chosen in classes:
            UnknownNameError.check(f"class of {name!r}", chosen, known[name].class_names)


def check_aggregates(settings: Settings, datasets: Sequence[DatasetInfo]) -> None:
    """Raise unless every mean over data sets has its own name and consists of OOD sets.

    Raises:
        InvalidArgumentError: A mean has the name of a data set, no set, or a set twice, or of another role than OOD.
    """
    known = {info.name: info.role for info in datasets}
    for name, sets in settings.aggregates.items():
        check_name(name, "aggregate")
        if name in known or "/" in name:
            wish = "a name that has no slash and is not the name of a data set"
            raise InvalidArgumentError(f"aggregates: expected {wish}, got {name!r}")
        if not sets or len(set(sets)) < len(sets):
            raise InvalidArgumentError(
                f"aggregates: expected {name!r} to be a mean over distinct data sets, got {', '.join(sets) or 'none'}"
            )
        if other := [one for one in sets if known.get(one, Role.OOD) is not Role.OOD]:
            raise InvalidArgumentError(
                f"aggregates: {name!r} is a mean over OOD sets, but {other[0]!r} has role {known[other[0]]}"
            )
