"""Every detector once more, from its paper alone: plain loops over images, on problems that are easy to get wrong.

Nothing here uses the package's mathematics: NumPy and SciPy in float64, one function per detector, as literal as the
formula. Sources are given beside each function.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import optimize, stats
from torch import nn

from oodlit.detectors import (
    ASH,
    DDU,
    DICE,
    FDBD,
    GEN,
    KNN,
    MSP,
    NCI,
    ODIN,
    SCALE,
    SHE,
    VRA,
    Cosine,
    Detector,
    Energy,
    Entropy,
    GradNorm,
    KLMatching,
    LaRD,
    Mahalanobis,
    MaxLogit,
    MCDropout,
    NNGuide,
    OpenMax,
    RankFeat,
    ReAct,
    RelativeCosine,
    RelativeMahalanobis,
    Residual,
    TemperatureScaledMSP,
    ViM,
    detectors,
    fit,
)
from oodlit.outputs import Head, Outputs

from .networks import Conv, PlainModel

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


CASES: dict[str, tuple[Callable[[], Detector], Callable[[Problem], Array]]] = {
    "msp": (MSP, lambda p: each(p.zq, msp)),
    "max_logit": (MaxLogit, lambda p: p.zq.max(axis=1)),
    "energy": (Energy, lambda p: each(p.zq, lse)),
    "energy-2.5": (lambda: Energy(2.5), lambda p: each(p.zq, lambda z: 2.5 * lse(z / 2.5))),
    "entropy": (Entropy, lambda p: each(p.zq, entropy)),
    "gen": (GEN, lambda p: each(p.zq, gen)),
    "gen-top-3": (lambda: GEN(0.3, 3), lambda p: each(p.zq, lambda z: gen(z, 0.3, 3))),
    "kl_matching": (KLMatching, kl_matching),
    "temperature_scaled_msp": (TemperatureScaledMSP, temperature_scaled),
    "open_max": (OpenMax, open_max),
    "open_max-7-3": (lambda: OpenMax(7, 3), lambda p: open_max(p, 7, 3)),
    "mahalanobis": (Mahalanobis, mahalanobis),
    "relative_mahalanobis": (RelativeMahalanobis, relative_mahalanobis),
    "vim": (ViM, vim),
    "vim-3": (lambda: ViM(3), lambda p: vim(p, 3)),
    "residual": (Residual, lambda p: -residual_norms(p, p.q, None)),
    "knn-1": (lambda: KNN(1), lambda p: knn(p, 1)),
    "knn-9": (lambda: KNN(9), lambda p: knn(p, 9)),
    "cosine": (Cosine, lambda p: cosines(p, class_means(p)).max(axis=1)),
    "cosine-head": (lambda: Cosine.preset("zero-shot"), lambda p: cosines(p, list(p.W)).max(axis=1)),
    "relative_cosine": (RelativeCosine, lambda p: each(cosines(p, class_means(p)), msp)),
    "mcm": (lambda: RelativeCosine.preset("mcm"), lambda p: each(cosines(p, list(p.W)), msp)),
    "relative_cosine-0.1": (
        lambda: RelativeCosine(temperature=0.1),
        lambda p: each(cosines(p, class_means(p)) / 0.1, msp),
    ),
    "nn_guide": (NNGuide, lambda p: nn_guide(p, 10)),
    "she": (SHE, she),
    "grad_norm": (GradNorm, grad_norm),
    "fdbd": (FDBD, fdbd),
    "nci": (NCI, lambda p: nci(p, 1e-4)),
    "nci-0.2": (lambda: NCI(0.2), lambda p: nci(p, 0.2)),
    "ddu": (DDU, lambda p: ddu(p, "tied")),
    "ddu-full": (lambda: DDU.preset("paper"), lambda p: ddu(p, "full")),
    "ddu-diagonal": (lambda: DDU("diagonal"), lambda p: ddu(p, "diagonal")),
    "re_act": (ReAct, lambda p: rescored(p, clipped(p, 99.0))),
    "re_act-p90": (lambda: ReAct.preset("p90-val"), lambda p: rescored(p, clipped(p, 90.0))),
    "re_act-msp": (lambda: ReAct(then=MSP()), lambda p: rescored(p, clipped(p, 99.0), msp)),
    "re_act-dice": (
        lambda: ReAct.preset("dice"),
        lambda p: rescored(p, np.minimum(p.q, 1.0), weight=sparse_head(p, 10.0)),
    ),
    "dice": (DICE, lambda p: rescored(p, p.q, weight=sparse_head(p, 70.0))),
    "dice-entropy": (
        lambda: DICE(90.0, then=Entropy()),
        lambda p: rescored(p, p.q, entropy, sparse_head(p, 90.0)),
    ),
    "vra": (VRA, lambda p: rescored(p, cut(p, 1.0, 99.0))),
    "vra-gen": (lambda: VRA(60.0, 95.0, then=GEN()), lambda p: rescored(p, cut(p, 60.0, 95.0), gen)),
    "ash": (ASH, lambda p: rescored(p, ash(p, "s", 90.0))),
    "ash-b": (lambda: ASH.preset("b-65"), lambda p: rescored(p, ash(p, "b", 65.0))),
    "ash-p": (lambda: ASH.preset("p-60"), lambda p: rescored(p, ash(p, "p", 60.0))),
    "ash-max-logit": (lambda: ASH("s", 50.0, MaxLogit()), lambda p: rescored(p, ash(p, "s", 50.0), lambda z: z.max())),
    "scale": (SCALE, lambda p: rescored(p, ash(p, "scale", 85.0))),
    "scale-msp": (lambda: SCALE(50.0, MSP()), lambda p: rescored(p, ash(p, "scale", 50.0), msp)),
    "ash-on-clipped": (
        lambda: ReAct(then=ASH("p", 50.0)),
        lambda p: rescored(p, ash(replace(p, q=clipped(p, 99.0)), "p", 50.0)),
    ),
}
ELSEWHERE = {"odin", "mc_dropout", "lard", "rank_feat"}
"""Detectors that need a network; their tests are at the end."""
NON_NEGATIVE = {name for name in CASES if name.startswith(("ash", "scale"))}
NEED_A_COVARIANCE = {"mahalanobis", "relative_mahalanobis", "ddu", "ddu-full", "ddu-diagonal"}
SINGULAR = {"one-image-per-class", "more-features-than-images"}


def defined(name: str, kind: str) -> bool:
    """Whether the plain formula has a value: no inverse of a singular matrix, no pruning of signed features."""
    return not (name in NEED_A_COVARIANCE and kind in SINGULAR) and not (name in NON_NEGATIVE and kind == "signed")


def test_every_detector_is_rederived() -> None:
    keys = {kind.key() for kind in detectors().values()}
    assert {type(make()).key() for make, _ in CASES.values()} | ELSEWHERE == keys
    assert len(keys) >= 30


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n in CASES for k in PROBLEMS if defined(n, k)])
def test_scores_are_those_of_the_formula(name: str, kind: str) -> None:
    make, formula = CASES[name]
    given = PROBLEMS[kind]()
    expected = formula(given)
    # Differences of large terms: their error is measured by the size of the scores.
    rtol = 1e-6 if name == "temperature_scaled_msp" else 1e-9
    np.testing.assert_allclose(given.scores(make()), expected, rtol=rtol, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("name", CASES)
def test_scores_in_float32_are_those_of_the_formula(name: str) -> None:
    make, formula = CASES[name]
    given = problem(seed=10)
    expected = formula(given)
    scores = given.scores(make(), torch.float32)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


MASKABLE = {
    "msp",
    "energy",
    "entropy",
    "gen",
    "kl_matching",
    "temperature_scaled_msp",
    "open_max-7-3",
    "nn_guide",
    "she",
}


@pytest.mark.parametrize("name", sorted(MASKABLE | {"max_logit", "fdbd", "nci"}))
def test_a_masked_class_counts_as_little_as_one_that_is_not_there(name: str) -> None:
    given = problem(seed=11)
    rows = given.y < 5
    given = replace(given, x=given.x[rows], y=given.y[rows], zx=given.zx[rows])
    without = replace(given, W=given.W[:5], b=given.b[:5], zx=given.zx[:, :5], zq=given.zq[:, :5])
    masked = replace(given, zx=given.zx.copy(), zq=given.zq.copy())
    masked.zx[:, 5] = masked.zq[:, 5] = -INFINITY
    make, _ = CASES[name]
    np.testing.assert_allclose(masked.scores(make()), without.scores(make()), rtol=1e-9)


# --- Detectors that need a network


@pytest.mark.parametrize("preset", ["paper", "cood"])
def test_odin_presets(preset: str) -> None:
    """Liang et al., ICLR 2018: a step of eps in pixels, so eps / std of each channel, against the cross entropy."""
    temperature, epsilon = {"paper": (1000.0, 0.0014), "cood": (2.0, 1e-5)}[preset]
    network, std = Conv(), torch.tensor([0.2, 0.5, 1.0])
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3, 5, 5))).float()
    expected = []
    for image in images:
        x = image[None].clone().requires_grad_()
        z = network(x)[0] / temperature
        (gradient,) = torch.autograd.grad(z.logsumexp(dim=0) - z.max(), x)
        step = torch.stack([epsilon / s * g.sign() for s, g in zip(std, gradient[0], strict=True)])
        with torch.no_grad():
            expected.append(msp(network(image[None] - step)[0].double().numpy() / temperature))
    with torch.no_grad():
        outputs = Outputs(network(images), images=images, model=PlainModel(network, std))
    scores = ODIN.preset(preset).score(outputs).numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert len(np.unique(scores)) == len(scores)


@pytest.mark.parametrize("measure", ["entropy", "max"])
def test_mc_dropout_takes_the_mean_of_its_passes(measure: Literal["entropy", "max"]) -> None:
    """Gal and Ghahramani, ICML 2016: the predictive distribution is the mean softmax of the passes."""
    model, passes = PlainModel(Conv(dropout=(nn.Dropout(0.5),)), torch.ones(3)), []

    class Recorded(PlainModel):
        def logits(self, images: torch.Tensor) -> torch.Tensor:
            passes.append(super().logits(images))
            return passes[-1]

    images = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 3, 5, 5))).float()
    outputs = Outputs(torch.zeros(4, 4), images=images, model=Recorded(model.network, model.std))
    scores = MCDropout(measure=measure).score(outputs).numpy()
    softmax = np.exp([[log_p(z) for z in one.detach().double().numpy()] for one in passes])
    assert len(softmax) == 30
    assert np.ptp(softmax, axis=0).max() > 0.01
    mean = softmax.mean(axis=0)
    expected = mean.max(axis=1) if measure == "max" else (mean * np.log(mean)).sum(axis=1)
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 4, 5), (6, 1, 2)], ids=["wide", "tall"])
def test_rank_feat(shape: tuple[int, int, int]) -> None:
    """Song et al., NeurIPS 2022: the map without its first singular component, then the rest of the network."""
    network = Conv(width=shape[0])
    maps = np.random.default_rng(0).normal(size=(5, *shape)) + 1
    expected = []
    for one in maps:
        u, s, v = np.linalg.svd(one.reshape(shape[0], -1))
        rest = one.reshape(shape[0], -1) - s[0] * np.outer(u[:, 0], v[0])
        z = network.head.weight.detach().double().numpy() @ rest.mean(axis=1) + network.head.bias.detach().numpy()
        expected.append((lse(z), msp(z)))
    outputs = Outputs(
        torch.zeros(5, 4), hidden={"feature_map": torch.from_numpy(maps)}, model=PlainModel(network, torch.ones(3))
    )
    scores = [RankFeat(then=then).score(outputs).detach().numpy() for then in (None, MSP())]
    np.testing.assert_allclose(np.transpose(scores), expected, rtol=1e-4)


def hidden_clusters(images: int, seed: int) -> tuple[torch.Tensor, Array, NDArray[np.int64]]:
    """Maps, their channel means, and labels without class 1; three clusters far from each other."""
    rng = np.random.default_rng(seed)
    y = np.array([0, 2, 3])[np.arange(images) % 3]
    maps = (
        rng.normal(size=(images, 4, 2, 3))
        + (np.array([[9.0, 0, 0, 0], [0] * 4, [0, 9, 0, 0], [0, 0, 9, 0]])[y])[..., None, None]
    )
    return torch.from_numpy(maps), maps.mean(axis=(2, 3)), y


@pytest.mark.parametrize("density", ["mahalanobis", "knn", "gmm"])
@pytest.mark.parametrize("dim", [None, 3])
def test_lard(density: Literal["mahalanobis", "knn", "gmm"], dim: int | None) -> None:
    """Arnez et al., UAI 2024: principal components of the channel means of a hidden layer, and a density of them."""
    (maps, h, y), (test_maps, g, _) = hidden_clusters(120, 0), hidden_clusters(12, 1)
    if dim is not None:
        values, vectors = np.linalg.eigh(np.cov(h.T))
        basis = vectors[:, np.argsort(-values)[:dim]]
        h, g = (h - h.mean(axis=0)) @ basis, (g - h.mean(axis=0)) @ basis
    parts = [h[y == c] for c in (0, 2, 3)]
    if density == "mahalanobis":
        precision = np.linalg.inv(sum(len(part) * np.cov(part.T, bias=True) for part in parts) / len(h))
        expected = each(
            g, lambda x: -min(float((x - m) @ precision @ (x - m)) for m in (a.mean(axis=0) for a in parts))
        )
    elif density == "knn":
        expected = each(g, lambda x: -sorted(float(np.linalg.norm(unit(x) - unit(n))) for n in h)[4])
    else:  # clusters as far apart as these: the mixture of largest likelihood has one component for each
        models = [(a.mean(axis=0), np.cov(a.T, bias=True)) for a in parts]
        expected = each(
            g, lambda x: lse(np.array([stats.multivariate_normal(m, s).logpdf(x) for m, s in models])) - math.log(3)
        )
    detector = LaRD("block", density=density, dim=dim, k=5, components=3)
    fit([detector], [Outputs(torch.zeros(120, 4), labels=torch.from_numpy(y), hidden={"block": maps})])
    scores = detector.score(Outputs(torch.zeros(12, 4), hidden={"block": test_maps})).numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-3 if density == "gmm" else 1e-9)


# --- Settings


@pytest.mark.parametrize(
    ("detector", "published"),
    [
        (GEN(), {"gamma": 0.1, "top": 100}),
        (Energy(), {"temperature": 1.0}),
        (OpenMax(), {"tail": 20, "alpha": 10}),
        (MCDropout(), {"passes": 30, "measure": "entropy", "seed": 0}),
        (ODIN(), {"temperature": 1000.0, "epsilon": 0.0014}),
        (ReAct(), {"percentile": 99.0, "threshold": None, "then": None}),
        (KNN(), {"k": 1000, "bank_size": None}),
        (KNN.preset("1-percent"), {"k": 10, "bank_size": 12_811}),
        (RelativeCosine(), {"concepts": "means", "temperature": 1.0}),
        (DICE(), {"percentile": 70.0, "then": None}),
        (DICE.preset("cifar"), {"percentile": 90.0, "then": None}),
        (ASH(), {"variant": "s", "percentile": 90.0, "then": None}),
        (SCALE(), {"percentile": 85.0, "then": None}),
        (NNGuide(), {"k": 10, "bank_size": 12_811}),
        (NCI(), {"alpha": 1e-4}),
        (VRA(), {"low": 1.0, "high": 99.0, "then": None}),
        (VRA.preset("p60-p95"), {"low": 60.0, "high": 95.0, "then": None}),
    ],
    ids=repr,
)
def test_settings_are_the_published_ones(detector: Detector, published: dict[str, object]) -> None:
    assert detector.settings == published
