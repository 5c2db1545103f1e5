"""Open-set classification rate: accepted *and* correctly classified ID images against accepted OOD images."""

from typing import ClassVar

import torch
from torch import Tensor

from oodlit.base.roles import Role
from oodlit.metrics.entry import Images, MetricEntry, Value
from oodlit.metrics.numerics.ranking import FlagLike, ScoreLike, as_flags, as_scores, rank
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.streams import StreamMetric, check_batch


def oscr(id_scores: ScoreLike, ood_scores: ScoreLike, *, is_correct: FlagLike) -> float:
    r"""Area under the OSCR curve: correct classification rate over the false positive rate.

    :math:`CCR(t) = |\{ID: s \ge t, \mathrm{correct}\}| / n` against :math:`FPR(t) = |\{OOD: s \ge t\}| / m`, with the
    trapezoidal rule over tie groups, which equals accuracy times the AUROC of correctly classified ID images. Exact in
    integers.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,), in the order of `is_correct`.
        ood_scores: OOD scores, shape (m,).
        is_correct: Whether the prediction of each ID image is correct, boolean, shape (n,).

    Returns:
        A fraction in [0, 1], at most the accuracy. NaN with an `UndefinedMetricWarning` if one of the groups is empty.

    Raises:
        InvalidArgumentError: Shapes or types do not match.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> oscr([0.9, 0.8], [0.1, 0.85], is_correct=[True, False])
        0.5

    References:
        Dhamija, Günther, Boult: Reducing Network Agnostophobia. NeurIPS 2018.
    """
    values = as_scores(id_scores, "id_scores")
    correct = as_flags(is_correct, "is_correct", like=values)
    reason = rank(values, ood_scores).missing()
    if reason:
        return undefined("oscr", reason)
    ranking = rank(values[correct], ood_scores)
    half_wins = 2 * ranking.n_id * ranking.n_ood - int((ranking.id_below + ranking.id_at_most).sum())
    return half_wins / (2 * len(values) * ranking.n_ood)


class OSCR(StreamMetric):
    """Streaming `oscr`: NaN while one of the groups is empty.

    Example:
        >>> metric = OSCR()
        >>> is_ood = torch.tensor([False, False, True, True])
        >>> metric.update(torch.tensor([0.9, 0.8, 0.1, 0.85]), is_ood=is_ood, is_correct=torch.arange(4) < 1)
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = True
    streams: ClassVar = dict.fromkeys(("correct_scores", "wrong_scores", "ood_scores"), torch.float64)

    def update(self, scores: Tensor, is_ood: Tensor, is_correct: Tensor) -> None:
        """Add one batch.

        Args:
            scores: Higher = more in-distribution, shape (batch,).
            is_ood: True for OOD images, boolean, shape (batch,).
            is_correct: Whether the prediction is correct, boolean, shape (batch,); ignored for OOD images.

        Raises:
            InvalidArgumentError: Shapes or types do not match.
        """
        scores, (is_ood, is_correct) = check_batch(scores, is_ood=is_ood, is_correct=is_correct)
        self.append("correct_scores", scores[~is_ood & is_correct])
        self.append("wrong_scores", scores[~is_ood & ~is_correct])
        self.append("ood_scores", scores[is_ood])

    def result(self) -> Tensor:
        """Return the value of all images."""
        correct, wrong = self.stream("correct_scores"), self.stream("wrong_scores")
        is_correct = torch.arange(len(correct) + len(wrong), device=correct.device) < len(correct)
        return self._float(self.value(torch.cat([correct, wrong]), self.stream("ood_scores"), is_correct))

    def value(self, id_scores: Tensor, ood_scores: Tensor, is_correct: Tensor) -> float:
        """Compute the metric from the scores of all images."""
        return oscr(id_scores, ood_scores, is_correct=is_correct)


def _compute(images: Images) -> Value:
    ranking, correct_below = images.ranking, images.id_correct_below
    if reason := ranking.missing():
        return Value.undefined(reason)
    # From cumulative counts over the ID scores, which are sorted for all rows: no separate ranking.
    half_losses = int((correct_below[ranking.id_below] + correct_below[ranking.id_at_most]).sum())
    half_wins = 2 * int(correct_below[-1]) * ranking.n_ood - half_losses
    return Value(half_wins / (2 * ranking.n_id * ranking.n_ood))


ENTRIES = (
    MetricEntry(
        name="oscr",
        better="higher",
        of=(Role.OOD,),
        text="area under the curve of accepted and correctly classified ID images against accepted OOD images",
        function=oscr,
        compute=_compute,
        order=50,
        needs=frozenset({"id_labels"}),
    ),
)
