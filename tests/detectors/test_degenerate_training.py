"""Training sets that leave a direction, a class or a scale undefined: scores keep their direction."""

import numpy as np
import pytest
import torch
from torch import Tensor

from oodlit.detectors import DDU, KNN, Detector, Mahalanobis, NNGuide, RelativeMahalanobis, Residual, ViM, fit
from oodlit.outputs import Head, Outputs

from .support import normal

CLASSES, WIDTH = 5, 16


def training_set(kind: str) -> tuple[Outputs, Head]:
    """A training set with one fault, and its head."""
    n = {"fewer images than dimensions": 6, "one image": 1}.get(kind, 120)
    labels = torch.zeros(n).long() if kind == "one class" else torch.arange(n) % CLASSES
    weight = normal(CLASSES, WIDTH, seed=1)
    x = 3 * weight[labels] / weight.norm(dim=1, keepdim=True)[labels] + 0.5 * normal(n, WIDTH, seed=2)
    if kind == "dead units":
        x[:, -4:] = 0
    elif kind == "no residual":
        x = x[:, :4] @ normal(4, WIDTH, seed=3)
    elif kind == "constant feature":
        x[:, 3] = 7.0
    elif kind == "duplicated images":
        x = x[torch.arange(n) % 3]
    elif kind == "far from zero":
        x = x + 1000
    elif kind == "identical images":
        x = x[:1].expand(n, -1).clone()
    bias = torch.full((CLASSES,), {"negative logits": -16.0, "no level": -11.0}.get(kind, 0.0))
    head = Head(weight, bias)
    return Outputs(head(x), x, labels, keys=[f"train/{i}" for i in range(n)]), head


KINDS = [
    "plain",
    "dead units",
    "no residual",
    "fewer images than dimensions",
    "one image",
    "one class",
    "constant feature",
    "duplicated images",
    "identical images",
    "far from zero",
    "negative logits",
    "no level",
]


def fitted(make: type[Detector] | Detector, kind: str) -> tuple[Detector, Outputs, Head]:
    train, head = training_set(kind)
    detector = make() if isinstance(make, type) else make
    fit([detector], [train], head)
    return detector, train, head


def auroc(id_scores: Tensor, ood_scores: Tensor) -> float:
    return float((id_scores[:, None] > ood_scores).double().mean())


@pytest.mark.parametrize("bias", [0.0, -1.0, -3.0, -5.335, -16.0, 16.0])
def test_a_constant_in_the_bias_does_not_remove_the_residual_from_vim(bias: float) -> None:
    """The softmax does not change, so the residual must keep its influence."""
    weight = torch.cat([3 * torch.eye(4), torch.zeros(4, 4)], dim=1)
    labels = torch.arange(200) % 4
    x = torch.cat([2 * torch.eye(4)[labels] + 0.2 * normal(200, 4, seed=1), 0.1 * normal(200, 4, seed=2)], dim=1)
    far = x + torch.cat([torch.zeros(200, 4), normal(200, 4, seed=3)], dim=1)
    head, detector = Head(weight, torch.full((4,), bias)), ViM(dim=4)
    fit([detector], [Outputs(head(x), x, labels)], head)
    assert detector.alpha > 1
    assert auroc(detector.score(Outputs(head(x), x)), detector.score(Outputs(head(far), far))) > 0.95
    assert bool(detector.notes) == (abs(bias) == 16)  # from about -5.5 on, and where most of alpha is the constant


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [ViM, Residual, lambda: ViM(dim=10), lambda: Residual(dim=2)])
def test_a_larger_residual_with_equal_logits_never_scores_higher(kind: str, make: type[Detector]) -> None:
    """Logits kept: what is looked at is the residual alone."""
    detector, train, _ = fitted(make(), kind)
    assert isinstance(detector, ViM | Residual)
    for direction in detector.residual.T[:: max(1, detector.residual.shape[1] // 4)]:
        scores = [
            detector.score(Outputs(train.logits, (detector.origin + size * direction).expand(len(train), -1)))
            for size in (0.0, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e6)
        ]
        assert (torch.stack(scores).diff(dim=0) < 0).all()
        assert torch.stack(scores).isfinite().all()


@pytest.mark.parametrize("kind", ["dead units", "no residual", "fewer images than dimensions", "one image"])
def test_directions_unused_in_training_never_raise_a_score(kind: str) -> None:
    """Logits follow from the head, which may read the unused directions: far enough out every score falls."""
    detector, train, head = fitted(ViM, kind)
    x = train.require("features").double()
    unused = torch.linalg.eigh(x.T @ x).eigenvectors[:, 0]
    if kind == "dead units":
        unused = torch.eye(WIDTH).double()[-1]
    for direction in (unused, -unused):
        probes = torch.stack([x[0] + size * direction for size in (0.0, 10.0, 1e3, 1e6)])
        scores = detector.score(Outputs(head(probes), probes))
        assert (scores.diff() < 0).all(), scores


def residual_problem(seed: int) -> tuple[ViM, Tensor, Head]:
    """Few classes and features, often of missing rank; every direction of the residual space may be used."""
    g = torch.Generator().manual_seed(seed)
    width, classes, n, rank = (int(torch.randint(3, top, (1,), generator=g)) for top in (20, 12, 150, 20))
    x = torch.randn(n, rank, generator=g) @ torch.randn(rank, width, generator=g)
    head, detector = Head(torch.randn(classes, width, generator=g)), ViM(dim=1 + seed % (width - 1))
    fit([detector], [Outputs(head(x), x, torch.zeros(n).long())], head)
    return detector, x, head


@pytest.mark.parametrize("seed", range(40))
def test_far_out_the_faster_of_alpha_and_logits_decides(seed: int) -> None:
    """Along any direction, used or not, scores may rise with the residual."""
    detector, x, head = residual_problem(seed)
    steepest = torch.nn.functional.normalize(head.weight.double() @ detector.residual) @ detector.residual.T
    for d in torch.cat([steepest, -steepest]):
        slope = float((head.weight.double() @ d).max())
        far = x[0].double() + torch.tensor([[1e6], [2e6]]).double() * d
        rise = float(detector.score(Outputs(far @ head.weight.double().T, far)).diff())
        np.testing.assert_allclose(rise, 1e6 * (slope - float(detector.alpha)), rtol=1e-3, atol=100)


def test_a_score_may_rise_along_directions_used_in_training() -> None:
    """As published, and as documented in the docstring."""
    rises = 0
    for seed in range(40):
        detector, _, head = residual_problem(seed)
        rises += bool((head.weight.double() @ detector.residual).norm(dim=1).max() > detector.alpha)
    assert 0 < rises < 40


@pytest.mark.parametrize("kind", ["dead units", "no residual", "fewer images than dimensions", "one image"])
def test_along_unused_directions_a_score_is_lower_after_four_thirds_of_the_residual(kind: str) -> None:
    detector, train, head = fitted(ViM, kind)
    x, weight = train.require("features").double(), head.weight.double()
    values, vectors = torch.linalg.eigh((x - detector.origin).T @ (x - detector.origin))
    unused = vectors.T[values < 1e-12 * values[-1]]
    assert len(unused)
    for d in torch.nn.functional.normalize(torch.cat([unused, weight @ unused.T @ unused])):
        residual = ((x - detector.origin) @ detector.residual).norm(dim=1, keepdim=True)
        before, after = (p @ weight.T + head.offset for p in (x, x + (1.34 * residual + 1e-3) * d))
        first = detector.score(Outputs(before, x))
        last = detector.score(Outputs(after, x + (1.34 * residual + 1e-3) * d))
        assert (last < first).all()


def remarks(detector: Detector) -> list[str]:
    """Notes without those that state a setting."""
    return [note for note in detector.notes if "chosen for" not in note]


@pytest.mark.parametrize("bias", [0.0, 2.0, 8.0, 16.0, 1e4])
def test_a_large_constant_in_the_bias_is_noted(bias: float) -> None:
    """Alpha grows with the constant, as in the published formula."""
    detectors, levels = [], []
    for constant in (0.0, bias):
        train, head = training_set("plain")
        head = Head(head.weight, head.offset + constant)
        train = Outputs(head(train.require("features")), train.features, train.labels)
        detectors.append(ViM())
        fit(detectors[-1:], [train], head)
        levels.append(float(train.max_logits.mean()))
    plain, detector = detectors
    assert not remarks(plain)
    noted = any("makes alpha so large" in note for note in detector.notes)
    assert noted == (float(train.require("logits").mean()) > 0.5 * levels[1]) == (bias >= 8)
    residual = (train.require("features").double() - detector.origin) @ detector.residual
    np.testing.assert_allclose(float(detector.alpha), levels[1] / float(residual.norm(dim=1).mean()), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_alpha_has_a_scale(kind: str) -> None:
    detector, train, _ = fitted(ViM, kind)
    assert isinstance(detector, ViM)
    alpha = float(detector.alpha)
    assert 0 < alpha < 1e4
    replaced = {"no residual", "fewer images than dimensions", "one image", "duplicated images", "identical images"}
    assert bool(remarks(detector)) == (kind in replaced | {"negative logits", "no level"})
    if not remarks(detector):  # the published formula
        residual = (train.require("features").double() - detector.origin) @ detector.residual
        published = float(train.max_logits.mean()) / float(residual.norm(dim=1).mean())
        np.testing.assert_allclose(alpha, published, rtol=1e-6)


def test_alpha_scales_with_the_unit_of_the_features() -> None:
    """The floors are relative: the same network with features in other units ranks the same, also where they act."""
    for kind in ("dead units", "no residual", "fewer images than dimensions", "identical images", "no level"):
        train, head = training_set(kind)
        probes = train.require("features") + normal(len(train), WIDTH, seed=9)
        expected = ViM()
        fit([expected], [train], head)
        for scale in (2.0**-20, 2.0**20):
            scaled = Head(head.weight / scale, head.bias)
            detector = ViM()
            x = train.require("features") * scale
            fit([detector], [Outputs(scaled(x), x, train.labels)], scaled)
            torch.testing.assert_close(
                detector.score(Outputs(head(probes), probes * scale)),
                expected.score(Outputs(head(probes), probes)),
                rtol=1e-3,
                atol=1e-3,
            )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [Mahalanobis, DDU, lambda: DDU("full"), lambda: DDU("diagonal"), RelativeMahalanobis])
def test_farther_from_every_class_never_scores_higher(kind: str, make: type[Detector]) -> None:
    """Along a direction that leads away from all class means, also one that training never used."""
    detector, train, _ = fitted(make(), kind)
    x, labels = train.require("features").double(), train.require("labels")
    means = torch.stack([x[labels == c].mean(dim=0) for c in labels.unique()])
    centre = means.mean(dim=0)
    for direction in torch.eye(WIDTH).double():
        scores = detector.score(Outputs(features=centre + torch.logspace(3, 6, 7)[:, None].double() * direction))
        assert scores.isfinite().all()
        # The relative distance is a difference: in the directions that training used alike it may stay as it is.
        slack = 1e-6 * scores.abs() if isinstance(detector, RelativeMahalanobis) else torch.zeros(7)
        assert (scores.diff() <= slack[1:]).all(), (direction, scores)


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_of_degenerate_banks_are_finite_and_ordered(kind: str) -> None:
    train, head = training_set(kind)
    detectors = [KNN(k=1), NNGuide(k=1)]
    fit(detectors, [train], head)
    x = train.require("features")
    for detector in detectors:
        assert detector.score(Outputs(train.logits, x)).isfinite().all()
    at, away = (detectors[0].score(Outputs(features=s * x)) for s in (1.0, -1.0))
    assert (at >= away).all()


def test_a_zero_row_in_the_bank_is_no_neighbour_of_everything() -> None:
    """Its direction is the zero vector, at distance 1 from all others."""
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [4.0, 3.0]])
    detector = KNN(k=1)
    fit([detector], [Outputs(features=x)])
    scores = detector.score(Outputs(features=torch.tensor([[3.0, 4.0], [-3.0, -4.0], [0.0, 0.0]])))
    np.testing.assert_allclose(scores, [0.0, -1.0, 0.0], atol=1e-7)
