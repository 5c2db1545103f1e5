"""The detectors from their papers alone: plain loops over images, one function each, as literal as the formula.

Nothing here uses the package's mathematics: NumPy and SciPy in float64. Sources are given beside each function.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, stats

from oodlit.detectors import Detector, fit
from oodlit.outputs import Head, Outputs

Array = NDArray[np.float64]
Scorer = Callable[[Array], Array]
INFINITY = float("inf")


@dataclass(frozen=True)
class Problem:
    """Training features x with labels y and logits zx; test features q with logits zq; the head W, b."""

    x: Array
    y: NDArray[np.int64]
    q: Array
    W: Array
    b: Array
    zx: Array
    zq: Array
    bias: bool = True

    def scores(self, detector: Detector, dtype: torch.dtype = torch.float64) -> Array:
        """Fitted in batches of 41, in a shuffled order."""

        def tensor(array: Array) -> torch.Tensor:
            return torch.from_numpy(array).to(dtype)

        head = Head(tensor(self.W), tensor(self.b) if self.bias else None)
        order = np.random.default_rng(1).permutation(len(self.x))
        batches = [
            Outputs(tensor(self.zx[i]), tensor(self.x[i]), torch.from_numpy(self.y[i]), keys=[f"t/{j}" for j in i])
            for i in (order[start : start + 41] for start in range(0, len(order), 41))
        ]
        fit([detector], batches, head)
        return detector.score(Outputs(tensor(self.zq), tensor(self.q))).double().numpy()


def problem(
    *,
    seed: int = 0,
    images: int = 150,
    width: int = 10,
    classes: int = 6,
    signed: bool = False,
    scale: float = 1.0,
    bias: bool = True,
    skip: int | None = None,
    twins: bool = False,
) -> Problem:
    """Clusters, a head near their means, and labels of which one in ten is wrong; float32 numbers, kept as float64.

    Args:
        seed: Of everything.
        images: Training images.
        width: Features.
        classes: Classes.
        signed: Features of both signs.
        scale: Of the logits.
        bias: Whether the head has one.
        skip: A class without an image.
        twins: Every training image twice.
    """
    rng = np.random.default_rng(seed)
    centres = 1.5 * rng.normal(size=(classes, width))

    def features(labels: NDArray[np.int64], noise: float) -> Array:
        raw = centres[labels] + noise * rng.normal(size=(len(labels), width))
        return (raw if signed else np.abs(raw)).astype(np.float32).astype(np.float64)

    y = np.arange(images) % classes
    if skip is not None:
        y[y == skip] = (skip + 1) % classes
    x = features(y, 0.8)
    q = np.concatenate([features(np.arange(12) % classes, 0.8), features(np.arange(8) % classes, 3.0)])
    if twins:
        x, y = np.repeat(x[: images // 2], 2, axis=0), np.repeat(y[: images // 2], 2)
    means = np.stack([features(np.full(50, c), 0.8).mean(axis=0) for c in range(classes)])
    W = scale * (means + 0.1 * rng.normal(size=means.shape)) / width**0.5
    b = -scale * (means**2).sum(axis=1) / (2 * width**0.5) * bias
    W, b = W.astype(np.float32).astype(np.float64), b.astype(np.float32).astype(np.float64)
    wrong = rng.uniform(size=len(y)) < 0.1
    y = np.where(wrong, y[rng.permutation(len(y))], y)
    return Problem(x, y, q, W, b, x @ W.T + b, q @ W.T + b, bias)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "plain": problem,
    "two-classes": lambda: problem(seed=1, classes=2),
    "class-without-image": lambda: problem(seed=2, classes=7, skip=2),
    "one-image-per-class": lambda: problem(seed=3, images=14, classes=14),
    "tiny-logits": lambda: problem(seed=4, scale=0.05),
    "large-logits": lambda: problem(seed=5, scale=50.0),
    "signed": lambda: problem(seed=6, signed=True),
    "more-features-than-images": lambda: problem(seed=7, images=30, width=40),
    "every-image-twice": lambda: problem(seed=8, twins=True),
    "no-bias": lambda: problem(seed=9, bias=False),
}


def each(rows: Array, score: Callable[[Array], float]) -> Array:
    return np.array([score(row) for row in rows])


def lse(z: Array) -> float:
    return float(z.max() + math.log(math.fsum(np.exp(z - z.max()))))


def odds_against(z: Array) -> float:
    """(1 - p) / p of the largest probability, without a difference of nearly equal numbers."""
    return math.fsum(np.exp(np.delete(z, z.argmax()) - z.max()))


def log_p(z: Array) -> Array:
    log_probabilities: Array = z - z.max() - math.log1p(odds_against(z))
    return log_probabilities


# --- Logits


def msp(z: Array) -> float:
    """Hendrycks and Gimpel, ICLR 2017: max softmax; its logarithm."""
    return float(log_p(z).max())


def entropy(z: Array) -> float:
    """Sum of p log p with 0 log 0 = 0."""
    return math.fsum(math.exp(v) * v for v in log_p(z) if v > -INFINITY)


def gen(z: Array, gamma: float = 0.1, top: int = 100) -> float:
    """Liu et al., CVPR 2023: minus the sum of p^g (1 - p)^g over the largest p."""
    best, terms = int(z.argmax()), []
    for c, v in enumerate(log_p(z)):
        rest = odds_against(z) / (1 + odds_against(z)) if c == best else -math.expm1(v)
        terms.append((v, math.exp(gamma * v) * rest**gamma))
    return -math.fsum(term for _, term in sorted(terms, reverse=True)[:top])


def kl_matching(p: Problem) -> Array:
    """Hendrycks et al., ICML 2022: minus the smallest KL(p | d_k), d_k the mean softmax of what is predicted as k."""
    predicted = p.zx.argmax(axis=1)
    means = [np.mean([np.exp(log_p(z)) for z in p.zx[predicted == k]], axis=0) for k in np.unique(predicted)]
    logs = [np.log(np.maximum(d, np.finfo(np.float64).tiny)) for d in means]
    return each(p.zq, lambda z: max(float(np.exp(log_p(z)) @ d) for d in logs) - entropy(z))


def temperature_scaled(p: Problem) -> Array:
    """Guo et al., ICML 2017: T minimises the cross entropy of the labels."""

    def loss(log_t: float) -> float:
        return float(
            np.mean([lse(z / math.exp(log_t)) - z[c] / math.exp(log_t) for z, c in zip(p.zx, p.y, strict=True)])
        )

    limits = (math.log(0.01), math.log(100))
    best = optimize.minimize_scalar(loss, bounds=limits, method="bounded", options={"xatol": 1e-9}).x
    log_t = min((*limits, best), key=loss)  # a limit, where the loss no longer falls
    return each(p.zq, lambda z: msp(z / math.exp(log_t)))


def open_max(p: Problem, tail: int = 20, alpha: int = 10) -> Array:
    """Bendale and Boult, CVPR 2016, with the tail moved to start at 1 as in libMR; the log odds of "known"."""
    models = {}
    for c in range(p.zx.shape[1]):
        rows = p.zx[(p.y == c) & (p.zx.argmax(axis=1) == c)]
        if len(rows):
            mean = rows.mean(axis=0)
            excess = np.sort(np.linalg.norm(rows - mean, axis=1))[-tail:]
            start = excess[0] - 1
            logs = np.log(excess - start)

            def slope(k: float, logs: Array = logs) -> float:
                weights = np.exp(k * (logs - logs.max()))
                return float((weights * logs).sum() / weights.sum() - 1 / k - logs.mean())

            # All distances equal: the likelihood grows with the shape, without an end.
            shape = 1e4 if slope(1e4) < 0 else optimize.brentq(slope, 1e-2, 1e4, xtol=1e-13)
            models[c] = (
                mean,
                start,
                shape,
                float(np.mean(np.exp(shape * (logs - logs.max()))) ** (1 / shape) * np.exp(logs.max())),
            )

    def score(z: Array) -> float:
        revised, unknown, used = z.copy(), 0.0, min(alpha, len(z))
        for rank, c in enumerate(np.argsort(-z, kind="stable")[:used]):
            if c in models:
                mean, start, shape, scale = models[c]
                excess = max(float(np.linalg.norm(z - mean)) - start, 1e-300) / scale
                outside = -math.expm1(-math.exp(min(shape * math.log(excess), 700.0)))
                loss = z[c] * outside * (used - rank) / used
                revised[c] -= loss
                unknown += loss
        return lse(revised) - unknown

    return each(p.zq, score)


# --- Features


def class_means(p: Problem) -> list[Array]:
    return [p.x[p.y == c].mean(axis=0) for c in np.unique(p.y)]


def within(p: Problem) -> Array:
    means = dict(zip(np.unique(p.y), class_means(p), strict=True))
    result: Array = np.mean([np.outer(x - means[c], x - means[c]) for x, c in zip(p.x, p.y, strict=True)], axis=0)
    return result


def mahalanobis(p: Problem) -> Array:
    """Lee et al., NeurIPS 2018: minus the smallest distance under the pooled within-class covariance."""
    precision = np.linalg.inv(within(p))
    return each(p.q, lambda x: -min(float((x - m) @ precision @ (x - m)) for m in class_means(p)))


def relative_mahalanobis(p: Problem) -> Array:
    """Ren et al., ICML workshop 2021: less the distance to the whole training set."""
    mean, precision = p.x.mean(axis=0), np.linalg.inv(np.cov(p.x.T, bias=True))
    return mahalanobis(p) + each(p.q, lambda x: float((x - mean) @ precision @ (x - mean)))


def residual_norms(p: Problem, rows: Array, dim: int | None) -> Array:
    dim = p.x.shape[1] // 2 if dim is None else dim
    origin = -np.linalg.pinv(p.W) @ p.b
    values, vectors = np.linalg.eigh(sum(np.outer(x - origin, x - origin) for x in p.x) / len(p.x))
    rest = vectors[:, np.argsort(-values)[dim:]]
    return each(rows, lambda x: float(np.linalg.norm(rest.T @ (x - origin))))


def vim(p: Problem, dim: int | None = None) -> Array:
    """Wang et al., CVPR 2022, in the log domain; a mean of the largest logits below zero counts by its size."""
    alpha = float(abs(p.zx.max(axis=1).mean()) / residual_norms(p, p.x, dim).mean())
    return each(p.zq, lse) - alpha * residual_norms(p, p.q, dim)


def unit(x: Array) -> Array:
    length = np.linalg.norm(x)
    direction: Array = x / length if length > 0 else x
    return direction


def knn(p: Problem, k: int) -> Array:
    """Sun et al., ICML 2022: minus the distance to the k-th nearest unit feature."""
    bank = [unit(x) for x in p.x]
    return each(p.q, lambda x: -sorted(float(np.linalg.norm(unit(x) - n)) for n in bank)[k - 1])


def cosines(p: Problem, directions: list[Array]) -> Array:
    return np.array([[unit(x) @ unit(m) for m in directions] for x in p.q])


def nn_guide(p: Problem, k: int) -> Array:
    """Park et al., ICCV 2023: energy times the mean of the k largest products with energy-scaled unit features."""
    bank = [unit(x) * lse(z) for x, z in zip(p.x, p.zx, strict=True)]
    rows = zip(p.q, p.zq, strict=True)
    return np.array([lse(z) * np.mean(sorted(unit(x) @ n for n in bank)[-k:]) for x, z in rows])


def she(p: Problem) -> Array:
    """Zhang et al., ICLR 2023: product with the mean of the correctly classified images of the prediction.

    A class without one: the mean of its images; without any: the mean of all.
    """
    predicted, patterns = p.zx.argmax(axis=1), []
    for c in range(p.zx.shape[1]):
        rows = p.x[(p.y == c) & (predicted == c)]
        rows = rows if len(rows) else p.x[p.y == c]
        patterns.append((rows if len(rows) else p.x).mean(axis=0))
    return np.array([x @ patterns[z.argmax()] for x, z in zip(p.q, p.zq, strict=True)])


def grad_norm(p: Problem) -> Array:
    """Huang et al., NeurIPS 2021: L1 norm of the gradient of sum_c -log p_c, here by back-propagation."""
    result = []
    for x, z in zip(p.q, p.zq, strict=True):
        weight = torch.zeros(len(z), len(x), dtype=torch.float64, requires_grad=True)  # z + weight x is z
        loss = -torch.log_softmax(torch.from_numpy(z) + weight @ torch.from_numpy(x), dim=0).sum()
        (gradient,) = torch.autograd.grad(loss, weight)
        result.append(float(gradient.abs().sum()))
    return np.array(result)


def fdbd(p: Problem) -> Array:
    """Liu and Qin, ICML 2024: distances to the decision boundaries over the distance to the mean."""
    mean, result = p.x.mean(axis=0), []
    for x, z in zip(p.q, p.zq, strict=True):
        y = int(z.argmax())
        others = [c for c in range(len(z)) if c != y]
        result.append(
            sum(abs(z[y] - z[c]) / np.linalg.norm(p.W[y] - p.W[c]) for c in others) / np.linalg.norm(x - mean)
        )
    return np.array(result)


def nci(p: Problem, alpha: float) -> Array:
    """Liu and Qin, CVPR 2025: projection on the weight of the prediction, and the L1 norm."""
    rows = zip(p.q - p.x.mean(axis=0), p.zq, p.q, strict=True)
    return np.array([p.W[z.argmax()] @ (d / np.linalg.norm(d)) + alpha * np.abs(x).sum() for d, z, x in rows])


def ddu(p: Problem, form: str) -> Array:
    """Mukhoti et al., CVPR 2023: log of the sum of the class densities."""
    covariances = {"full": [np.cov(p.x[p.y == c].T, bias=True) for c in np.unique(p.y)]}
    covariances["diagonal"] = [np.diag(np.diag(s)) for s in covariances["full"]]
    covariances["tied"] = [within(p)] * len(covariances["full"])
    parts = [stats.multivariate_normal(m, s) for m, s in zip(class_means(p), covariances[form], strict=True)]
    return each(p.q, lambda x: lse(np.array([part.logpdf(x) for part in parts])))


# --- Features reshaped before the head


def rescored(p: Problem, features: Array, then: Callable[[Array], float] = lse, weight: Array | None = None) -> Array:
    return each(features @ (p.W if weight is None else weight).T + p.b, then)


def clipped(p: Problem, percent: float) -> Array:
    """Sun et al., NeurIPS 2021 (ReAct): at most a percentile of all activations."""
    return np.minimum(p.q, np.percentile(p.x, percent))


def sparse_head(p: Problem, percent: float) -> Array:
    """Sun and Li, ECCV 2022 (DICE): weights whose contribution on average lies above a percentile."""
    contribution = p.W * p.x.mean(axis=0)
    return np.where(contribution > np.percentile(contribution, percent), p.W, 0.0)


def typical(p: Problem, spread: float) -> Array:
    """Zhu et al., NeurIPS 2022 (BATS): within some standard deviations of the mean, feature by feature."""
    mean, std = p.x.mean(axis=0), p.x.std(axis=0)
    return np.array([np.minimum(np.maximum(x, mean - spread * std), mean + spread * std) for x in p.q])


def cut(p: Problem, low: float, high: float) -> Array:
    """Xu et al., NeurIPS 2023 (VRA): zero below one percentile, at most another."""
    a, b = np.percentile(p.x, [low, high])
    return np.array([[0.0 if v < a else min(v, b) for v in x] for x in p.q])


def ash(p: Problem, variant: str, percent: float) -> Array:
    """Djurisic et al., ICLR 2023, and Xu et al., ICLR 2024 ("scale": nothing is pruned)."""
    rows = []
    for x in p.q:
        k = max(1, len(x) - round(len(x) * percent / 100))
        kept = set(sorted(range(len(x)), key=lambda i: -x[i])[:k])
        before, after = x.sum(), sum(x[i] for i in kept)
        pruned = np.array([v if i in kept else 0.0 for i, v in enumerate(x)])
        rows.append(
            {
                "p": pruned,
                "b": np.where(pruned > 0, before / k, 0.0),
                "s": pruned * math.exp(before / after),
                "scale": x * math.exp(before / after),
            }[variant]
        )
    return np.array(rows)
