"""What is known of the streams of a run, and with which settings its metrics are computed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import index
from typing import Any

from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.metrics.intervals import check_confidence
from oodlit.metrics.ranking import exact_share
from oodlit.metrics.threshold import check_rule
from oodlit.results.names import check_name
from oodlit.roles import NAMES_OF_LABELS, Role

__all__ = ["DatasetInfo", "Settings", "check_classes", "id_dataset", "percent"]


@dataclass(frozen=True)
class DatasetInfo:
    """One stream of a run.

    Args:
        name: Name of the data set; the part of every key before the first slash.
        role: What the stream is for.
        class_names: Names of the groups: OOD classes, unit tests or kinds of shift. Empty = the set has no groups.
        num_samples: Number of images that the stream should give; None = not stated.

    Raises:
        InvalidArgumentError: A name is empty or has control characters, or a group's name occurs twice.

    Example:
        >>> DatasetInfo("near", Role.OOD, ("seven", "eight")).class_names
        ('seven', 'eight')
    """

    name: str
    role: Role
    class_names: tuple[str, ...] = ()
    num_samples: int | None = None

    def __post_init__(self) -> None:
        """Check names."""
        check_name(self.name, "data set")
        class_names: object = self.class_names
        if isinstance(class_names, str):
            raise InvalidArgumentError(f"DatasetInfo {self.name!r}: class_names={self.class_names!r}; a list is needed")
        object.__setattr__(self, "role", Role(self.role))
        object.__setattr__(self, "class_names", tuple(self.class_names))
        if self.role in NAMES_OF_LABELS:  # names of labels, which no table shows
            return
        for name in self.class_names:
            check_name(name, f"DatasetInfo {self.name!r}: class")
        if len(set(self.class_names)) < len(self.class_names):
            twice = sorted({n for n in self.class_names if self.class_names.count(n) > 1})
            raise InvalidArgumentError(f"DatasetInfo {self.name!r}: class names occur twice: {', '.join(twice[:5])}")

    def to_json(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        return asdict(self) | {"role": str(self.role), "class_names": list(self.class_names)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "DatasetInfo":
        """What `to_json` gave."""
        return cls(entry["name"], Role(entry["role"]), tuple(entry["class_names"]), entry["num_samples"])


@dataclass(frozen=True)
class Settings:
    """How the metrics of a result are computed.

    Numbers are kept as Python's own, so that settings read back from a file are the same.

    Args:
        tpr: Share of ID images to keep.
        rule: "attained" or "interpolated".
        unit_test_limit: Largest FPR with which a unit test passes.
        bootstrap: Repetitions of the bootstrap for means and AUROC; 0 = no such intervals.
        seed: Seed of the bootstrap.
        confidence: Nominal coverage of all intervals.
        der: Shares of correctly classified training images to keep, for the detection error rates.
        classes: Data sets restricted to some of their OOD classes; others are complete.

    Raises:
        InvalidArgumentError: A value is outside its range.
    """

    tpr: float = 0.95
    rule: str = "attained"
    unit_test_limit: float = 0.10
    bootstrap: int = 1000
    seed: int = 0
    confidence: float = 0.95
    der: Sequence[float] = (0.95, 0.99)
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check ranges."""
        check_rule(self.rule)
        check_confidence(self.confidence)
        plain: dict[str, Any] = {
            name: float(exact_share(getattr(self, name), name)) for name in ("tpr", "unit_test_limit", "confidence")
        }
        der: object = self.der
        if isinstance(der, str) or not isinstance(der, Sequence):
            raise InvalidArgumentError(f"der={self.der!r}: a list of shares is needed, such as (0.95, 0.99)")
        plain["der"] = tuple(float(exact_share(share, "der")) for share in self.der)
        if len(set(plain["der"])) < len(plain["der"]):
            raise InvalidArgumentError(f"der={self.der!r}: a share occurs twice")
        plain["bootstrap"] = _count(self.bootstrap, "bootstrap", "a number of repetitions, 0 for none")
        plain["seed"] = _count(self.seed, "seed", "an integer >= 0")
        for name, classes in self.classes.items():
            if isinstance(classes, str):
                raise InvalidArgumentError(f"classes={{{name!r}: {classes!r}}}: a list of class names is needed")
        plain["classes"] = {name: list(classes) for name, classes in self.classes.items()}
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    @property
    def fpr_name(self) -> str:
        """Name of the FPR in tables: fpr95 for tpr=0.95."""
        return f"fpr{percent(self.tpr)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        return asdict(self) | {"der": list(self.der)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Settings":
        """What `to_json` gave."""
        return cls(**{**entry, "der": tuple(entry["der"])})


def percent(share: float) -> str:
    """A share as it is written in metric names.

    Example:
        >>> percent(0.95), percent(0.995)
        ('95', '99.5')
    """
    value = exact_share(share) * 100
    # All digits: with fewer, 0.9500001 would have the name of 0.95.
    return str(value.numerator) if value.denominator == 1 else str(float(value))


def _count(value: object, name: str, needed: str) -> int:
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0 or isinstance(value, bool):
        raise InvalidArgumentError(f"{name}={value!r}: {needed}")
    return number


def id_dataset(datasets: Sequence[DatasetInfo]) -> DatasetInfo:
    """The one data set with role ID.

    Raises:
        InvalidArgumentError: There is none, or more than one, or a name occurs twice.
    """
    names = [info.name for info in datasets]
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"data set names must be distinct: {', '.join(names)}")
    found = [info for info in datasets if info.role is Role.ID]
    if len(found) != 1:
        raise InvalidArgumentError(
            f"exactly one data set with role 'id' is needed, there are {len(found)}:"
            f" {', '.join(f'{i.name} ({i.role})' for i in datasets)}"
        )
    return found[0]


def check_classes(settings: Settings, datasets: Sequence[DatasetInfo]) -> None:
    """Raise unless every class chosen in the settings is a group of its data set."""
    known = {info.name: info for info in datasets}
    for name, classes in settings.classes.items():
        if name not in known:
            raise UnknownNameError.of("data set in classes=", name, known)
        if not classes:
            raise InvalidArgumentError(f"classes={{{name!r}: []}}: at least one class is needed")
        if known[name].role in NAMES_OF_LABELS:
            raise InvalidArgumentError(
                f"classes={{{name!r}: ...}}: its role is {known[name].role}; only groups can be chosen"
            )
        for chosen in classes:
            if chosen not in known[name].class_names:
                raise UnknownNameError.of(f"class of {name!r}", chosen, known[name].class_names)
