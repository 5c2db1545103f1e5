"""The smallest error that any threshold can reach."""

import torch

from oodlit.metrics.entry import Entry, ranked
from oodlit.metrics.numerics.ranking import Ranking, ScoreLike, rank
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import RankingMetric
from oodlit.roles import Role


def detection_error(id_scores: ScoreLike, ood_scores: ScoreLike) -> float:
    r"""Minimum detection error: :math:`\min_t \frac12 P(s_{ID} < t) + \frac12 P(s_{OOD} \ge t)`.

    Over every threshold that makes a difference, accepting everything and accepting nothing included, so it is at most
    one half; never over a grid. Both groups weigh the same whatever their size. A tie group falls on one side.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        ood_scores: OOD scores, shape (m,).

    Returns:
        A share in [0, 0.5]. NaN with an `UndefinedMetricWarning` if one of the groups is empty.

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
    """Detection error of a ranking that exists already."""
    if reason := ranking.missing():
        return undefined("detection_error", reason)
    # The best thresholds lie just above an OOD score (or below everything); in integers, scaled by 2 n m.
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
        """Detection error of all scores seen."""
        return detection_error_of(ranking)


ENTRIES = (
    Entry(
        name="detection_error",
        better="lower",
        of=(Role.OOD,),
        text="least mean of rejected ID and accepted OOD shares over all thresholds",
        function=detection_error,
        compute=ranked(detection_error_of),
        order=40,
    ),
)
