"""Strategies and slow, readable references for the tests of metrics."""

import itertools
from fractions import Fraction

import numpy as np
import torch
from hypothesis import strategies as st

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_TIED = st.sampled_from([-np.inf, -3.0, -1.0, -0.0, 0.0, 0.5, 0.75, 1.0, 2.0, 240.0, np.inf])
_FREE = st.floats(allow_nan=False, width=16)


@st.composite
def score_lists(draw, *, min_size=1, max_size=24):
    """Scores that every dtype of DTYPES can hold after rounding; ties and infinities are frequent."""
    return draw(st.lists(st.one_of(_TIED, _FREE), min_size=min_size, max_size=max_size))


def reference_threshold(id_scores, tpr):
    """Largest observed score that keeps at least the share tpr, by trying them all."""
    needed = Fraction(str(tpr)) * len(id_scores)
    return max(t for t in id_scores if sum(s >= t for s in id_scores) >= needed)


def reference_fpr(id_scores, ood_scores, tpr):
    threshold = reference_threshold(id_scores, tpr)
    return Fraction(sum(s >= threshold for s in ood_scores), len(ood_scores))


def reference_auroc(id_scores, ood_scores):
    wins = sum(Fraction(2 * (i > o) + (i == o), 2) for i, o in itertools.product(id_scores, ood_scores))
    return wins / (len(id_scores) * len(ood_scores))


def reference_average_precision(positives, negatives, prior=None):
    """Sum over distinct scores, descending, of recall step times precision; positives score high."""
    n, m = len(positives), len(negatives)
    weight = 1 if prior is None else Fraction(str(prior)) / (1 - Fraction(str(prior))) * Fraction(m, n)
    total, before = Fraction(0), 0
    for t in sorted({*positives, *negatives}, reverse=True):
        found = sum(s >= t for s in positives)
        false = sum(s >= t for s in negatives)
        if found > before:
            total += Fraction(found - before, n) * (weight * found) / (weight * found + false)
        before = found
    return total


def reference_detection_error(id_scores, ood_scores):
    n, m = len(id_scores), len(ood_scores)
    candidates = [
        Fraction(sum(s < t for s in id_scores), 2 * n) + Fraction(sum(s >= t for s in ood_scores), 2 * m)
        for t in {*id_scores, *ood_scores}
    ]
    return min([*candidates, Fraction(1, 2)])


def reference_aurc(scores, is_correct):
    """Expected value over all orders of tied images: every order is tried."""
    groups = [
        [c for s, c in zip(scores, is_correct, strict=True) if s == value]
        for value in sorted(set(scores), reverse=True)
    ]
    total, count = Fraction(0), 0
    for orders in itertools.product(*(list(itertools.permutations(g)) for g in groups)):
        flat = [c for order in orders for c in order]
        total += sum(Fraction(sum(not c for c in flat[:k]), k) for k in range(1, len(flat) + 1)) / len(flat)
        count += 1
    return total / count


def reference_augrc(scores, is_correct):
    """Trapezoid rule over the curve (coverage, share of undetected failures) at distinct scores."""
    n = len(scores)
    points = [(Fraction(0), Fraction(0))]
    for t in sorted(set(scores), reverse=True):
        kept = [c for s, c in zip(scores, is_correct, strict=True) if s >= t]
        points.append((Fraction(len(kept), n), Fraction(sum(not c for c in kept), n)))
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in itertools.pairwise(points))


def reference_oscr(id_scores, is_correct, ood_scores):
    """Trapezoid rule over the curve (FPR, CCR) at distinct scores."""
    points = [(Fraction(0), Fraction(0))]
    for t in sorted({*id_scores, *ood_scores}, reverse=True):
        ccr = sum(s >= t and c for s, c in zip(id_scores, is_correct, strict=True))
        points.append((Fraction(sum(s >= t for s in ood_scores), len(ood_scores)), Fraction(ccr, len(id_scores))))
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in itertools.pairwise(points))
