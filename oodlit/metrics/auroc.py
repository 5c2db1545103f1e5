"""Area under the ROC curve: how often an ID image scores above an OOD image."""

from oodlit.base.roles import Role
from oodlit.metrics.entry import MetricEntry, full_spectrum, ranked
from oodlit.metrics.numerics.ranking import Ranking, ScoreLike, rank
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import RankingMetric
from oodlit.metrics.uncertainty.intervals import auroc_interval_of


def auroc(id_scores: ScoreLike, ood_scores: ScoreLike) -> float:
    r"""Area under the ROC curve, ID positive: :math:`P(s_{ID} > s_{OOD}) + P(s_{ID} = s_{OOD}) / 2`.

    Counted exactly in integers from the order of the scores, without transforms or a grid of thresholds. Equal scores
    count one half. Infinities are ordered. Swapping the two groups gives one minus the value.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        ood_scores: OOD scores, shape (m,).

    Returns:
        A fraction in [0, 1]. NaN with an `UndefinedMetricWarning` if one of the groups is empty.

    Raises:
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> round(auroc([0.9, 0.8, 0.7], [0.6, 0.75]), 4)
        0.8333
        >>> auroc([23.0, 24.0, 25.0], [20.0, 21.0, 22.0])
        1.0
    """
    return auroc_of(rank(id_scores, ood_scores))


def auroc_of(ranking: Ranking) -> float:
    """Compute AUROC from a ranking."""
    if reason := ranking.missing():
        return undefined("auroc", reason)
    pairs = ranking.n_id * ranking.n_ood
    half_losses = int((ranking.id_below + ranking.id_at_most).sum())
    return (2 * pairs - half_losses) / (2 * pairs)


class AUROC(RankingMetric):
    """Streaming `auroc`: ID positive, ties count one half, NaN while one of the groups is empty.

    `update(scores, is_ood=...)` accepts batches of any size in any order; across processes all scores are gathered in
    `compute`. Memory is 8 bytes per image.

    Example:
        >>> import torch
        >>> metric = AUROC()
        >>> metric.update(torch.tensor([0.9, 0.2]), is_ood=torch.tensor([True, True]))
        >>> metric.update(torch.tensor([1.5, 2.0]), is_ood=torch.tensor([False, False]))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    higher_is_better = True

    def value(self, ranking: Ranking) -> float:
        """Return the AUROC of all scores."""
        return auroc_of(ranking)


_ENTRY = MetricEntry(
    name="auroc",
    better="higher",
    of=(Role.OOD, Role.POOL),
    text="probability that an ID image scores higher than an OOD image; ties count half",
    function=auroc,
    compute=ranked(auroc_of, auroc_interval_of),
    order=20,
    mean_interval="auroc",
)
ENTRIES = (_ENTRY, full_spectrum(_ENTRY, order=61))
