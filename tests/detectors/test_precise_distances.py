"""Mahalanobis distances against a reference in 60 digits, where a feature has little or no scatter within classes."""

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from oodlit.detectors import DDU, LaRD, Mahalanobis, RelativeMahalanobis, fit
from oodlit.detectors.formulas.gaussian import RELATIVE_FLOOR
from oodlit.outputs import Outputs

from .support import normal

KINDS = [
    "constant per class",
    "constant per class, far apart",
    "constant per class, far from zero",
    "two values over five classes",
    "constant",
    "tiny scatter",
    "tiny scatter, far apart",
    "graded",
    "collinear",
    "far from zero",
    "one image per class but one",
    "collapsed",
]


def problem(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Training features, labels, and probes; few enough for exact arithmetic."""
    labels = torch.arange(30) % 5
    x = normal(30, 4, seed=1).double().round(decimals=3) + labels[:, None]
    probes = torch.cat([normal(6, 4, seed=2).double().round(decimals=3) + torch.arange(6)[:, None], x[:4]])
    of = torch.tensor([3.0, 1.0, 4.0, 1.5, 9.0]).double()
    if kind.startswith("constant per class"):
        of = {"constant per class, far apart": of * 1e6, "constant per class, far from zero": of + 1e6}.get(kind, of)
        x[:, 2], probes[:, 2] = of[labels], of[torch.tensor([0, 1, 2, 3, 4, 0, 0, 1, 2, 3])]
    elif kind == "two values over five classes":
        x[:, 2], probes[:, 2] = 1e3 * (labels % 2), 1e3 * (torch.arange(10) % 2)
    elif kind == "constant":
        x[:, 2], probes[:, 2] = 0.1, 0.1
    elif kind.startswith("tiny scatter"):
        apart = 1e5 if "far" in kind else 1.0
        x[:, 2] = of[labels] * apart + 2.0**-20 * (torch.arange(30) % 7)
        probes[:, 2] = of[torch.arange(10) % 5] * apart + 2.0**-21
    elif kind == "graded":
        scale = torch.tensor([1.0, 1e-2, 1e-4, 1e-5]).double()
        x, probes = x * scale, probes * scale
    elif kind == "collinear":
        x[:, 3], probes[:, 3] = x[:, 1], probes[:, 1]
    elif kind == "far from zero":
        x, probes = x + 2.0**20, probes + 2.0**20
    elif kind == "one image per class but one":
        labels = torch.cat([torch.arange(4), torch.full((26,), 4)])
    elif kind == "collapsed":
        x = 100.0 * labels[:, None] * torch.tensor([1.0, -1.0, 2.0, 0.5]).double() + 2.0**-10 * x
        probes = torch.cat([x[:6] + 2.0**-11, probes[:4]])
    return x, labels, probes


def exact_distances(x: Tensor, labels: Tensor, probes: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Distances to all class means, and to the mean of all; 60 digits.

    Eigenvalues of the pooled covariance are bounded; the total covariance is the sum of that and the scatter of means.
    """
    with mpmath.workdps(60):
        rows = [[mpmath.mpf(v) for v in row] for row in x.tolist()]
        width, classes = x.shape[1], sorted(set(labels.tolist()))

        def mean_of(some: list[list[mpmath.mpf]]) -> list[mpmath.mpf]:
            return [sum(row[d] for row in some) / len(some) for d in range(width)]

        of_class = {c: [row for row, own in zip(rows, labels.tolist(), strict=True) if own == c] for c in classes}
        means = {c: mean_of(some) for c, some in of_class.items()}
        overall = mean_of(rows)

        def scatter(some: list[list[mpmath.mpf]], centres: list[list[mpmath.mpf]]) -> mpmath.matrix:
            found = mpmath.matrix(width, width)
            for row, centre in zip(some, centres, strict=True):
                away = mpmath.matrix([a - b for a, b in zip(row, centre, strict=True)])
                found += away * away.T / len(rows)
            return found

        def distance(row: list[float], centre: list[mpmath.mpf], inverse: mpmath.matrix) -> float:
            away = mpmath.matrix([mpmath.mpf(a) - b for a, b in zip(row, centre, strict=True)])
            return float((away.T * inverse * away)[0])

        centres = [means[label] for label in labels.tolist()]
        values, vectors = mpmath.eigsy(scatter(rows, centres))
        floor = max(values) * mpmath.mpf(RELATIVE_FLOOR)
        bounded = vectors * mpmath.diag([max(v, floor) for v in values]) * vectors.T
        within, total = bounded**-1, (bounded + scatter(centres, [overall] * len(rows))) ** -1
        of_classes = [[distance(row, means[c], within) for c in classes] for row in probes.tolist()]
        return np.array(of_classes), np.array([distance(row, overall, total) for row in probes.tolist()])


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_bounded_by_the_size_of_the_distance(kind: str) -> None:
    """Classes that are far apart, in a feature that hardly varies within them, cost no digits."""
    x, labels, probes = problem(kind)
    of_classes, overall = exact_distances(x, labels, probes)
    nearest = of_classes.min(axis=1)
    plain, relative, tied = Mahalanobis(), RelativeMahalanobis(), DDU()
    fit([plain, relative, tied], [Outputs(features=x, labels=labels)])
    outputs = Outputs(features=probes)
    # Rounding of an eigenvalue at its bound, 1e-12 of the largest, is 1e-4 of it.
    np.testing.assert_allclose(-plain.score(outputs), nearest, rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(relative.score(outputs), overall - nearest, atol=1e-3 * (overall + nearest).max() + 1e-9)
    best = (-of_classes / 2).max(axis=1)
    mixture = best + np.log(np.exp(-of_classes / 2 - best[:, None]).sum(axis=1))
    found = tied.score(outputs).numpy() - float(tied.log_norms[0])
    np.testing.assert_allclose(found, mixture, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_lard_has_the_same_distances(kind: str) -> None:
    """LaRD keeps the digits as well."""
    x, labels, probes = problem(kind)
    nearest = exact_distances(x, labels, probes)[0].min(axis=1)
    detector = LaRD("block")
    fit([detector], [Outputs(features=x, labels=labels, hidden={"block": x})])
    scores = detector.score(Outputs(features=probes, hidden={"block": probes}))
    np.testing.assert_allclose(-scores, nearest, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "one image per class but one"])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_densities_of_single_classes(kind: str, covariance: str) -> None:
    """A Gaussian per class: log densities against 60 digits, with the documented covariance."""
    x, labels, probes = problem(kind)
    detector = DDU(covariance)  # type: ignore[arg-type]  # one of its names
    fit([detector], [Outputs(features=x, labels=labels)])
    found = detector.score(Outputs(features=probes))
    with mpmath.workdps(60):
        for i, row in enumerate(probes.tolist()):
            terms = []
            for label in range(5):
                mine = x[labels == label].tolist()
                mean = [sum(map(mpmath.mpf, column)) / len(mine) for column in zip(*mine, strict=True)]
                away = mpmath.matrix([mpmath.mpf(a) - b for a, b in zip(row, mean, strict=True)])
                factor = detector.factors[label]
                factor = mpmath.matrix((torch.diag(factor) if covariance == "diagonal" else factor).tolist())
                white = factor.T * away
                terms.append(mpmath.mpf(float(detector.log_norms[label])) - (white.T * white)[0] / 2)
            best = max(terms)
            expected = float(best + mpmath.log(sum(mpmath.exp(t - best) for t in terms)))
            assert math.isclose(float(found[i]), expected, rel_tol=1e-4, abs_tol=1e-3), (i, float(found[i]), expected)
