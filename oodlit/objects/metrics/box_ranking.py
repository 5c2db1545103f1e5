"""AUROC and FPR of boxes: how well a score separates boxes of ID images from boxes of an OOD split."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int

from oodlit.base.fractions import ShareLike
from oodlit.base.roles import Role
from oodlit.metrics.auroc import auroc, auroc_of
from oodlit.metrics.entry import MetricEntry, Value
from oodlit.metrics.fpr import fpr_at_tpr, fpr_of
from oodlit.metrics.numerics.ranking import Ranking, exact_share, rank
from oodlit.objects.metrics.boxes import Boxes
from oodlit.objects.metrics.resampling import blocks, ratios


@dataclass(frozen=True, eq=False)
class RankedBoxes:
    """Scores of boxes with their images.

    Args:
        scores: Shape (boxes,).
        image: Position of the image of every box, shape (boxes,).
        drawn: How often every image is drawn, shape (repetitions, images).
    """

    scores: Float[np.ndarray, " boxes"]
    image: Int[np.ndarray, " boxes"]
    drawn: Int[np.ndarray, "repetitions images"]

    def ascending(self) -> "RankedBoxes":
        """The same boxes, sorted by score, lowest first."""
        order = np.argsort(self.scores, kind="stable")
        return RankedBoxes(self.scores[order], self.image[order], self.drawn)


def ranking_replicates(
    inside: RankedBoxes, outside: RankedBoxes, *, tpr: ShareLike = 0.95
) -> dict[str, Float[np.ndarray, " repetitions"]]:
    """AUROC and FPR of boxes of ID images against boxes of a split, in every repetition."""
    inside = inside.ascending()
    below, at_most = (np.searchsorted(inside.scores, outside.scores, side=side) for side in ("left", "right"))
    share = exact_share(tpr)
    repetitions = len(inside.drawn)
    aurocs, fprs = np.full((2, repetitions), np.nan)
    if not (len(inside.scores) and len(outside.scores)):
        return {"auroc": aurocs, "fpr": fprs}
    for block in blocks(repetitions, len(inside.scores) + len(outside.scores)):
        # Counts of ID boxes fit in 32 bits, which halves the memory; products and sums do not.
        cumulated = np.cumsum(inside.drawn[block].astype(np.int32)[:, inside.image], axis=1, dtype=np.int32)
        total = cumulated[:, -1].astype(np.int64)
        before = np.pad(cumulated, ((0, 0), (1, 0)))
        outer = outside.drawn[block].astype(np.int32)[:, outside.image]
        pairs = total * outer.sum(axis=1, dtype=np.int64)
        losses = np.einsum("ij,ij->i", outer, before[:, below], dtype=np.int64)
        losses += np.einsum("ij,ij->i", outer, before[:, at_most], dtype=np.int64)
        aurocs[block] = 1 - ratios(losses, 2 * pairs)
        # The threshold is the largest score that k boxes reach, k = ceil(tpr * total), in integers.
        needed = -(-share.numerator * total // share.denominator)
        rejected = (cumulated <= (total - needed)[:, None]).sum(axis=1)  # boxes below it
        accepted = at_most[None, :] > np.minimum(rejected, len(inside.scores) - 1)[:, None]
        n_accepted = np.einsum("ij,ij->i", outer, accepted, dtype=np.int64)
        fprs[block] = ratios(n_accepted, outer.sum(axis=1, dtype=np.int64) * (total > 0))
    return {"auroc": aurocs, "fpr": fprs}


def _ranking(boxes: Boxes) -> Ranking:
    """Boxes of the split among those of the ID images."""
    inside, outside = boxes.rows
    known, own = (side.scores(boxes.detector) for side in (boxes.known, boxes.own))
    return rank(torch.from_numpy(known[inside]), torch.from_numpy(own[outside]))


def _replicates(boxes: Boxes) -> dict[str, Float[np.ndarray, " repetitions"]]:
    known, own = (
        RankedBoxes(side.scores(boxes.detector)[rows], side.image[rows], side.drawn)
        for side, rows in zip((boxes.known, boxes.own), boxes.rows, strict=True)
    )
    return ranking_replicates(known, own, tpr=boxes.settings.tpr)


def _computed(name: str, function: Callable[[Boxes, Ranking], float]) -> Callable[[Boxes], Value]:
    def compute(boxes: Boxes) -> Value:
        ranking = boxes.shared(_ranking)
        if reason := ranking.missing():
            box = "box that hits an object" if boxes.hits_only else "box"
            return Value(math.nan, reason=reason.replace("score", box))
        return boxes.with_interval(Value(function(boxes, ranking)), lambda _: boxes.shared(_replicates)[name])

    return compute


_AUROC = _computed("auroc", lambda _, ranking: auroc_of(ranking))
_FPR = _computed("fpr", lambda boxes, ranking: fpr_of(ranking, tpr=boxes.settings.tpr, rule="attained"))
AUROC_TEXT = "probability that a box of an ID image scores higher than a box of an OOD image; ties count half"
FPR_TEXT = "share of the boxes of OOD images accepted at the threshold that keeps {share} % of the ID boxes"
ENTRIES: tuple[MetricEntry, ...] = (
    MetricEntry("auroc", "higher", (Role.OOD,), AUROC_TEXT, auroc, _AUROC, 10),
    MetricEntry("fpr{share}", "lower", (Role.OOD,), FPR_TEXT, fpr_at_tpr, _FPR, 11),
)
ENTRIES += tuple(
    replace(
        entry,
        name=f"{entry.name}_hit",
        text=f"{entry.name} of the boxes that hit an annotated object, in ID and OOD images",
        needs=frozenset({"hits"}),
        order=entry.order + 10,
    )
    for entry in ENTRIES
)
