"""The same for detectors of 2024 and later: plain loops, as literal as the formula."""

import math
from dataclasses import replace

import numpy as np
import torch

from oodlit.detectors.formulas.perturbed_head import table_of_cosines

from .formulas import Array, Problem, each, lse, mahalanobis, msp, relative_mahalanobis, unit


def of_units(p: Problem) -> Problem:
    """The same problem with features of norm 1; the logits stay."""
    return replace(p, x=np.array([unit(x) for x in p.x]), q=np.array([unit(x) for x in p.q]))


def mahalanobis_plus_plus(p: Problem) -> Array:
    """Mueller and Hein, ICML 2025: the distance of unit features under the moments of unit features."""
    return mahalanobis(of_units(p))


def relative_mahalanobis_plus_plus(p: Problem) -> Array:
    """The same, less the distance to the whole training set."""
    return relative_mahalanobis(of_units(p))


def reconstruction_errors(train: Array, test: Array, share: float) -> Array:
    """Norm of what the fewest principal components that reach a share of the variance leave over, at least one."""
    mean = train.mean(axis=0)
    _, sizes, axes = np.linalg.svd(train - mean)
    sizes, used = sizes**2, 0
    while math.fsum(sizes[:used]) < share * math.fsum(sizes) and used < len(axes) - 1:
        used += 1
    return each(test - mean, lambda f: float(np.linalg.norm(f - axes[:used].T @ (axes[:used] @ f))))


def cop(p: Problem, share: float = 0.99) -> Array:
    """Fang et al., NeurIPS 2024: PCA of unit features."""
    return -reconstruction_errors(of_units(p).x, of_units(p).q, share)


def corp(p: Problem, share: float = 0.5, gamma: float = 3.0, size: int | None = None, seed: int = 0) -> Array:
    """The same after random Fourier features: A first, then u."""
    width = p.x.shape[1]
    size, draws = size or 2 * width, torch.Generator().manual_seed(seed)
    A = torch.randn(size, width, generator=draws, dtype=torch.float64).numpy() * math.sqrt(2 * gamma)
    u = torch.rand(size, generator=draws, dtype=torch.float64).numpy() * 2 * math.pi

    def mapped(rows: Array) -> Array:
        return np.array([math.sqrt(2 / size) * np.cos(A @ x + u) for x in rows])

    return -reconstruction_errors(mapped(of_units(p).x), mapped(of_units(p).q), share)


def neco(p: Problem, share: float = 0.7, dim: int | None = None, *, max_logit: bool = True) -> Array:
    """Ben Ammar et al., ICLR 2024: the share of a standardised feature in the first principal components."""
    std = p.x.std(axis=0)
    std[std == 0] = 1
    train, test = (p.x - p.x.mean(axis=0)) / std, (p.q - p.x.mean(axis=0)) / std
    _, sizes, axes = np.linalg.svd(train)
    while dim is None:
        reached = [k for k in range(len(sizes) + 1) if (sizes[:k] ** 2).sum() >= share * (sizes**2).sum()]
        dim = min(reached[0], p.x.shape[1] - 1)
    shares = each(test, lambda h: float(np.linalg.norm(axes[:dim] @ h) / np.linalg.norm(h)))
    top = p.zq.max(axis=1)
    return np.where(top < 0, 2 - shares, shares) * top if max_logit else shares


def lts(p: Problem, percent: float = 95.0) -> Array:
    """Djurisic et al., 2025: logits times the squared ratio of sums; the mean bias is not multiplied."""
    scores, c = [], p.b.mean()
    for x, z in zip(p.q, p.zq, strict=True):
        positive = sorted((max(v, 0.0) for v in x), reverse=True)
        k = max(1, len(x) - round(len(x) * percent / 100))
        r = sum(positive) / sum(positive[:k]) if positive[0] > 0 else 1.0
        scores.append(c + lse(r**2 * (z - c)))
    return np.array(scores)


def predicted_mean(p: Problem, z: Array) -> Array:
    """Of the training images that are predicted as this one; of all where there is none."""
    same = p.zx.argmax(axis=1) == z.argmax()
    mean: Array = (p.x[same] if same.any() else p.x).mean(axis=0)
    return mean


def ca_ref(p: Problem) -> Array:
    """Ling et al., CVPR 2025: relative L1 distance to the mean of the predicted class."""
    rows = zip(p.q, p.zq, strict=True)
    return np.array([-np.abs(x - predicted_mean(p, z)).sum() / np.abs(x).sum() for x, z in rows])


def cad_ref(p: Problem, confidence: str = "energy") -> Array:
    """The same, parted by the sign of the weights; counted from the median logit where g is small against it."""

    def median(z: Array) -> float:
        return float(np.sort(z)[(len(z) - 1) // 2])

    g = {"energy": lse, "max_logit": lambda z: z.max(), "msp": lambda z: math.exp(msp(z))}[confidence]
    mean = np.mean([g(z) for z in p.zx])
    excess = mean - np.mean([median(z) for z in p.zx])
    apart = confidence != "msp" and not (mean > 0 and mean >= 0.1 * excess)
    mean, scores = excess if apart else mean, []
    for x, z in zip(p.q, p.zq, strict=True):
        e, signs = x - predicted_mean(p, z), np.sign(p.W[z.argmax()])
        P = sum(max(0.0, v * s) for v, s in zip(e, signs, strict=True)) / np.abs(x).sum()
        N = sum(max(0.0, -v * s) for v, s in zip(e, signs, strict=True)) / np.abs(x).sum()
        scores.append(-(P / max(g(z) - apart * median(z), 1e-3 * mean) + N / mean))
    return np.array(scores)


def opt_fs(p: Problem, bins: int = 100, form: str = "projection") -> Array:
    """Zhao et al., ICLR 2024: what entries of a size contribute to the prediction in training weighs them."""
    low, high = np.percentile(p.x, 0.1), np.percentile(p.x, 99.9)

    def bin_of(v: float) -> int | None:
        b = math.floor((v - low) / ((high - low) / bins))
        return b if 0 <= b < bins else None

    theta = np.zeros(bins)
    for x in p.x:
        for v, w in zip(x, p.W[(p.W @ x + p.b).argmax()], strict=True):
            b = bin_of(v)
            if b is not None:
                theta[b] += w * v / len(p.x)
    theta *= (1 if form == "projection" else 1000) / np.linalg.norm(theta)
    shaped = [np.array([0.0 if bin_of(v) is None else theta[bin_of(v)] * v for v in x]) for x in p.q]
    if form == "energy":
        return np.array([lse(p.W @ x + p.b) for x in shaped])
    return np.array([p.W[z.argmax()] @ x for x, z in zip(shaped, p.zq, strict=True)])


def histogram(values: Array, low: float, high: float, bins: int) -> Array:
    """Shares of all values in equal bins, the upper end in the last one; what lies outside is in the total alone."""
    shares = np.zeros(bins)
    for v in values:
        if low <= v <= high:
            shares[min(math.floor((v - low) / (high - low) * bins), bins - 1)] += 1 / len(values)
    return shares


def wei_per(
    p: Problem,
    copies: int = 100,
    strength: float = 2.4,
    bins: int = 100,
    l1: float = 2.5,
    l2: float = 0.25,
    widths: tuple[int, int] = (40, 15),
    seed: int = 0,
    *,
    logits: bool = False,
) -> Array:
    """Granz et al., NeurIPS 2024: histograms of features and of logits under perturbed weights, and the softmax.

    With `logits`, the product of a feature with a perturbation is its norm times a cosine from a table.
    """
    cosines = table_of_cosines(copies, *p.W.shape, seed).numpy()

    def perturbed(i: int) -> Array:
        draws = torch.Generator().manual_seed(seed * 1_000_003 + i)
        noise = torch.randn(p.W.shape, generator=draws, dtype=torch.float64).numpy()
        rows = [w + strength * np.linalg.norm(w) * n / np.linalg.norm(n) for w, n in zip(p.W, noise, strict=True)]
        return np.array(rows)

    heads = [perturbed(i) for i in range(copies)]

    def perturbed_logits(x: Array) -> Array:
        if not logits:
            return np.array([W @ x + p.b for W in heads])
        own = p.W @ x + p.b
        return np.array(
            [
                [
                    z + strength * np.linalg.norm(w) * np.linalg.norm(x) * g
                    for z, w, g in zip(own, p.W, row, strict=True)
                ]
                for row in cosines
            ]
        )

    means: dict[float, Array] = {}

    def typical_of(train: list[Array], low: float, high: float, least: float) -> Array:
        if least not in means:
            means[least] = np.mean([histogram(v, low, high, bins) for v in train], axis=0)
        return means[least]

    def distance(train: list[Array], test: Array, width: int, least: float) -> float:
        low, high = min(v.min() for v in train), max(v.max() for v in train)
        typical = typical_of(train, low, high, least) + least
        q = histogram(test, low, high, bins)
        around = [
            [q[min(max(b + d, 0), bins - 1)] for d in range(-((width - 1) // 2), width // 2 + 1)] for b in range(bins)
        ]
        found = np.mean(around, axis=1) + least
        typical, found = typical / typical.sum(), found / found.sum()
        return float(sum(a * math.log(a / b) + b * math.log(b / a) for a, b in zip(typical, found, strict=True)))

    train = [perturbed_logits(x).flatten() for x in p.x]
    scores = []
    for x in p.q:
        own, of_logits = distance(list(p.x), x, widths[0], 0.01), perturbed_logits(x)
        near = own + l1 * distance(train, of_logits.flatten(), widths[1], 0.025)
        scores.append(-near + l2 * np.mean([math.exp(msp(z)) for z in of_logits]))
    return np.array(scores)


def nac(p: Problem, M: int = 50, enough: int = 10, steepness: float | None = None) -> Array:
    """Liu et al., ICLR 2024: how many training images have a feature's state in the bin of this image's."""
    points = [math.log(v, 1000) for v in np.linspace(1, math.sqrt(1000), M // 2)]
    edges = [*points[:-1], *(1 - v for v in reversed(points))]

    def influence(x: Array) -> Array:
        z = p.W @ x + p.b
        return np.array(x * (p.W.T @ (np.exp(z - lse(z)) - 1 / len(z))))

    a = steepness or 1 / math.sqrt(np.mean([v**2 for x in p.x for v in influence(x)]))

    def bins_of(x: Array) -> list[int]:
        exponents = [-a * v for v in influence(x)]
        states = [1 / (1 + math.exp(e)) if e < 700 else 0.0 for e in exponents]
        return [max(i for i, low in enumerate(edges[:-1]) if low <= t) for t in states]

    assert len(edges) == M - 1
    known = [bins_of(x) for x in p.x]

    def score(x: Array) -> float:
        counts = [sum(other[j] == b for other in known) for j, b in enumerate(bins_of(x))]
        return float(np.mean([min(n / enough, 1) for n in counts]))

    return each(p.q, score)
