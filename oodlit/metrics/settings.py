"""Settings for computing the metrics of a result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import exact_number
from oodlit.metrics.numerics.acceptance import exact_tpr
from oodlit.metrics.numerics.ranking import as_count, exact_share
from oodlit.metrics.uncertainty.intervals import check_confidence


@dataclass(frozen=True)
class Settings:
    """Settings for computing the metrics of a result.

    Numbers are stored as Python's own types, so that settings read from a file are equal.

    Args:
        tpr: Fraction of ID images to keep.
        rule: "attained" or "interpolated".
        unit_test_limit: Largest FPR at which a unit test passes.
        bootstrap: Repetitions of the bootstrap for means and AUROC; 0 = no such intervals.
        seed: Seed of the bootstrap.
        confidence: Nominal coverage of all intervals.
        der: Fractions of correctly classified training images to keep, for the detection error rates.
        prior: Assumed fractions of OOD images in the traffic, in [0, 1], for risk and coverage; a number or a list.
        classes: Data sets restricted to some of their OOD classes; others are complete.
        aggregates: OOD sets of each mean over data sets, by the name of the mean.
        full_spectrum: Shifted sets that the full-spectrum metrics require; () = those of the run.
        controls: Whether findings include the controls, see `oodlit.results.controls`.

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
    prior: float | Sequence[float] = ()
    aggregates: Mapping[str, Sequence[str]] = field(default_factory=dict)
    controls: bool = False
    full_spectrum: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.controls is not True and self.controls is not False:
            raise InvalidArgumentError(f"expected controls to be True or False, got {self.controls!r}")
        plain: dict[str, Any] = {"tpr": float(exact_tpr(self.tpr, self.rule))}
        plain["unit_test_limit"] = float(exact_share(self.unit_test_limit, "unit_test_limit"))
        plain["confidence"] = check_confidence(self.confidence)
        der: object = self.der
        if isinstance(der, str) or not isinstance(der, Sequence):
            raise InvalidArgumentError(
                f"expected der to be a list of fractions, such as (0.95, 0.99), got {self.der!r}"
            )
        plain["der"] = tuple(float(exact_share(share, "der")) for share in self.der)
        if len(set(plain["der"])) < len(plain["der"]):
            raise InvalidArgumentError(f"expected each fraction once, got der={self.der!r}")
        plain["prior"], plain["full_spectrum"] = check_priors(self.prior), tuple(self.full_spectrum)
        plain |= {name: as_count(getattr(self, name), name, at_least=0) for name in ("bootstrap", "seed")}
        plain |= {name: _as_lists(getattr(self, name), name, of) for name, of in _LISTS.items()}
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    @property
    def fpr_name(self) -> str:
        """Name of the FPR in tables: fpr95 for tpr=0.95."""
        return f"fpr{percent(self.tpr)}"

    @property
    def accepted_name(self) -> str:
        """Name of the fraction of accepted shifted images."""
        return f"accepted{percent(self.tpr)}"

    @property
    def der_names(self) -> list[str]:
        """Names of the detection error rates."""
        return [f"der{percent(share)}" for share in self.der]

    @property
    def priors(self) -> tuple[float, ...]:
        """The assumed fractions of OOD images."""
        return check_priors(self.prior)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for run.json."""
        values = asdict(self).items()
        return without_unused({name: list(value) if isinstance(value, tuple) else value for name, value in values})


def without_unused(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as plain values without those that are off, which earlier versions do not have."""
    return {name: value for name, value in settings.items() if value or name not in _UNUSED}


def check_priors(prior: object) -> tuple[float, ...]:
    """Return one prior or several as different floats in [0, 1]."""
    given = list(prior) if isinstance(prior, Sequence) and not isinstance(prior, str) else [prior]
    exact = [None if isinstance(share, bool) else exact_number(share) for share in given]
    if bad := [share for share, number in zip(given, exact, strict=True) if number is None or not 0 <= number <= 1]:
        raise InvalidArgumentError(f"expected prior to be in [0, 1], such as 0.01 for 1 % OOD images, got {bad[0]!r}")
    if len(set(exact)) < len(exact):
        raise InvalidArgumentError(f"expected each prior once, got prior={prior!r}")
    return tuple(float(number) for number in exact if number is not None)


_UNUSED = ("aggregates", "controls", "prior", "full_spectrum")
_LISTS = {"classes": "class names", "aggregates": "data sets"}


def _as_lists(given: object, name: str, of: str) -> dict[str, list[str]]:
    """Check a mapping of names to lists of names."""
    if not isinstance(given, Mapping):
        what = "data sets to lists of class names" if name == "classes" else "names of means to lists of data sets"
        raise InvalidArgumentError(f"expected {name} to map {what}, got {given!r}")
    for key, names in given.items():
        if isinstance(names, str) or not isinstance(names, Iterable) or any(not isinstance(one, str) for one in names):
            raise InvalidArgumentError(f"expected {name}[{key!r}] to be a list of {of}, got {names!r}")
    return {key: list(names) for key, names in given.items()}


def percent(share: float) -> str:
    """Format a fraction for metric names.

    Example:
        >>> percent(0.95), percent(0.995)
        ('95', '99.5')
    """
    value = (exact_share(share) if share else Fraction(0)) * 100
    # All digits: with fewer, 0.9500001 would share the name of 0.95.
    return str(value.numerator) if value.denominator == 1 else str(float(value))
