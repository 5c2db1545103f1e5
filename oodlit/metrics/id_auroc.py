"""How well a score separates correct from wrong predictions on ID images."""

from torch import Tensor

from oodlit.base.roles import Role
from oodlit.metrics.auroc import auroc_of
from oodlit.metrics.entry import Images, MetricEntry, Value
from oodlit.metrics.numerics.ranking import FlagLike, ScoreLike, as_flags, as_scores, rank
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import SelectiveMetric
from oodlit.metrics.uncertainty.intervals import auroc_interval_of


def id_auroc(scores: ScoreLike, is_correct: FlagLike) -> float:
    r"""ID-AUROC: :math:`P(s_{correct} > s_{wrong}) + P(s_{correct} = s_{wrong}) / 2` on ID images.

    The positive class is *correctly classified*. Exact in integers; ties count one half; infinities are ordered.

    Args:
        scores: Scores of ID images, higher = more in-distribution, shape (n,).
        is_correct: Whether the prediction is correct, boolean, shape (n,).

    Returns:
        A fraction in [0, 1]. NaN with an `UndefinedMetricWarning` if all predictions are correct or all are wrong.

    Raises:
        InvalidArgumentError: Shapes or types do not match.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> id_auroc([0.9, 0.7, 0.8, 0.1], [True, True, False, False])
        0.75
    """
    values = as_scores(scores)
    correct = as_flags(is_correct, "is_correct", like=values)
    if len(values) == 0:
        return undefined("id_auroc", "there is no image")
    if bool(correct.all()) or not bool(correct.any()):
        return undefined("id_auroc", f"no prediction is {'wrong' if bool(correct[0]) else 'correct'}")
    return auroc_of(rank(values[correct], values[~correct]))


class IDAUROC(SelectiveMetric):
    """Streaming `id_auroc`: correctly classified is the positive class, NaN while one of the kinds is missing.

    Example:
        >>> import torch
        >>> metric = IDAUROC()
        >>> metric.update(torch.tensor([0.9, 0.7, 0.8, 0.1]), is_correct=torch.tensor([True, True, False, False]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    higher_is_better = True

    def value(self, scores: Tensor, is_correct: Tensor) -> float:
        """Return the ID-AUROC of all images."""
        return id_auroc(scores, is_correct)


def _compute(images: Images) -> Value:
    ranking = images.right_and_wrong
    if ranking.missing():
        return Value.undefined("all predictions are correct, or all are wrong" if len(images) else "there is no image")
    return Value(auroc_of(ranking), auroc_interval_of(ranking, images.settings.confidence))


ENTRIES = (
    MetricEntry(
        name="id_auroc",
        better="higher",
        of=(Role.ID,),
        text="probability that a correctly classified ID image scores higher than a misclassified one",
        function=id_auroc,
        compute=_compute,
        order=100,
        needs=frozenset({"labels"}),
    ),
)
