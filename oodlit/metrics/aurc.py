"""Selective prediction: the risk of accepted images for all fractions of acceptance."""

from dataclasses import replace

import torch
from torch import Tensor

from oodlit.base.roles import Role
from oodlit.metrics.entry import Images, MetricEntry, Value
from oodlit.metrics.numerics.ranking import FlagLike, Ranking, ScoreLike, as_flags, as_scores, rank
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import SelectiveMetric
from oodlit.metrics.uncertainty.intervals import augrc_interval_of


def aurc(scores: ScoreLike, is_correct: FlagLike) -> float:
    r"""Area under the risk-coverage curve.

    :math:`\frac1n \sum_{k=1}^n \frac{1}{k} \sum_{i \le k} \mathrm{wrong}_{(i)}`: the fraction of wrong predictions
    among the k accepted images (highest scores first), averaged over all k. For tied scores, the expected value over
    all orders of the tied images is used: the result does not depend on the order of the input. It depends on the
    classifier's accuracy: compare detectors on one classifier.

    Args:
        scores: Higher = accepted earlier, shape (n,).
        is_correct: Whether the prediction is correct, boolean, shape (n,).

    Returns:
        A fraction in [0, 1], lower = better. NaN with an `UndefinedMetricWarning` without images.

    Raises:
        InvalidArgumentError: Shapes or types do not match.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> round(aurc([0.9, 0.8, 0.7, 0.6], [True, False, True, True]), 4)
        0.2708
        >>> aurc([0.5, 0.5], [True, False])
        0.5

    References:
        Geifman, El-Yaniv: Selective Classification for Deep Neural Networks. NeurIPS 2017.
    """
    values = as_scores(scores)
    correct = as_flags(is_correct, "is_correct", like=values)
    if len(values) == 0:
        return undefined("aurc", "there is no image")
    descending, order = values.sort(descending=True)
    _, sizes = torch.unique_consecutive(descending, return_counts=True)
    ends = sizes.cumsum(0)
    wrong_until = torch.cat([ends.new_zeros(1), (~correct[order]).cumsum(0)[ends - 1]])
    wrong_inside = wrong_until.diff()
    group = torch.arange(len(sizes), device=values.device).repeat_interleave(sizes)
    accepted = torch.arange(1, len(values) + 1, device=values.device, dtype=torch.float64)
    share_of_group = (accepted - (ends - sizes)[group]) / sizes[group]
    wrong = wrong_until[:-1][group] + wrong_inside[group] * share_of_group
    return float((wrong / accepted).mean())


def augrc(scores: ScoreLike, is_correct: FlagLike) -> float:
    r"""Area under the generalized risk-coverage curve: :math:`\int_0^1 P(\mathrm{wrong}, \mathrm{accepted}) \, dc`.

    The expected fraction of undetected failures over all coverages c, with the trapezoidal rule inside tie groups. With
    accuracy a and ID-AUROC A it is :math:`a (1 - a)(1 - A) + (1 - a)^2 / 2`; counted exactly in integers.

    Args:
        scores: Higher = accepted earlier, shape (n,).
        is_correct: Whether the prediction is correct, boolean, shape (n,).

    Returns:
        A fraction in [0, 0.5], lower = better. NaN with an `UndefinedMetricWarning` without images.

    Raises:
        InvalidArgumentError: Shapes or types do not match.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> augrc([0.9, 0.8, 0.7, 0.6], [True, False, True, True])
        0.15625

    References:
        Traub et al.: Overcoming Common Flaws in the Evaluation of Selective Classification Systems. NeurIPS 2024.
    """
    values = as_scores(scores)
    correct = as_flags(is_correct, "is_correct", like=values)
    if len(values) == 0:
        return undefined("augrc", "there is no image")
    return augrc_of(rank(values[correct], values[~correct]))


def augrc_of(right_and_wrong: Ranking) -> float:
    """Compute AUGRC from a ranking of wrongly classified images among correctly classified ones."""
    right, wrong = right_and_wrong.n_id, right_and_wrong.n_ood
    half_losses = int((right_and_wrong.id_below + right_and_wrong.id_at_most).sum())
    return (half_losses + wrong**2) / (2 * (right + wrong) ** 2)


class AURC(SelectiveMetric):
    """Streaming `aurc`: lower = better, NaN until there is an image.

    Example:
        >>> metric = AURC()
        >>> metric.update(torch.tensor([0.5, 0.5]), is_correct=torch.tensor([True, False]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = False

    def value(self, scores: Tensor, is_correct: Tensor) -> float:
        """Return the AURC of all images."""
        return aurc(scores, is_correct)


class AUGRC(SelectiveMetric):
    """Streaming `augrc`: lower = better, NaN until there is an image.

    Example:
        >>> metric = AUGRC()
        >>> metric.update(torch.tensor([0.9, 0.8, 0.7, 0.6]), is_correct=torch.tensor([True, False, True, True]))
        >>> metric.compute()
        tensor(0.1562, dtype=torch.float64)
    """

    higher_is_better = False
    plot_upper_bound = 0.5

    def value(self, scores: Tensor, is_correct: Tensor) -> float:
        """Return the AUGRC of all images."""
        return augrc(scores, is_correct)


def _compute(images: Images) -> Value:
    return Value.undefined("there is no image") if not len(images) else Value(aurc(images.scores, images.is_correct))


def _compute_generalized(images: Images) -> Value:
    if not len(images):
        return Value.undefined("there is no image")
    ranking = images.right_and_wrong
    return Value(augrc_of(ranking), augrc_interval_of(ranking, images.settings.confidence))


_AURC = MetricEntry(
    name="aurc",
    better="lower",
    of=(Role.ID,),
    text="share of errors among the k images with the highest scores, averaged over all k",
    function=aurc,
    compute=_compute,
    order=110,
    needs=frozenset({"labels"}),
)
_AUGRC = replace(
    _AURC,
    name="augrc",
    text="area under the curve of undetected errors against accepted images, both as shares of all images",
    function=augrc,
    compute=_compute_generalized,
    order=111,
)
ENTRIES = (_AURC, _AUGRC)
