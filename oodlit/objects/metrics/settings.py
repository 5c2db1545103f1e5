"""Settings of the metrics of boxes."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from oodlit.base.checks import check_choice, check_ints
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.text.resolve import resolve
from oodlit.metrics.numerics.ranking import exact_share
from oodlit.metrics.settings import percent
from oodlit.metrics.uncertainty.intervals import check_confidence
from oodlit.objects.metrics.thresholds import TAU_RULES

RULES = ("exact", "published")
POINTS = ("all", "11")


@dataclass(frozen=True)
class ObjectSettings:
    r"""Settings of the metrics of boxes.

    Args:
        t_star: Confidence t\* below which boxes are dropped.
        tau_rule: Rule for the threshold of the OOD score: "quantile" or "normal". None = "quantile", or "normal" with
            the published rules.
        tau: The threshold, for all detectors or by detector; None = by the rule.
        tpr: Share of ID boxes that "quantile" and the FPR keep.
        iou: Smallest overlap with which a box hits an object.
        rules: "exact", or "published" for the arithmetic of FMIYC's program: confidence rounded to 3 decimals,
            coordinates to 1, xmin and ymin of predictions + 1, widths and heights + 1, an overlap larger than `iou`,
            boxes of images without objects ignored, a point of the curve for every box, 0 if nothing is called unknown.
        points: "all" or "11": points of the precision-recall curve for AP_U; "11" has no interval.
        recall: Recall of a class for the wilderness impact.
        bootstrap: Repetitions for the intervals; 0 = none. The default is smaller than for images, since repetitions
            take longer.
        seed: Seed of the bootstrap.
        confidence: Nominal coverage of the intervals.

    Raises:
        InvalidArgumentError: A value is out of range.

    Example:
        >>> ObjectSettings(rules="published").tau_rule, ObjectSettings(tau=1.5).rule, ObjectSettings().fpr_name
        ('normal', 'given', 'fpr95')
    """

    t_star: float = 0.0
    tau_rule: str | None = None
    tau: float | Mapping[str, float] | None = None
    tpr: float = 0.95
    iou: float = 0.5
    rules: str = "exact"
    points: str = "all"
    recall: float = 0.8
    bootstrap: int = 200
    seed: int = 0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Check ranges."""
        check_choice("ObjectSettings", "rules", self.rules, RULES)
        check_choice("ObjectSettings", "points", self.points, POINTS)
        if self.tau_rule is None:
            object.__setattr__(self, "tau_rule", "normal" if self.rules == "published" else "quantile")
        check_choice("ObjectSettings", "tau_rule", self.tau_rule, TAU_RULES)
        if not math.isfinite(self.t_star):
            raise InvalidArgumentError(f"expected t_star to be finite, such as 0.25, got t_star={self.t_star!r}")
        for name in ("tpr", "recall", "iou"):
            object.__setattr__(self, name, float(exact_share(getattr(self, name), name)))
        object.__setattr__(self, "confidence", check_confidence(self.confidence))
        check_ints("ObjectSettings", bootstrap=self.bootstrap, seed=self.seed, at_least=0)
        taus = self.tau.values() if isinstance(self.tau, Mapping) else [self.tau]
        if any(value is not None and math.isnan(value) for value in taus):
            raise InvalidArgumentError(
                "expected tau to be a number, got NaN; with tau=inf all boxes count as unknown, with tau=-inf none"
            )

    @property
    def is_published(self) -> bool:
        """Whether to follow the arithmetic of FMIYC's program."""
        return self.rules == "published"

    @property
    def rule(self) -> str:
        """Where tau comes from: the rule, or "given"."""
        return "given" if self.tau is not None else str(self.tau_rule)

    @property
    def fpr_name(self) -> str:
        """Name of the FPR in tables: fpr95 for tpr=0.95."""
        return f"fpr{percent(self.tpr)}"

    def given_tau(self, detector: str) -> float | None:
        """Return the given threshold of a detector; None if it comes from the rule.

        Raises:
            UnknownNameError: Thresholds are given by detector, but not for this one.
        """
        if not isinstance(self.tau, Mapping):
            return None if self.tau is None else float(self.tau)
        return float(self.tau[resolve("detector in tau=", detector, list(self.tau))])

    def changed(self, **changes: Any) -> "ObjectSettings":
        """Return a copy with changes.

        Raises:
            InvalidArgumentError: A setting is unknown, or a value is not allowed.
        """
        if unknown := sorted(set(changes) - set(asdict(self))):
            raise InvalidArgumentError(f"unknown setting {unknown[0]!r}; settings: {', '.join(sorted(asdict(self)))}")
        if changes.get("rules", self.rules) != self.rules:
            changes = {"tau_rule": None} | changes
        return replace(self, **changes)
