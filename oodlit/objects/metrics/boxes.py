"""What a `MetricEntry` of `oodlit.objects.metrics` computes its value from."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from oodlit.base.roles import Role
from oodlit.metrics.entry import MetricEntry, Value
from oodlit.objects.metrics.open_set import OpenSet, Ratio
from oodlit.objects.metrics.resampling import interval
from oodlit.objects.metrics.scored_boxes import ScoredBoxes
from oodlit.objects.metrics.settings import ObjectSettings

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Boxes:
    """The boxes that one row of the table is about, as one detector scores them.

    Args:
        known: Boxes of the ID images.
        own: Boxes of the data set of the row.
        class_names: The ID classes; empty = not known.
        detector: Name of the scores; empty for values of the network alone.
        tau: Boxes with a lower score are called unknown; NaN = there is no threshold.
        hits_only: Whether only boxes that hit an annotated object count.
        quality: Mean average precision by name; see `oodlit.objects.metrics.id_quality`.
        group: The ID class of the row; empty = all.
    """

    known: ScoredBoxes
    own: ScoredBoxes
    class_names: tuple[str, ...]
    detector: str = ""
    tau: float = math.nan
    hits_only: bool = False
    quality: Mapping[str, float] = field(default_factory=dict)
    group: str = ""
    _shared: dict[Callable[["Boxes"], Any], Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def settings(self) -> ObjectSettings:
        """How to compute."""
        return self.own.settings

    @cached_property
    def open_set(self) -> OpenSet:
        """The boxes of the row, divided by tau; without a tau, all boxes are called unknown."""
        return self.own.open_set(self.detector, math.inf if math.isnan(self.tau) else self.tau)

    @cached_property
    def rows(self) -> tuple[Bool[np.ndarray, " known"], Bool[np.ndarray, " own"]]:
        """Which boxes of the ID images, and of the data set of the row, count."""
        if self.hits_only:
            return self.known.hits, self.own.hits
        return np.ones(len(self.known), dtype=bool), np.ones(len(self.own), dtype=bool)

    def shared(self, function: Callable[["Boxes"], T]) -> T:
        """The result of a function of these boxes, computed once for all metrics that need it."""
        if function not in self._shared:
            self._shared[function] = function(self)
        result: T = self._shared[function]
        return result

    def with_interval(
        self,
        value: Value,
        replicates: Callable[[Int[np.ndarray, "repetitions images"]], Float[np.ndarray, " repetitions"]],
    ) -> Value:
        """Add the bootstrap interval; `replicates` receives how often every image is drawn."""
        if not self.settings.bootstrap:
            return value
        ends = interval(
            replicates(self.own.drawn),
            confidence=self.settings.confidence,
            value=value.value,
            n_images=len(self.own.images),
        )
        return value._replace(interval=ends)


def of_open_set(function: Callable[[OpenSet], Ratio]) -> Callable[[Boxes], Value]:
    """Return a `MetricEntry.compute` for a ratio of open-set counts, with an interval."""

    def compute(boxes: Boxes) -> Value:
        ratio = function(boxes.open_set)
        return boxes.with_interval(ratio.value, ratio.replicates)

    return compute


def split_entry(
    function: Callable[..., Any],
    better: Literal["lower", "higher"],
    compute: Callable[[Boxes], Value],
    order: int = 1000,
    **options: Any,
) -> MetricEntry:
    """The entry of a metric of OOD splits, with the name of its function and the first line of the docstring.

    Args:
        function: The function that defines the metric.
        better: Which direction is better.
        compute: See `MetricEntry`.
        order: See `MetricEntry`.
        options: Further fields of `MetricEntry`.
    """
    line = str(function.__doc__).partition("\n")[0].removesuffix(".")
    text = line[:1].lower() + line[1:]
    return MetricEntry(function.__name__, better, (Role.OOD,), text, function, compute, order, **options)
