"""Area under the precision-recall curve, with ID or OOD images as the positive class."""

import sys
from fractions import Fraction
from typing import Any

import torch

from oodlit.base.fractions import ShareLike
from oodlit.base.roles import Role
from oodlit.metrics.entry import MetricEntry, full_spectrum, ranked
from oodlit.metrics.numerics.ranking import Ranking, ScoreLike, exact_share, rank
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import RankingMetric


def aupr_success(id_scores: ScoreLike, ood_scores: ScoreLike, *, prior: ShareLike | None = None) -> float:
    r"""AUPR-S (AUPR-in): average precision with **ID** as the positive class, found by a high score.

    :math:`\sum_t (R_t - R_{t^+}) P_t` over all distinct scores t, descending, with recall :math:`R_t = P(s_{ID} \ge t)`
    and precision :math:`P_t = TP_t / (TP_t + FP_t)`: step-wise, without interpolation. A tie group enters as a whole.
    Precision depends on the sizes of the two groups: report n and m beside the value, or fix the fraction of ID images
    with `prior`: :math:`P_t = \pi R_t / (\pi R_t + (1 - \pi) FPR_t)`.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        ood_scores: OOD scores, shape (m,).
        prior: Fraction of ID images to assume, in (0, 1). None = that of the two groups.

    Returns:
        A fraction in [0, 1]. NaN with an `UndefinedMetricWarning` if one of the groups is empty.

    Raises:
        InvalidArgumentError: `prior` is outside (0, 1).
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> aupr_success([4, 3, 2, 1], [2.5, 0.5])
        0.8875
        >>> round(aupr_success([4, 3, 2, 1], [2.5] * 10 + [0.5] * 10), 4)
        0.6291
    """
    return aupr_success_of(rank(id_scores, ood_scores), prior=prior)


def aupr_error(id_scores: ScoreLike, ood_scores: ScoreLike, *, prior: ShareLike | None = None) -> float:
    r"""AUPR-E (AUPR-out): average precision with **OOD** as the positive class, found by a low score.

    The definition of `aupr_success` with the groups exchanged and the scores negated; `prior` is still the fraction of
    ID images.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        ood_scores: OOD scores, shape (m,).
        prior: Fraction of ID images to assume, in (0, 1). None = that of the two groups.

    Returns:
        A fraction in [0, 1]. NaN with an `UndefinedMetricWarning` if one of the groups is empty.

    Raises:
        InvalidArgumentError: `prior` is outside (0, 1).
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> aupr_error([4, 3, 2, 1], [2.5, 0.5])
        0.75
    """
    return aupr_error_of(rank(id_scores, ood_scores), prior=prior)


def aupr_success_of(ranking: Ranking, *, prior: ShareLike | None = None) -> float:
    """Compute AUPR-S from a ranking."""
    odds = _odds(ranking, prior)
    if reason := ranking.missing():
        return undefined("aupr_success", reason)
    true_positives = ranking.id_scores.at_or_above.double()
    false_positives = ranking.ood_at_or_above_id.double()
    return float((true_positives / (true_positives + false_positives / odds)).sum() / ranking.n_id)


def aupr_error_of(ranking: Ranking, *, prior: ShareLike | None = None) -> float:
    """Compute AUPR-E from a ranking."""
    odds = _odds(ranking, prior)
    if reason := ranking.missing():
        return undefined("aupr_error", reason)
    true_positives = torch.searchsorted(ranking.ood_scores, ranking.ood_scores, right=True).double()
    false_positives = ranking.id_at_most.double()
    return float((true_positives / (true_positives + false_positives * odds)).sum() / ranking.n_ood)


def exact_prior(prior: ShareLike | None) -> Fraction | None:
    """Return `prior` as the number that was meant, checked to be None or in (0, 1)."""
    return None if prior is None else exact_share(prior, "prior", below_one=True)


def _odds(ranking: Ranking, prior: ShareLike | None) -> float:
    """Return the weight of one ID image relative to one OOD image; 1 without a prior."""
    exact = exact_prior(prior)
    if exact is None or ranking.missing():
        return 1.0
    # Bounded, since underflowing odds would result in 0 / 0.
    return max(float(exact / (1 - exact) * ranking.n_ood / ranking.n_id), sys.float_info.min)


class _AUPR(RankingMetric):
    higher_is_better = True

    def __init__(self, prior: ShareLike | None = None, **kwargs: Any) -> None:
        """Check the prior."""
        exact_prior(prior)
        super().__init__(**kwargs)
        self.prior = prior


class AUPRSuccess(_AUPR):
    """Streaming `aupr_success`: ID positive, NaN while one of the groups is empty.

    Args:
        prior: Fraction of ID images to assume, in (0, 1). None = that of the two groups.
        kwargs: Passed to `torchmetrics.Metric`.

    Example:
        >>> metric = AUPRSuccess()
        >>> metric.update(torch.tensor([4.0, 3, 2, 1, 2.5, 0.5]), is_ood=torch.arange(6) >= 4)
        >>> metric.compute()
        tensor(0.8875, dtype=torch.float64)
    """

    def value(self, ranking: Ranking) -> float:
        """Return AUPR-S of all scores."""
        return aupr_success_of(ranking, prior=self.prior)


class AUPRError(_AUPR):
    """Streaming `aupr_error`: OOD positive, NaN while one of the groups is empty.

    Args:
        prior: Fraction of ID images to assume, in (0, 1). None = that of the two groups.
        kwargs: Passed to `torchmetrics.Metric`.

    Example:
        >>> metric = AUPRError()
        >>> metric.update(torch.tensor([4.0, 3, 2, 1, 2.5, 0.5]), is_ood=torch.arange(6) >= 4)
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    def value(self, ranking: Ranking) -> float:
        """Return AUPR-E of all scores."""
        return aupr_error_of(ranking, prior=self.prior)


_SUCCESS = MetricEntry(
    name="aupr_s",
    better="higher",
    of=(Role.OOD,),
    text="average precision with ID as the positive class",
    function=aupr_success,
    compute=ranked(aupr_success_of),
    order=30,
)
_ERROR = MetricEntry(
    name="aupr_e",
    better="higher",
    of=(Role.OOD,),
    text="average precision with OOD as the positive class",
    function=aupr_error,
    compute=ranked(aupr_error_of),
    order=31,
)
ENTRIES = (_SUCCESS, _ERROR, full_spectrum(_SUCCESS, order=62), full_spectrum(_ERROR, order=63))
