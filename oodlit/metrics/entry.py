"""What a metric says of itself so that it stands in the table: its `Entry`, in the file of its function.

A file lists the entries of its functions as `ENTRIES`; `oodlit.metrics.registry` collects them. Nothing else of the
package names a metric to compute it, list it, export it or explain it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from torch import Tensor

from oodlit.metrics.numerics.ranking import Ranking, SortedScores, rank
from oodlit.metrics.settings import Settings
from oodlit.metrics.uncertainty.intervals import wilson_interval
from oodlit.roles import Role


class Value(NamedTuple):
    """A value of the table.

    Args:
        value: The number; NaN where the definition has no answer.
        interval: Its ends; NaN = it has none.
        reason: Why it is NaN, if it is.
    """

    value: float
    interval: tuple[float, float] = (math.nan, math.nan)
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Images:
    """The images that one row of the table is about, as one detector scores them.

    What several metrics need is formed once: the ID scores are sorted for all rows, `ranking` is made at first use.

    Args:
        scores: Their scores, shape (n,); none where a value belongs to the classifier alone.
        is_correct: Whether the prediction is the label, shape (n,); False for classes that the classifier lacks.
        settings: How to compute.
        id_scores: The scores that they are ranked against: those of the ID images, for an entry that needs "shifted"
            together with those of the shifted images.
        id_correct_below: Number of right predictions among the i lowest ID scores, i = 0 .. n.
        threshold: The score from which on an image is accepted, from the ID images, for an entry that needs "training"
            from the training images; NaN if there is none.
        pooled: Whether they are of several OOD classes, which the bootstrap draws from one by one.
        groups: The images of each group, by its name; empty for a row of a group.
    """

    scores: Tensor
    is_correct: Tensor
    settings: Settings
    id_scores: SortedScores
    id_correct_below: Tensor
    threshold: float = math.nan
    pooled: bool = False
    groups: "Mapping[str, Images]" = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of images."""
        return len(self.is_correct)

    @cached_property
    def ranking(self) -> Ranking:
        """These images among those that they are ranked against."""
        return rank(self.id_scores, self.scores)

    @cached_property
    def right_and_wrong(self) -> Ranking:
        """Images of wrong predictions among those of right ones."""
        return rank(self.scores[self.is_correct], self.scores[~self.is_correct])

    @cached_property
    def accepted(self) -> Tensor:
        """Which images reach the threshold."""
        # Both sides in float64: a float32 score equal to the threshold it gave must stay equal.
        return self.scores.double() >= self.threshold


@dataclass(frozen=True)
class Entry:
    """A metric of the table.

    Args:
        name: Its name in the column `metric`, without the number that `numbered_by` adds.
        better: "lower" or "higher"; "" where neither is better.
        of: Roles of the sets that have it.
        text: What it is, in one plain line; {share} stands for the number in its name, {limit} for that of unit tests.
        function: The function of `oodlit.metrics` that defines it.
        compute: From the `Images` of a row, or the `oodlit.objects.metrics.Boxes`, to its value.
        order: Its place among the metrics of a set; by default the last.
        numbered_by: The setting whose shares stand in its name: "tpr", as in fpr95, or "der"; "" = none.
        needs: What must be there, or there is no row: "labels" of all images whose classes are known, "id_labels" of
            all ID images, "shifted" images, "training" images that were scored.
        by_threshold: Whether it depends on the rule of the threshold, which then stands beside the value.
        is_count: Whether it is a count, not a share.
        of_classifier: Whether it belongs to the classifier alone, and so to no detector. It sees labelled images only.
        of_set: Whether it stands once for a whole set, never for its groups: it is made from `Images.groups`.
        mean_interval: How the bootstrap finds the interval of its mean over classes: by the replicates of the "fpr" or
            the "auroc", or drawing each class as a "share" of accepted images at a fixed threshold; "" = it has none.
    """

    name: str
    better: Literal["lower", "higher", ""]
    of: tuple[Role, ...]
    text: str
    function: Callable[..., Any]
    compute: Callable[[Any], Value]
    order: int = 1000
    numbered_by: Literal["", "tpr", "der"] = ""
    needs: frozenset[str] = frozenset()
    by_threshold: bool = False
    is_count: bool = False
    of_classifier: bool = False
    of_set: bool = False
    mean_interval: Literal["", "fpr", "auroc", "share"] = ""


def ranked(
    function: Callable[[Ranking], float], interval: Callable[[Ranking, float], tuple[float, float]] | None = None
) -> Callable[[Images], Value]:
    """`Entry.compute` of a function of a ranking, and of its interval; pooled values get theirs from the bootstrap."""

    def compute(images: Images) -> Value:
        if reason := images.ranking.missing():
            return Value(math.nan, reason=reason)
        value = Value(function(images.ranking))
        if interval is None or images.pooled:
            return value
        return value._replace(interval=interval(images.ranking, images.settings.confidence))

    return compute


def full_spectrum(entry: Entry, *, order: int) -> Entry:
    """The metric with shifted images counted as ID."""
    name = entry.name + ("{share}" if entry.numbered_by else "")
    text = f"full spectrum: {name} with shifted images counted as ID"
    needs = entry.needs | {"shifted"}
    return replace(entry, name=f"fs_{entry.name}", of=(Role.OOD,), text=text, needs=needs, order=order)


def share(count: int | Tensor, total: int, settings: Settings) -> Value:
    """The share count / total with Wilson's interval.

    Example:
        >>> value, (low, high), reason = share(3, 31, Settings())
        >>> round(value, 3), round(low, 3), round(high, 3)
        (0.097, 0.033, 0.249)
        >>> share(0, 0, Settings()).reason
        'there is no image'
    """
    if total == 0:
        return Value(math.nan, reason="there is no image")
    return Value(int(count) / total, wilson_interval(int(count), total, confidence=settings.confidence))
