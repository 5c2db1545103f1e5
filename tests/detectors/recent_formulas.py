"""The same for detectors of 2025 and 2026: plain loops, as literal as the formula."""

import math
from dataclasses import replace

import numpy as np

from .formulas import Array, Problem, class_means, each, lse, mahalanobis, unit


def mahalanobis_of_power(p: Problem, power: float) -> Array:
    """Janiak, 2025: features divided by a power of their norm."""
    scaled = [np.array([x / np.linalg.norm(x) ** power for x in rows]) for rows in (p.x, p.q)]
    return mahalanobis(replace(p, x=scaled[0], q=scaled[1]))


def ras(p: Problem) -> Array:
    """Guglielmo and Masana, 2026: the r-th smallest feature becomes its mean over training; equal ones share a mean."""
    means, rows = np.mean([sorted(x) for x in p.x], axis=0), []
    for x in p.q:
        ranks = [[r for r, other in enumerate(sorted(x)) if other == v] for v in x]
        rows.append([np.mean([means[r] for r in of_value]) for of_value in ranks])
    return np.array(rows)


def ora(p: Problem) -> Array:
    """Demirel et al., NeurIPS 2025: the largest angle, at the mean of class means, to a foot on a boundary."""
    mean, result = np.mean(class_means(p), axis=0), []
    for x, z in zip(p.q, p.zq, strict=True):
        y, angles = int(z.argmax()), []
        for c in set(range(len(z))) - {y}:
            normal = p.W[y] - p.W[c]
            foot = x - (z[y] - z[c]) / (normal @ normal) * normal
            angles.append(math.acos(unit(x - mean) @ unit(foot - mean)) / math.pi)
        result.append(max(angles))
    return np.array(result)


def act_sub(p: Problem, percent: float = 95.0, power: float = 2.0, dim: int | None = None, k: int = 10) -> Array:
    """Zongur et al., ICCV 2025, with both parts as vectors of all features; all training images are in the bank."""
    _, sizes, axes = np.linalg.svd(p.W)

    def parts(x: Array, first: int) -> tuple[Array, Array]:
        decisive = sum((v @ x) * v for v in axes[:first])
        return np.asarray(decisive), x - decisive

    def imbalance(first: int) -> float:
        norms = [[np.linalg.norm(part) for part in parts(x, first)] for x in p.x]
        return abs(float(np.subtract(*np.mean(norms, axis=0))))

    if dim is None:
        most = min(int((sizes > 1e-9 * sizes[0]).sum()), len(axes) - 1)
        dim = min(range(1, most + 1), key=imbalance)

    def energy(x: Array) -> float:
        decisive, _ = parts(x, dim)
        largest = sorted(decisive)[-max(1, len(x) - round(len(x) * percent / 100)) :]
        return lse(p.W @ (decisive * math.exp(sum(decisive) / sum(largest))) + p.b)

    energies = np.array([energy(x) for x in p.x])
    offset = 0.0 if np.mean(energies <= 0) <= 0.01 else energies.min() - (energies.std() or 1.0)
    bank = [unit(parts(x, dim)[1]) for x in p.x]

    def score(x: Array) -> float:
        cosine = np.mean(sorted(unit(parts(x, dim)[1]) @ b for b in bank)[-k:])
        return float((energy(x) - offset) * (-math.log(1 - max(cosine, 0.0))) ** power)

    return each(p.q, score)


def p_value(s: float, calibration: list[float]) -> float:
    """The fraction of calibration scores that are not above s, one more on both sides; between two, a straight line."""
    rank = float(sum(c <= s for c in calibration))
    if 0 < rank < len(calibration):
        low, high = max(c for c in calibration if c <= s), min(c for c in calibration if c > s)
        if s > low:
            rank += (s - low) / (high - low)
    return (1 + rank) / (len(calibration) + 1)


def combined(tests: list[Array], training: list[Array]) -> Array:
    """Magesh et al., 2022: the smallest of K p_(i) / i; scores of the test and training images, one array per part."""
    result = []
    for scores in zip(*tests, strict=True):
        p = sorted(p_value(s, list(c)) for s, c in zip(scores, training, strict=True))
        result.append(min(len(p) * p[i - 1] / i for i in range(1, len(p) + 1)))
    return np.array(result)


def refused(p: Array, alpha: float) -> bool:
    """Benjamini and Yekutieli, 2001: of one image, from its p-values."""
    harmonic = sum(1 / i for i in range(1, len(p) + 1))
    return any(sorted(p)[i - 1] <= alpha * i / (len(p) * harmonic) for i in range(1, len(p) + 1))


def sirc(distance: Array, s2: Array, training: Array) -> Array:
    """Xia and Bouganis, ACCV 2022: from the largest value of S1 minus S1; mean and deviation of S2 over training."""
    a, b = np.mean(training) - 3 * np.std(training), 1 / np.std(training)
    return np.array([-math.log(d) - math.log1p(math.exp(-b * (s - a))) for d, s in zip(distance, s2, strict=True)])
