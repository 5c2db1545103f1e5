r"""The two thresholds: t\* of the confidence of the object detector, and tau of the OOD score.

Boxes below t\* are dropped first. Of the remaining boxes, those below tau are called unknown.
"""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from oodlit.base.checks import check_choice
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import ShareLike
from oodlit.metrics.numerics.acceptance import acceptance_threshold
from oodlit.metrics.numerics.ranking import ScoreLike, as_scores
from oodlit.metrics.numerics.undefined import undefined
from oodlit.objects.detections import position_within
from oodlit.objects.metrics.matching import Objects, iou_pairs, share_within

PerBox = Float[np.ndarray, " boxes"]
Positions = Int[np.ndarray, " boxes"]
Corners = Float[np.ndarray, "boxes 4"]
Flags = Bool[np.ndarray, " objects"]
Matched = Bool[np.ndarray, "overlaps boxes"]

TAU_RULES = ("quantile", "normal")

_IOUS = np.arange(50, 100, 5) / 100
_RECALLS = np.arange(101) / 100
_MOST = 100
"""Number of boxes per image and class that count in COCO's curves: those with the highest confidence."""


def unknown_threshold(id_scores: ScoreLike, *, rule: str = "quantile", tpr: ShareLike = 0.95) -> float:
    r"""Compute the threshold tau of the OOD score: a box is called unknown if its score is lower.

    `quantile`: the largest observed score that at least a share `tpr` of the ID boxes reaches, as in
    `oodlit.metrics.acceptance_threshold`. `normal`: :math:`\mu - 1.645 \sigma` of the ID scores, with the standard
    deviation of the population, as in FMIYC's program; if scores are not normally distributed, all can be above it.

    Args:
        id_scores: Scores of the boxes of ID images above t\*, higher = more in-distribution.
        rule: "quantile" or "normal".
        tpr: Share of the ID boxes to keep, for "quantile".

    Returns:
        The threshold. NaN with an `UndefinedMetricWarning` if there are no ID boxes.

    Raises:
        InvalidArgumentError: The rule is unknown, the share is out of range, or "normal" is used with infinite scores.

    Example:
        >>> unknown_threshold(range(1, 21)), round(unknown_threshold(range(1, 21), rule="normal"), 3)
        (2.0, 1.014)

    References:
        FindMeIfYouCan: Bringing Open Set Metrics to near, far and farther Out-of-Distribution Object Detection.
    """
    check_choice("unknown_threshold", "rule", rule, TAU_RULES)
    if rule == "quantile":
        return acceptance_threshold(id_scores, tpr=tpr)
    scores = as_scores(id_scores, "id_scores").double()
    if not len(scores):
        return undefined("unknown_threshold", "there is no ID box")
    if infinite := int((~scores.isfinite()).sum()):
        raise InvalidArgumentError(
            f"tau: {infinite} of {len(scores)} ID scores are infinite, so their mean is undefined; use rule='quantile'"
        )
    mean = math.fsum(scores.tolist()) / len(scores)
    variance = math.fsum(((scores - mean) ** 2).tolist()) / len(scores)
    return mean - 1.645 * math.sqrt(variance)


def best_f1_confidence(
    boxes: Corners,
    confidence: PerBox,
    image: Positions,
    classes: Positions,
    objects: Objects,
    *,
    is_crowd: Flags | None = None,
) -> float:
    r"""Compute t\* by the best F1: the mean over classes, from curves averaged over overlaps .5, .55, ..., .95.

    For each class, boxes by falling confidence take the free object of their class that they overlap most, as in COCO's
    evaluation; a box that only overlaps a crowd is ignored, and only the first 100 boxes of an image count. At recall
    0, .01, ..., 1, the precision (the largest at this recall or a higher one, else 0) and the confidence that reaches
    it (else 0) are averaged over the overlaps. The confidence at the first best F1 is that of the class. Classes
    without objects do not count.

    The confidence that maximizes mAP would not be a useful rule: dropping boxes never increases mAP.

    Args:
        boxes: All predicted boxes of ID images, xmin, ymin, xmax, ymax, without a threshold.
        confidence: Their confidence.
        image: Position of their image.
        classes: Their predicted class.
        objects: The annotated objects, with their classes.
        is_crowd: Which of them are crowds; None = none.

    Returns:
        The confidence. NaN with an `UndefinedMetricWarning` if there are no objects.

    Raises:
        InvalidArgumentError: The objects have no classes.

    Example:
        >>> here = np.zeros(3, dtype=np.int64)
        >>> boxes = np.array([[0.0, 0, 4, 4], [8, 8, 9, 9], [5, 5, 6, 6]])
        >>> best_f1_confidence(boxes, np.array([0.9, 0.5, 0.1]), here, here, Objects(boxes[:2], here[:2], here[:2]))
        0.5
    """
    if objects.classes is None:
        raise InvalidArgumentError("best_f1_confidence: expected Objects(boxes, image, classes), got no classes")
    crowd = np.zeros(len(objects), dtype=bool) if is_crowd is None else is_crowd
    found = []
    for label in np.unique(objects.classes[~crowd]).tolist():
        rows = np.flatnonzero(classes == label)
        rows = rows[np.argsort(-confidence[rows], kind="stable")]
        rows = rows[position_within(torch.from_numpy(image[rows])).numpy() < _MOST]
        members = np.flatnonzero(objects.classes == label)
        of_class = Objects(objects.boxes[members], objects.image[members])
        true, ignored = _coco_matches(boxes[rows], image[rows], of_class, crowd[members])
        found.append(_at_best_f1(true, ignored, confidence[rows], int((~crowd[members]).sum())))
    return undefined("best_f1_confidence", "there is no ID object") if not found else math.fsum(found) / len(found)


def _coco_matches(boxes: Corners, image: Positions, objects: Objects, crowd: Flags) -> tuple[Matched, Matched]:
    """Which ranked boxes are true positives, and which are ignored, for every overlap."""
    true = np.zeros((len(_IOUS), len(boxes)), dtype=bool)
    ignored = np.zeros_like(true)
    free = np.ones((len(_IOUS), len(objects)), dtype=bool)
    order = np.lexsort((*objects.boxes.T[::-1], objects.image))
    ordered = objects.image[order]
    first, last = (np.searchsorted(ordered, image, side=side) for side in ("left", "right"))
    for row in np.flatnonzero(last > first).tolist():
        near = order[first[row] : last[row]]
        box = np.broadcast_to(boxes[row], (len(near), 4))
        overlap = iou_pairs(box, objects.boxes[near])
        within = share_within(box, objects.boxes[near])
        for level, needed in enumerate(_IOUS):
            usable = np.where(free[level, near] & ~crowd[near] & (overlap >= needed), overlap, -1.0)
            best = int(usable.argmax())
            if usable[best] >= 0:
                true[level, row] = True
                free[level, near[best]] = False
            elif (within[crowd[near]] >= needed).any():
                ignored[level, row] = True
    return true, ignored


def _at_best_f1(true: Matched, ignored: Matched, confidence: PerBox, n_objects: int) -> float:
    """The averaged confidence at the best F1 of the averaged curve."""
    precisions, confidences = np.zeros((2, len(_IOUS), len(_RECALLS)))
    for level in range(len(_IOUS)):
        kept = ~ignored[level]
        found = np.cumsum(true[level, kept])
        if not len(found):
            continue
        precision = np.maximum.accumulate((found / np.arange(1, len(found) + 1))[::-1])[::-1]
        # Recall i / 100 is reached if 100 * found >= i * objects, decided in integers.
        at = np.searchsorted(found * 100, np.arange(101) * n_objects, side="left")
        reached = at < len(found)
        precisions[level, reached] = precision[at[reached]]
        confidences[level, reached] = confidence[kept][at[reached]]
    precision, confidence = precisions.mean(axis=0), confidences.mean(axis=0)
    total = precision + _RECALLS
    f1 = np.divide(2 * precision * _RECALLS, total, out=np.zeros_like(total), where=total > 0)
    return float(confidence[f1.argmax()])
