"""ID and OOD images ranked together, with the correct predictions: what every joint risk is computed from."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.metrics.numerics.ranking import FlagLike, Ranking, ScoreLike, SortedScores, as_flags, as_scores, rank
from oodlit.metrics.uncertainty.intervals import effective_interval


@dataclass(frozen=True, eq=False)
class JointRanking:
    """ID scores with their correct predictions, and OOD scores ranked among them.

    Args:
        ranking: OOD scores placed among the ID scores.
        correct_below: Number of correct predictions among the i lowest ID scores, shape (n + 1,).
    """

    ranking: Ranking
    correct_below: Int[Tensor, " steps"]

    @classmethod
    def of(cls, id_scores: ScoreLike, ood_scores: ScoreLike, is_correct: FlagLike) -> "JointRanking":
        """Sort scores; `is_correct` belongs to `id_scores`."""
        values = as_scores(id_scores, "id_scores")
        correct = as_flags(is_correct, "is_correct", like=values)
        values, order = values.sort()
        below = torch.cat([correct.new_zeros(1, dtype=torch.int64), correct[order].cumsum(0)])
        return cls(rank(SortedScores(values), ood_scores), below)

    @property
    def accuracy(self) -> float:
        """Fraction of correct predictions among the ID images."""
        return int(self.correct_below[-1]) / self.ranking.n_id

    @cached_property
    def is_correct(self) -> Tensor:
        """Whether the prediction of each ID image is correct, by ascending score, as float64."""
        return self.correct_below.diff().double()

    @cached_property
    def id_pairs(self) -> Tensor:
        """For each ID image, twice the number of images with which it makes a pair in the wrong order.

        Such a pair has a wrong prediction above a correct one; a tie counts half.
        """
        below = len(self.ranking.id_scores) - self.ranking.id_scores.at_or_above
        at_most = self.ranking.id_scores.count_at_most(self.ranking.id_scores.values)
        wrong_below = torch.arange(len(self.correct_below), device=below.device) - self.correct_below
        of_correct = 2 * wrong_below[-1] - wrong_below[below] - wrong_below[at_most]
        of_wrong = self.correct_below[below] + self.correct_below[at_most]
        return torch.where(self.is_correct > 0, of_correct, of_wrong)

    @cached_property
    def ood_pairs(self) -> Tensor:
        """For each OOD image, twice the number of correctly classified ID images below it; a tie counts half."""
        return self.correct_below[self.ranking.id_below] + self.correct_below[self.ranking.id_at_most]


class RiskCurve(NamedTuple):
    """Acceptance at every possible threshold, from the highest to the lowest score; tied images are accepted together.

    Args:
        threshold: Lowest accepted score, shape (k,).
        coverage: Fraction of accepted traffic, in (0, 1].
        risk: Fraction of errors among the accepted traffic, in [0, 1].
        tpr: Fraction of accepted ID images.
        fpr: Fraction of accepted OOD images.
        correct: Fraction of ID images that are accepted and correctly classified.
    """

    threshold: Float64[Tensor, " k"]
    coverage: Float64[Tensor, " k"]
    risk: Float64[Tensor, " k"]
    tpr: Float64[Tensor, " k"]
    fpr: Float64[Tensor, " k"]
    correct: Float64[Tensor, " k"]


def joint_augrc_of(joint: JointRanking, prior: float) -> float:
    """Compute the joint AUGRC from ranked scores."""
    n, m = joint.ranking.n_id, joint.ranking.n_ood
    wrong = joint.is_correct == 0
    id_losses = int(joint.id_pairs[wrong].sum()) / (2 * n * n)
    ood_losses = int(joint.ood_pairs.sum()) / (2 * n * m)
    errors = 1 - (1 - prior) * joint.accuracy
    return (1 - prior) ** 2 * id_losses + (1 - prior) * prior * ood_losses + errors**2 / 2


def joint_augrc_interval(joint: JointRanking, prior: float, confidence: float) -> tuple[float, float]:
    """Interval of the joint AUGRC, from the variance of its parts over the single ID and OOD images.

    Both terms of the formula share the correctly classified ID images, so their parts are added for each image.
    """
    n, m = joint.ranking.n_id, joint.ranking.n_ood
    if prior == 1:  # whatever is accepted is an error
        return 0.5, 0.5
    seen = (joint.ranking.ood_at_or_above_id + joint.ranking.ood_above_id).double() / (2 * m)
    of_id = (1 - prior) ** 2 * joint.id_pairs.double() / (2 * n)
    of_id += joint.is_correct * (1 - prior) * (prior * seen - (1 - (1 - prior) * joint.accuracy))
    of_ood = (1 - prior) * prior * joint.ood_pairs.double() / (2 * n)
    cap = 3.0 * min(n, m / max(prior * (1 - prior), 1e-12))
    low, high = effective_interval(2 * joint_augrc_of(joint, prior), [2 * of_id, 2 * of_ood], confidence, cap=cap)
    return low / 2, high / 2


def risk_curve_of(joint: JointRanking, prior: float) -> RiskCurve:
    """Compute risk and coverage from ranked scores."""
    ranking = joint.ranking
    if reason := ranking.missing():
        raise InvalidArgumentError(f"expected ID and OOD scores, but {reason}")
    scores = torch.cat([ranking.id_scores.values.double(), ranking.ood_scores.double()])
    threshold = scores.unique().flip(0)  # type: ignore[no-untyped-call]
    below = ranking.id_scores.count_below(threshold)
    n, m = ranking.n_id, ranking.n_ood
    tpr = (n - below).double() / n
    correct = (joint.correct_below[-1] - joint.correct_below[below]).double() / n
    fpr = (m - SortedScores(ranking.ood_scores).count_below(threshold)).double() / m
    coverage = (1 - prior) * tpr + prior * fpr
    errors = (1 - prior) * (tpr - correct) + prior * fpr
    # At a prior of 0 or 1, thresholds that only accept images of no weight have no risk.
    kept = coverage > 0
    values = (threshold, coverage, errors / coverage, tpr, fpr, correct)
    return RiskCurve(*(value[kept] for value in values))
