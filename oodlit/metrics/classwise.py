"""Values per OOD class, their mean, and the pooled value: three numbers with three names."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.metrics.fpr import fpr_at_tpr
from oodlit.metrics.numerics.ranking import (
    Ranking,
    ScoreLike,
    SortedScores,
    as_count,
    as_groups,
    as_integers,
    as_scores,
    as_sorted,
    rank,
)
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import RankingMetric, StreamMetric, check_batch


def mean_over_classes(
    id_scores: ScoreLike,
    class_scores: Sequence[ScoreLike],
    *,
    metric: Callable[[SortedScores, ScoreLike], float] = fpr_at_tpr,
) -> float:
    r"""Mean of a metric over OOD classes with equal weights: :math:`\frac1C \sum_c M(\mathrm{ID}, OOD_c)`.

    The headline for sets with OOD classes. It differs from the pooled value, which weights classes by their number of
    images. The ID scores are sorted once for all classes.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        class_scores: Scores of every OOD class, each of shape (m_c,).
        metric: Function of ID scores and OOD scores, for example `auroc` or a partial of `fpr_at_tpr`.

    Returns:
        The mean. NaN with an `UndefinedMetricWarning` if there are no classes or a class has no value.

    Raises:
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> mean_over_classes(range(1, 101), [[50.0] * 10, [0.0] * 1000])
        0.5
    """
    sorted_id = as_sorted(id_scores, "id_scores")
    return mean_of([metric(sorted_id, scores) for scores in class_scores])


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of the values of all classes; NaN if one of them is NaN or there are none."""
    if not values:
        return undefined("mean over classes", "there is no class")
    if without := [str(index) for index, value in enumerate(values) if math.isnan(value)]:
        reason = f"no value for {len(without)} of {len(values)} classes (first indices: {', '.join(without[:5])})"
        return undefined("mean over classes", reason)
    return math.fsum(values) / len(values)


class GroupedMetric(StreamMetric):
    """A metric of ID scores against OOD scores in a fixed number of groups."""

    streams: ClassVar = {"id_scores": torch.float64, "ood_scores": torch.float64, "ood_groups": torch.int64}

    def __init__(self, num_groups: int, **kwargs: Any) -> None:
        """Set the number of groups."""
        super().__init__(**kwargs)
        self.num_groups = num_groups

    def update(self, scores: Tensor, is_ood: Tensor, groups: Int[Tensor, " batch"]) -> None:
        """Add one batch with any mixture of ID and OOD images.

        Args:
            scores: Higher = more in-distribution, shape (batch,).
            is_ood: True for OOD images, boolean, shape (batch,).
            groups: Index of the OOD class or test, shape (batch,); ignored for ID images.

        Raises:
            InvalidArgumentError: Shapes or types do not match, or a group is out of range.
        """
        scores, (is_ood,) = check_batch(scores, is_ood=is_ood)
        ood_groups = as_integers(groups, "groups", like=scores)[is_ood]
        as_groups(ood_groups, self.num_groups, len(ood_groups))
        self.append("id_scores", scores[~is_ood])
        self.append("ood_scores", scores[is_ood])
        self.append("ood_groups", ood_groups)

    def rankings(self) -> list[Ranking]:
        """Return one ranking per group, from one sort of the ID scores."""
        sorted_id, groups = as_sorted(self.stream("id_scores"), "id_scores"), self.stream("ood_groups")
        scores = as_scores(self.stream("ood_scores"), "ood_scores")
        return [rank(sorted_id, scores[groups == group]) for group in range(self.num_groups)]


class MeanOverClasses(GroupedMetric):
    """A ranking metric per OOD class, its mean over classes, and its pooled value.

    `compute` returns `{"mean": scalar, "pooled": scalar, "per_class": shape (classes,)}`. The value of a class without
    images is NaN, and so is then the mean.

    Args:
        metric: The metric to evaluate, with its settings, such as `FPRAtTPR(tpr=0.95)`.
        num_classes: Number of OOD classes; groups are 0 to num_classes - 1.
        kwargs: Passed to `torchmetrics.Metric`.

    Raises:
        InvalidArgumentError: There are no classes, or `metric` is of another kind.

    Example:
        >>> from oodlit.metrics import FPRAtTPR
        >>> metric = MeanOverClasses(FPRAtTPR(), num_classes=2)
        >>> scores = torch.cat([torch.arange(1.0, 101.0), torch.full((10,), 50.0), torch.zeros(1000)])
        >>> groups = torch.cat([torch.full((100,), -1), torch.zeros(10).long(), torch.ones(1000).long()])
        >>> metric.update(scores, is_ood=groups >= 0, groups=groups)
        >>> value = metric.compute()
        >>> value["mean"].item(), round(value["pooled"].item(), 4), value["per_class"].tolist()
        (0.5, 0.0099, [1.0, 0.0])
    """

    def __init__(self, metric: RankingMetric, num_classes: int, **kwargs: Any) -> None:
        """Keep the metric for its definition; its own state is not used."""
        kind: object = metric
        if not isinstance(kind, RankingMetric):
            raise InvalidArgumentError(
                "MeanOverClasses: expected a metric that compares ID scores with OOD scores, such as FPRAtTPR(), got"
                f" {metric!r}"
            )
        super().__init__(as_count(num_classes, "num_classes"), **kwargs)
        self.metric = metric

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """The attribute of the metric."""
        return self.metric.higher_is_better

    def result(self) -> dict[str, Tensor]:
        """Return mean, pooled and per-class values."""
        values = [self.metric.value(ranking) for ranking in self.rankings()]
        pooled = self.metric.value(rank(self.stream("id_scores"), self.stream("ood_scores")))
        return {"mean": self._float(mean_of(values)), "pooled": self._float(pooled), "per_class": self._float(values)}
