"""Joint risk: errors on known images and accepted unknown ones, at an assumed fraction of unknown images.

A fraction `prior` of the traffic is out of distribution (OOD). ID images weigh (1 - prior) / n each and OOD images
prior / m each. An accepted image is an error if it is OOD or if its prediction is wrong.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import ShareLike
from oodlit.base.roles import Role
from oodlit.metrics.entry import Images, MetricEntry, Value
from oodlit.metrics.joint_ranking import JointRanking, RiskCurve, joint_augrc_interval, joint_augrc_of, risk_curve_of
from oodlit.metrics.numerics.acceptance import acceptance_threshold
from oodlit.metrics.numerics.ranking import FlagLike, ScoreLike, exact_share, rank
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.oscr import OSCR
from oodlit.metrics.settings import check_priors
from oodlit.metrics.uncertainty.intervals import effective_interval


def joint_augrc(id_scores: ScoreLike, ood_scores: ScoreLike, *, is_correct: FlagLike, prior: ShareLike) -> float:
    r"""Area under the generalized risk-coverage curve of a mixture of ID and OOD images.

    The expected fraction of undetected errors over all coverages. With accuracy a, the AUROC A of correct against wrong
    predictions, the AUROC B of correctly classified ID against OOD images, the prior :math:`\pi` and
    :math:`a' = (1 - \pi) a`, it is :math:`a' ((1 - \pi) (1 - a) (1 - A) + \pi (1 - B)) + (1 - a')^2 / 2`. The best
    possible value is the last term. At :math:`\pi = 0` it is `augrc` of the ID images.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,), in the order of `is_correct`.
        ood_scores: OOD scores, shape (m,).
        is_correct: Whether the prediction of each ID image is correct, boolean, shape (n,).
        prior: Fraction of the traffic that is OOD, in [0, 1].

    Returns:
        A fraction in [0, 0.5], lower = better. NaN with an `UndefinedMetricWarning` if one of the groups is empty.

    Raises:
        InvalidArgumentError: Shapes or types do not match, or the prior is out of range.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> round(joint_augrc([0.9, 0.8, 0.7], [0.1, 0.85], is_correct=[True, True, False], prior=0.1), 6)
        0.095

    References:
        Traub et al.: Overcoming Common Flaws in the Evaluation of Selective Classification Systems. NeurIPS 2024.
    """
    joint, share = JointRanking.of(id_scores, ood_scores, is_correct), check_prior(prior)
    return undefined("joint_augrc", reason) if (reason := joint.ranking.missing()) else joint_augrc_of(joint, share)


def risk_curve(id_scores: ScoreLike, ood_scores: ScoreLike, *, is_correct: FlagLike, prior: ShareLike) -> RiskCurve:
    """Risk and coverage of a mixture of ID and OOD images at every threshold.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,), in the order of `is_correct`.
        ood_scores: OOD scores, shape (m,).
        is_correct: Whether the prediction of each ID image is correct, boolean, shape (n,).
        prior: Fraction of the traffic that is OOD, in [0, 1].

    Returns:
        The curve, from the highest to the lowest threshold. Thresholds that accept nothing are left out.

    Raises:
        InvalidArgumentError: Shapes or types do not match, the prior is out of range, or a group is empty.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> curve = risk_curve([0.9, 0.8], [0.85], is_correct=[True, True], prior=0.5)
        >>> curve.coverage.tolist(), curve.risk.round(decimals=3).tolist()
        ([0.25, 0.75, 1.0], [0.0, 0.667, 0.5])
    """
    return risk_curve_of(JointRanking.of(id_scores, ood_scores, is_correct), check_prior(prior))


class OperatingPoint(NamedTuple):
    """A threshold and what it does to the traffic.

    Args:
        threshold: Lowest accepted score.
        coverage: Fraction of accepted traffic.
        risk: Fraction of errors among the accepted traffic.
        risk_low: Lower end of the interval of the risk.
        risk_high: Upper end.
        tpr: Fraction of accepted ID images.
        fpr: Fraction of accepted OOD images.
    """

    threshold: float
    coverage: float
    risk: float
    risk_low: float
    risk_high: float
    tpr: float
    fpr: float


def operating_point(
    id_scores: ScoreLike,
    ood_scores: ScoreLike,
    *,
    is_correct: FlagLike,
    prior: ShareLike,
    max_risk: ShareLike | None = None,
    coverage: ShareLike | None = None,
    tpr: ShareLike | None = None,
    confidence: ShareLike = 0.95,
) -> OperatingPoint:
    """Choose a threshold by risk, by coverage, or by the fraction of accepted ID images.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,), in the order of `is_correct`.
        ood_scores: OOD scores, shape (m,).
        is_correct: Whether the prediction of each ID image is correct, boolean, shape (n,).
        prior: Fraction of the traffic that is OOD, in [0, 1].
        max_risk: Accept as much as possible with at most this fraction of errors among the accepted traffic.
        coverage: Accept at least this fraction of the traffic, and as little as possible beyond.
        tpr: Accept at least this fraction of the ID images; the threshold of `acceptance_threshold`.
        confidence: Nominal coverage of the interval of the risk. It does not cover the choice of the threshold, which
            uses the same images.

    Returns:
        The threshold with its coverage, risk, TPR and FPR. At a prior of 1, the threshold of `tpr` may accept no
        traffic; then the risk is NaN.

    Raises:
        InvalidArgumentError: Not exactly one of `max_risk`, `coverage` and `tpr` is given, a fraction is out of range,
            a group is empty, or no threshold has a risk as low as `max_risk`.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> point = operating_point([0.9, 0.8, 0.7], [0.75], is_correct=[True, True, False], prior=0.1, max_risk=0.1)
        >>> point.threshold, round(point.coverage, 3), point.risk
        (0.8, 0.6, 0.0)
    """
    joint, share = JointRanking.of(id_scores, ood_scores, is_correct), check_prior(prior)
    curve = risk_curve_of(joint, share)
    given = {name: v for name, v in {"max_risk": max_risk, "coverage": coverage, "tpr": tpr}.items() if v is not None}
    if len(given) != 1:
        raise InvalidArgumentError(
            f"operating_point: expected exactly one of max_risk, coverage and tpr, got {', '.join(given) or 'none'}"
        )
    if tpr is not None:
        lowest = acceptance_threshold(joint.ranking.id_scores, tpr=tpr)
        place = int((curve.threshold >= lowest).sum()) - 1
        if place < 0:  # at a prior of 1, only OOD images count
            kept = float((joint.ranking.id_scores.values.double() >= lowest).double().mean())
            return OperatingPoint(lowest, 0.0, math.nan, math.nan, math.nan, kept, 0.0)
    elif coverage is not None:
        wanted = float(exact_share(coverage, "coverage"))
        place = int((curve.coverage < wanted - 1e-12).sum())
    else:
        limit = float(exact_share(max_risk, "max_risk"))
        fits = (curve.risk < limit + 1e-12).nonzero()  # up to rounding, as above.flatten()
        if len(fits) == 0:
            best = int(curve.risk.argmin())
            raise InvalidArgumentError(
                f"operating_point: no threshold has a risk of at most {limit:g}; increase max_risk. The lowest risk is"
                f" {float(curve.risk[best]):.4g}, at a coverage of {float(curve.coverage[best]):.4g}"
            )
        place = int(fits[-1])
    return _point(joint, curve, place, share, confidence)


def _point(joint: JointRanking, curve: RiskCurve, place: int, prior: float, confidence: ShareLike) -> OperatingPoint:
    threshold, coverage, risk, tpr, fpr, _ = (float(values[place]) for values in curve)
    accepted = (joint.ranking.id_scores.values.double() >= threshold).double()
    of_id = (1 - prior) * accepted * ((1 - joint.is_correct) - risk) / coverage
    of_ood = prior * (joint.ranking.ood_scores.double() >= threshold).double() * (1 - risk) / coverage
    level = float(exact_share(confidence, "confidence", below_one=True))
    # Without any error the variance is zero: then the interval follows from the numbers of images alone.
    cap = min(float(accepted.sum()) or 1.0, joint.ranking.n_ood * coverage / max(prior, 1e-12))
    low, high = effective_interval(risk, [of_id, of_ood], level, cap=cap)
    return OperatingPoint(threshold, coverage, risk, low, high, tpr, fpr)


def joint_risk(
    id_scores: ScoreLike, ood_scores: ScoreLike, *, is_correct: FlagLike, prior: ShareLike, tpr: ShareLike = 0.95
) -> float:
    """Fraction of errors among accepted images, at the threshold that accepts a fraction of the ID images.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,), in the order of `is_correct`.
        ood_scores: OOD scores, shape (m,).
        is_correct: Whether the prediction of each ID image is correct, boolean, shape (n,).
        prior: Fraction of the traffic that is OOD, in [0, 1).
        tpr: Fraction of ID images to accept, in (0, 1].

    Returns:
        A fraction in [0, 1], lower = better. NaN with an `UndefinedMetricWarning` if one of the groups is empty.

    Raises:
        InvalidArgumentError: Shapes or types do not match, or a fraction is out of range.

    Example:
        >>> round(joint_risk([0.9, 0.8, 0.7], [0.75], is_correct=[True, True, False], prior=0.1, tpr=1), 6)
        0.4
    """
    joint = JointRanking.of(id_scores, ood_scores, is_correct)
    if reason := joint.ranking.missing():
        return undefined("joint_risk", reason)
    return operating_point(id_scores, ood_scores, is_correct=is_correct, prior=prior, tpr=tpr).risk


def joint_coverage(id_scores: ScoreLike, ood_scores: ScoreLike, *, prior: ShareLike, tpr: ShareLike = 0.95) -> float:
    """Fraction of accepted images, at the threshold that accepts a fraction of the ID images.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        ood_scores: OOD scores, shape (m,).
        prior: Fraction of the traffic that is OOD, in [0, 1].
        tpr: Fraction of ID images to accept, in (0, 1].

    Returns:
        A fraction in [0, 1]. NaN with an `UndefinedMetricWarning` if one of the groups is empty.

    Raises:
        InvalidArgumentError: Shapes or types do not match, or a fraction is out of range.

    Example:
        >>> round(joint_coverage([0.9, 0.8], [0.85, 0.1], prior=0.1, tpr=1), 6)
        0.95
    """
    ranking, share = rank(id_scores, ood_scores), check_prior(prior)
    if reason := ranking.missing():
        return undefined("joint_coverage", reason)
    threshold = acceptance_threshold(ranking.id_scores, tpr=tpr)
    kept, accepted = (
        float((values.double() >= threshold).double().mean())
        for values in (ranking.id_scores.values, ranking.ood_scores)
    )
    return (1 - share) * kept + share * accepted


class JointAUGRC(OSCR):
    """Streaming `joint_augrc`: NaN while one of the groups is empty.

    Args:
        prior: Fraction of the traffic that is OOD, in [0, 1]; default 0.01.
        kwargs: Passed to `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = JointAUGRC(prior=0.1)
        >>> is_ood, is_correct = torch.tensor([False, False, True]), torch.tensor([True, True, False])
        >>> metric.update(torch.tensor([0.9, 0.8, 0.1]), is_ood=is_ood, is_correct=is_correct)
        >>> metric.compute()
        tensor(0.0050, dtype=torch.float64)
    """

    higher_is_better = False
    plot_upper_bound = 0.5

    def __init__(self, prior: ShareLike = 0.01, tpr: ShareLike = 0.95, **kwargs: Any) -> None:
        """Check the settings."""
        super().__init__(**kwargs)
        exact_share(tpr)
        self.prior, self.tpr = check_prior(prior), tpr

    def value(self, id_scores: Tensor, ood_scores: Tensor, is_correct: Tensor) -> float:
        """Compute the metric from the scores of all images."""
        return joint_augrc(id_scores, ood_scores, is_correct=is_correct, prior=self.prior)


class JointRisk(JointAUGRC):
    """Streaming `joint_risk`: NaN while one of the groups is empty.

    Args:
        prior: Fraction of the traffic that is OOD, in [0, 1); default 0.01.
        tpr: Fraction of ID images to accept; default 0.95.
        kwargs: Passed to `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = JointRisk(prior=0.1, tpr=1)
        >>> is_ood, is_correct = torch.tensor([False, False, True]), torch.tensor([True, True, False])
        >>> metric.update(torch.tensor([0.9, 0.8, 0.1]), is_ood=is_ood, is_correct=is_correct)
        >>> metric.compute()
        tensor(0., dtype=torch.float64)
    """

    plot_upper_bound = 1.0

    def value(self, id_scores: Tensor, ood_scores: Tensor, is_correct: Tensor) -> float:
        """Compute the metric from the scores of all images."""
        return joint_risk(id_scores, ood_scores, is_correct=is_correct, prior=self.prior, tpr=self.tpr)


class JointCoverage(JointAUGRC):
    """Streaming `joint_coverage`: NaN while one of the groups is empty.

    Args:
        prior: Fraction of the traffic that is OOD, in [0, 1]; default 0.01.
        tpr: Fraction of ID images to accept; default 0.95.
        kwargs: Passed to `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = JointCoverage(prior=0.1, tpr=1)
        >>> is_ood, is_correct = torch.tensor([False, False, True]), torch.tensor([True, True, False])
        >>> metric.update(torch.tensor([0.9, 0.8, 0.1]), is_ood=is_ood, is_correct=is_correct)
        >>> metric.compute()
        tensor(0.9000, dtype=torch.float64)
    """

    higher_is_better = True
    plot_upper_bound = 1.0

    def value(self, id_scores: Tensor, ood_scores: Tensor, is_correct: Tensor) -> float:
        """Compute the metric from the scores of all images."""
        return joint_coverage(id_scores, ood_scores, prior=self.prior, tpr=self.tpr)


def check_prior(prior: ShareLike) -> float:
    """Return the prior that was meant, checked to be in [0, 1]."""
    (share,) = check_priors([prior])
    return share


def _compute_augrc(images: Images) -> Value:
    if reason := images.ranking.missing():
        return Value.undefined(reason)
    joint = JointRanking(images.ranking, images.id_correct_below)
    interval = joint_augrc_interval(joint, images.prior, images.settings.confidence)
    return Value(joint_augrc_of(joint, images.prior), interval)


def _compute_risk(images: Images) -> Value:
    if reason := images.ranking.missing():
        return Value.undefined(reason)
    joint = JointRanking(images.ranking, images.id_correct_below)
    curve = risk_curve_of(joint, images.prior)
    place = int((curve.threshold >= images.threshold).sum()) - 1
    if place < 0:
        return Value.undefined("the threshold accepts no image")
    point = _point(joint, curve, place, images.prior, images.settings.confidence)
    return Value(point.risk, (point.risk_low, point.risk_high))


def _compute_coverage(images: Images) -> Value:
    if reason := images.ranking.missing():
        return Value.undefined(reason)
    kept = float((images.id_scores.values.double() >= images.threshold).double().mean())
    return Value((1 - images.prior) * kept + images.prior * float(images.accepted.double().mean()))


_AUGRC = MetricEntry(
    name="joint_augrc",
    better="lower",
    of=(Role.OOD,),
    text="area under the curve of undetected errors against coverage, if {share} % of the images are OOD",
    function=joint_augrc,
    compute=_compute_augrc,
    order=70,
    numbered_by="prior",
    needs=frozenset({"id_labels"}),
)
_RISK = replace(
    _AUGRC,
    name="joint_risk",
    text="share of errors among accepted images, if {share} % of the images are OOD",
    function=joint_risk,
    compute=_compute_risk,
    order=71,
    by_threshold=True,
)
_COVERAGE = replace(
    _RISK,
    name="joint_coverage",
    better="higher",
    text="share of images that are accepted, if {share} % of the images are OOD",
    function=joint_coverage,
    compute=_compute_coverage,
    order=72,
    needs=frozenset(),
)
ENTRIES = (_AUGRC, _RISK, _COVERAGE)
