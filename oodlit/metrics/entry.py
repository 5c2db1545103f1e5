"""The description of a metric for the table: its `MetricEntry`, in the file of its function.

A file lists the entries of its functions as `ENTRIES`; `oodlit.metrics.registry` collects them. No other part of the
package names a metric to compute, list, export or explain it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from torch import Tensor

from oodlit.base.roles import Role
from oodlit.metrics.numerics.ranking import Ranking, SortedScores, rank
from oodlit.metrics.settings import Settings
from oodlit.metrics.uncertainty.intervals import wilson_interval


class Value(NamedTuple):
    """A value of the table.

    Args:
        value: The number; NaN if it is undefined.
        interval: Lower and upper end; NaN = none.
        reason: Why the value is NaN, if it is.
    """

    value: float
    interval: tuple[float, float] = (math.nan, math.nan)
    reason: str = ""

    @classmethod
    def undefined(cls, reason: str) -> "Value":
        """Create a NaN with the reason for it."""
        return cls(math.nan, reason=reason)


@dataclass(frozen=True, eq=False)
class Images:
    """The images of one row of the table, with the scores of one detector.

    Shared quantities are computed once: the ID scores are sorted for all rows, and `ranking` is computed on first use.

    Args:
        scores: Their scores, shape (n,); empty if a value only depends on the classifier.
        is_correct: Whether the prediction equals the label, shape (n,); False for unknown classes.
        settings: Settings of the metrics.
        id_scores: Scores to rank against: those of the ID images, together with those of the shifted images for an
            entry that needs "shifted".
        id_correct_below: Number of correct predictions among the i lowest ID scores, i = 0 .. n.
        threshold: Smallest accepted score, from the ID images, or from the training images for an entry that needs
            "training"; NaN if there is none.
        pooled: Whether they belong to several OOD classes, which the bootstrap draws from separately.
        groups: The images of each group by name; empty for a row of a group.
        prior: Assumed fraction of OOD images in the traffic, for an entry that is numbered by it.
    """

    scores: Tensor
    is_correct: Tensor
    settings: Settings
    id_scores: SortedScores
    id_correct_below: Tensor
    threshold: float = math.nan
    pooled: bool = False
    groups: "Mapping[str, Images]" = field(default_factory=dict)
    prior: float = math.nan

    def __len__(self) -> int:
        """Number of images."""
        return len(self.is_correct)

    @cached_property
    def ranking(self) -> Ranking:
        """Rank these images among the ID scores."""
        return rank(self.id_scores, self.scores)

    @cached_property
    def right_and_wrong(self) -> Ranking:
        """Rank wrongly classified images among correctly classified ones."""
        return rank(self.scores[self.is_correct], self.scores[~self.is_correct])

    @cached_property
    def accepted(self) -> Tensor:
        """Whether each image reaches the threshold."""
        # Both sides in float64: a float32 score equal to the threshold it gave must stay equal.
        return self.scores.double() >= self.threshold


@dataclass(frozen=True)
class MetricEntry:
    """A metric of the table.

    Args:
        name: Name in the column `metric`, without the number that `numbered_by` adds.
        better: "lower" or "higher"; "" if neither is better.
        of: Roles of the sets that have this metric.
        text: One-line description; {share} is replaced by the number in the name, {limit} by that of unit tests.
        function: The function of `oodlit.metrics` that defines it.
        compute: Computes the value from the `Images` of a row, or its `oodlit.objects.metrics.Boxes`.
        order: Position among the metrics of a set; by default the last.
        numbered_by: Setting with the fractions in its name: "tpr", as in fpr95, "der", or "prior"; "" = none.
        needs: Conditions for the row: "labels" of all images with known classes, "id_labels" of all ID images,
            "shifted" images, scored "training" images.
        by_threshold: Whether it depends on the threshold rule, which is then shown beside the value.
        is_count: Whether it is a count rather than a fraction.
        of_classifier: Whether it depends on the classifier only, not on a detector. It covers labeled images only.
        of_set: Whether it only exists for a whole set, computed from `Images.groups`.
        mean_interval: How the bootstrap determines the interval of its mean over classes: by the replicates of "fpr" or
            "auroc", or by drawing each class as a "share" of accepted images at a fixed threshold; "" = none.
    """

    name: str
    better: Literal["lower", "higher", ""]
    of: tuple[Role, ...]
    text: str
    function: Callable[..., Any]
    compute: Callable[[Any], Value]
    order: int = 1000
    numbered_by: Literal["", "tpr", "der", "prior"] = ""
    needs: frozenset[str] = frozenset()
    by_threshold: bool = False
    is_count: bool = False
    of_classifier: bool = False
    of_set: bool = False
    mean_interval: Literal["", "fpr", "auroc", "share"] = ""


def ranked(
    function: Callable[[Ranking], float], interval: Callable[[Ranking, float], tuple[float, float]] | None = None
) -> Callable[[Images], Value]:
    """Build `MetricEntry.compute` from functions of a ranking; pooled values get their interval from the bootstrap."""

    def compute(images: Images) -> Value:
        if reason := images.ranking.missing():
            return Value.undefined(reason)
        value = Value(function(images.ranking))
        if interval is None or images.pooled:
            return value
        return value._replace(interval=interval(images.ranking, images.settings.confidence))

    return compute


def full_spectrum(entry: MetricEntry, *, order: int) -> MetricEntry:
    """Return the metric with shifted images counted as ID."""
    name = entry.name + ("{share}" if entry.numbered_by else "")
    text = f"full spectrum: {name} with shifted images counted as ID"
    needs = entry.needs | {"shifted"}
    return replace(entry, name=f"fs_{entry.name}", of=(Role.OOD,), text=text, needs=needs, order=order)


def share(count: int | Tensor, total: int, settings: Settings) -> Value:
    """Return the fraction count / total with Wilson's interval.

    Example:
        >>> value, (low, high), reason = share(3, 31, Settings())
        >>> round(value, 3), round(low, 3), round(high, 3)
        (0.097, 0.033, 0.249)
        >>> share(0, 0, Settings()).reason
        'there is no image'
    """
    if total == 0:
        return Value.undefined("there is no image")
    return Value(int(count) / total, wilson_interval(int(count), total, confidence=settings.confidence))
