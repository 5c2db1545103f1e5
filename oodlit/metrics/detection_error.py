"""The smallest error of any threshold."""

import torch

from oodlit.base.roles import Role
from oodlit.metrics.entry import MetricEntry, ranked
from oodlit.metrics.numerics.ranking import Ranking, ScoreLike, rank
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import RankingMetric


def detection_error(id_scores: ScoreLike, ood_scores: ScoreLike) -> float:
    r"""Minimum detection error: :math:`\min_t \frac12 P(s_{ID} < t) + \frac12 P(s_{OOD} \ge t)`.

    Over all distinct thresholds, including accepting everything and accepting nothing, so it is at most one half; never
    over a grid. Both groups have the same weight for any sizes. A tie group is on one side.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        ood_scores: OOD scores, shape (m,).

    Returns:
        A fraction in [0, 0.5]. NaN with an `UndefinedMetricWarning` if one of the groups is empty.

    Raises:
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> detection_error([3, 4, 5, 6], [1, 2, 3])
        0.125
        >>> detection_error([1, 1], [1, 1, 1])
        0.5
    """
    return detection_error_of(rank(id_scores, ood_scores))


def detection_error_of(ranking: Ranking) -> float:
    """Compute the detection error from a ranking."""
    if reason := ranking.missing():
        return undefined("detection_error", reason)
    # The best thresholds are just above an OOD score (or below everything); in integers, scaled by 2 n m.
    rejected_ood = torch.searchsorted(ranking.ood_scores, ranking.ood_scores, right=True)
    errors = ranking.id_at_most * ranking.n_ood + (ranking.n_ood - rejected_ood) * ranking.n_id
    pairs = ranking.n_id * ranking.n_ood
    return min(int(errors.min()), pairs) / (2 * pairs)


class DetectionError(RankingMetric):
    """Streaming `detection_error`: NaN while one of the groups is empty.

    Example:
        >>> metric = DetectionError()
        >>> metric.update(torch.tensor([3.0, 4, 5, 6, 1, 2, 3]), is_ood=torch.arange(7) >= 4)
        >>> metric.compute()
        tensor(0.1250, dtype=torch.float64)
    """

    higher_is_better = False
    plot_upper_bound = 0.5

    def value(self, ranking: Ranking) -> float:
        """Return the detection error of all scores."""
        return detection_error_of(ranking)


ENTRIES = (
    MetricEntry(
        name="detection_error",
        better="lower",
        of=(Role.OOD,),
        text="mean of the fractions of rejected ID and accepted OOD images, at the threshold with the lowest mean",
        function=detection_error,
        compute=ranked(detection_error_of),
        order=40,
    ),
)
