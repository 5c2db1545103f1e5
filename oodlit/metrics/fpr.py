"""False positive rate at a fixed true positive rate: how many OOD images are accepted."""

import math
from typing import Any

from oodlit.base.fractions import ShareLike
from oodlit.base.roles import Role
from oodlit.metrics.entry import Images, MetricEntry, Value, full_spectrum, share
from oodlit.metrics.numerics.acceptance import acceptance_threshold, exact_tpr
from oodlit.metrics.numerics.ranking import Ranking, ScoreLike, rank, smallest_count
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import RankingMetric


def fpr_at_tpr(id_scores: ScoreLike, ood_scores: ScoreLike, *, tpr: ShareLike = 0.95, rule: str = "attained") -> float:
    r"""Fraction of OOD scores that are accepted: :math:`|\{s \in OOD: s \ge t\}| / m`.

    ID is the positive class; t is `acceptance_threshold(id_scores, tpr=tpr, rule=rule)`. A tie group is accepted or
    rejected as a whole. Infinities are ordered. The value is not symmetric in the two groups.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        ood_scores: OOD scores, shape (m,).
        tpr: Fraction of ID scores to keep, in (0, 1].
        rule: "attained" (largest observed threshold that keeps `tpr`) or "interpolated" (NINCO's linear quantile).

    Returns:
        A fraction in [0, 1]. NaN with an `UndefinedMetricWarning` if one of the groups is empty.

    Raises:
        InvalidArgumentError: `tpr` or `rule` is not allowed.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> fpr_at_tpr([0.9] * 90 + [0.5] * 10, [0.5] * 40 + [0.1] * 60)
        0.4
    """
    return fpr_of(rank(id_scores, ood_scores), tpr=tpr, rule=rule)


def fpr_at_tpr_error(
    id_scores: ScoreLike, ood_scores: ScoreLike, *, tpr: ShareLike = 0.95, rule: str = "attained"
) -> float:
    r"""FPR with **OOD** as the positive class: fraction of ID scores that are rejected if `tpr` of the OOD scores are.

    The definition of `fpr_at_tpr` with the groups exchanged and the scores negated, as in OpenOOD's tables. Never
    compare it with `fpr_at_tpr`.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        ood_scores: OOD scores, shape (m,).
        tpr: Fraction of OOD scores to reject, in (0, 1].
        rule: "attained" or "interpolated".

    Returns:
        A fraction in [0, 1]. NaN with an `UndefinedMetricWarning` if one of the groups is empty.

    Raises:
        InvalidArgumentError: `tpr` or `rule` is not allowed.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> fpr_at_tpr_error([0.9, 0.8, 0.4, 0.1], [0.5] * 95 + [0.85] * 5)
        0.5

    References:
        Zhang et al.: OpenOOD v1.5: Enhanced Benchmark for Out-of-Distribution Detection. DMLR 2024.
    """
    return fpr_error_of(rank(id_scores, ood_scores), tpr=tpr, rule=rule)


def fpr_error_of(ranking: Ranking, *, tpr: ShareLike, rule: str) -> float:
    """Compute `fpr_at_tpr_error` from a ranking."""
    exact_tpr(tpr, rule)
    if reason := ranking.missing():
        return undefined("fpr_at_tpr_error", reason)
    return rejected_id_count(ranking, tpr=tpr, rule=rule) / ranking.n_id


def rejected_id_count(ranking: Ranking, *, tpr: ShareLike, rule: str) -> int:
    """Count ID scores at or below the threshold that rejects a fraction `tpr` of the OOD scores."""
    if rule == "attained":
        return int(ranking.id_at_most[smallest_count(tpr, ranking.n_ood) - 1])
    threshold = -acceptance_threshold(-ranking.ood_scores.double().flip(0), tpr=tpr, rule=rule)
    return int((ranking.id_scores.values.double() <= threshold).sum())


def fpr_of(ranking: Ranking, *, tpr: ShareLike, rule: str) -> float:
    """Compute FPR from a ranking."""
    exact_tpr(tpr, rule)
    if reason := ranking.missing():
        return undefined("fpr_at_tpr", reason)
    return accepted_count(ranking, tpr=tpr, rule=rule) / ranking.n_ood


def accepted_count(ranking: Ranking, *, tpr: ShareLike, rule: str) -> int:
    """Count OOD scores at or above the threshold."""
    if rule == "attained":
        index = ranking.n_id - smallest_count(tpr, ranking.n_id)
        return int((ranking.id_at_most > index).sum())  # score >= id[index] in integers
    threshold = acceptance_threshold(ranking.id_scores, tpr=tpr, rule=rule)
    return int((ranking.ood_scores.double() >= threshold).sum())


class FPRAtTPR(RankingMetric):
    """Streaming `fpr_at_tpr`: ID positive, one threshold for all batches, NaN while one of the groups is empty.

    Args:
        tpr: Fraction of ID scores to keep, in (0, 1].
        rule: "attained" or "interpolated".
        kwargs: Passed to `torchmetrics.Metric`.

    Raises:
        InvalidArgumentError: `tpr` or `rule` is not allowed.

    Example:
        >>> import torch
        >>> metric = FPRAtTPR(tpr=0.95)
        >>> metric.update(torch.arange(1.0, 11.0), is_ood=torch.zeros(10, dtype=torch.bool))
        >>> metric.update(torch.tensor([1.2, 0.5, 0.4, 0.3]), is_ood=torch.ones(4, dtype=torch.bool))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)
    """

    higher_is_better = False

    def __init__(self, tpr: ShareLike = 0.95, rule: str = "attained", **kwargs: Any) -> None:
        """Check the settings."""
        exact_tpr(tpr, rule)
        super().__init__(**kwargs)
        self.tpr = tpr
        self.rule = rule

    def value(self, ranking: Ranking) -> float:
        """Return the FPR of all scores."""
        return fpr_of(ranking, tpr=self.tpr, rule=self.rule)


class FPRAtTPRError(FPRAtTPR):
    """Streaming `fpr_at_tpr_error`: OOD positive, NaN while one of the groups is empty.

    Args:
        tpr: Fraction of OOD scores to reject, in (0, 1].
        rule: "attained" or "interpolated".
        kwargs: Passed to `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = FPRAtTPRError(tpr=0.95)
        >>> metric.update(torch.tensor([0.9, 0.8, 0.4, 0.1]), is_ood=torch.zeros(4, dtype=torch.bool))
        >>> metric.update(torch.tensor([0.5, 0.5]), is_ood=torch.ones(2, dtype=torch.bool))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    def value(self, ranking: Ranking) -> float:
        """Return the FPR of all scores."""
        return fpr_error_of(ranking, tpr=self.tpr, rule=self.rule)


def _compute(images: Images) -> Value:
    if reason := images.ranking.missing():
        return Value.undefined(reason)
    settings = images.settings
    return share(accepted_count(images.ranking, tpr=settings.tpr, rule=settings.rule), len(images), settings)


def _compute_accepted(images: Images) -> Value:
    if math.isnan(images.threshold):
        return Value.undefined("there is no ID score")
    return share(images.accepted.sum(), len(images), images.settings)


def _compute_error(images: Images) -> Value:
    if reason := images.ranking.missing():
        return Value.undefined(reason)
    settings = images.settings
    count = rejected_id_count(images.ranking, tpr=settings.tpr, rule=settings.rule)
    return share(count, images.ranking.n_id, settings)


_ENTRY = MetricEntry(
    name="fpr",
    better="lower",
    of=(Role.OOD, Role.UNIT_TEST, Role.POOL),
    text="fraction of OOD (or unit test) images accepted at the threshold that keeps {share} % of ID images",
    function=fpr_at_tpr,
    compute=_compute,
    order=10,
    numbered_by="tpr",
    by_threshold=True,
    mean_interval="fpr",
)
_ACCEPTED = MetricEntry(
    name="accepted",
    better="",
    of=(Role.SHIFT,),
    text="fraction of shifted images accepted at the threshold that keeps {share} % of ID images",
    function=fpr_at_tpr,
    compute=_compute_accepted,
    order=80,
    numbered_by="tpr",
    by_threshold=True,
)
_ERROR = MetricEntry(
    name="fpr_e",
    better="lower",
    of=(Role.OOD,),
    text="fraction of ID images rejected at the threshold that rejects {share} % of OOD images",
    function=fpr_at_tpr_error,
    compute=_compute_error,
    order=32,
    numbered_by="tpr",
    by_threshold=True,
)
ENTRIES = (_ENTRY, full_spectrum(_ENTRY, order=60), _ERROR, full_spectrum(_ERROR, order=64), _ACCEPTED)
