"""Detectors that step along a gradient of the input: plain loops from the formula, and inputs easy to get wrong."""

import math
from collections.abc import Callable
from functools import partial

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from oodlit.detectors import GEN, IODIN, PRO, AdaSCALE, Detector, fit
from oodlit.detectors.passes.pro import entropy_slope, gen_slope, msp_slope
from oodlit.detectors.statistics import shares_below
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Head, Outputs

from .formulas import Array, lse
from .networks import Conv, PlainModel
from .support import normal


def conv(kind: str = "plain") -> Conv:
    network = Conv().double()
    with torch.no_grad():
        if kind == "negative logits":
            network.head.bias -= 60
        elif kind == "class never predicted":
            network.head.bias[2] = -1e4
        elif kind == "no gradient":
            network.conv.weight.zero_()
    return network


def images(n: int, seed: int, kind: str = "plain") -> Tensor:
    x = normal(n, 3, 6, 6, seed=seed).double()
    if kind == "ties":
        x = x.round()
    elif kind == "zeros":
        x[::3] = 0
    return x


def outputs_of(network: Conv, x: Tensor, name: str) -> Outputs:
    with torch.no_grad():
        features = network.features(x)
        logits = network.head(features)
    keys = [f"{name}/{i}" for i in range(len(x))]
    return Outputs(logits, features, images=x, keys=keys, model=PlainModel(network, torch.tensor([0.2, 0.5, 1.0])))


def fitted_scores(detector: Detector, network: Conv, train: Tensor, test: Tensor) -> Tensor:
    head = Head(network.head.weight, network.head.bias)
    fit([detector], [outputs_of(network, x, f"t{i}") for i, x in enumerate(train.split(7))], head)
    return detector.score(outputs_of(network, test, "test"))


def gradient_of(network: nn.Module, image: Tensor, function: Callable[[Tensor], Tensor]) -> Array:
    x = image[None].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(network(x)[0]), x)
    return gradient[0].numpy()


def q_of(network: Conv, image: Tensor, settings: dict[str, float]) -> float:
    """Regmi, 2025: how active the largest features are after a step, and how far it moves them."""
    g = gradient_of(network, image, torch.max).flatten()
    order = sorted(range(len(g)), key=lambda i: (round(abs(g[i]) / max(abs(g).max(), 1e-300) * 2**20), i))
    moved = image.numpy().flatten().copy()
    for i in order[: math.floor(len(g) * settings["pixels"] / 100)]:
        if round(abs(g[i]) / max(abs(g).max(), 1e-300) * 2**20) > 0:
            moved[i] += settings["step"] * np.sign(g[i])
    with torch.no_grad():
        x, x_moved = (network.features(i[None])[0].numpy() for i in (image, torch.from_numpy(moved).view_as(image)))
    largest = sorted(range(len(x)), key=lambda j: (-x[j], j))
    q_first, c_first = (math.floor(len(x) * settings[name] / 100) for name in ("shifted", "active"))
    Q = sum(abs(x[j] - x_moved[j]) for j in largest[:q_first])
    return float(sum(max(0.0, x_moved[j]) for j in largest[:c_first]) + settings["weight"] * Q)


def ada_scale(network: Conv, train: Tensor, test: Tensor, variant: str, settings: dict[str, float]) -> Array:
    known = [q_of(network, image, settings) for image in train]
    W, b = (p.detach().numpy() for p in (network.head.weight, network.head.bias))
    scores = []
    for image in test:
        q = q_of(network, image, settings)
        F = np.mean([other <= q * (1 + 1e-12) for other in known])
        p = settings["low"] + (1 - F) * (settings["high"] - settings["low"])
        with torch.no_grad():
            x = network.features(image[None])[0].numpy()
        positive = sorted((max(0.0, v) for v in x), reverse=True)
        k = max(1, len(x) - round(len(x) * p / 100))
        r = sum(positive) / sum(positive[:k]) if positive[0] > 0 else 1.0
        c = b.mean()
        scores.append(lse(W @ (x * math.exp(r)) + b) if variant == "a" else c + lse(r**2 * (W @ x + b - c)))
    return np.array(scores)


SETTINGS = {"low": 20.0, "high": 80.0, "pixels": 20.0, "step": 0.5, "shifted": 40.0, "active": 70.0, "weight": 3.0}
KINDS = ["plain", "ties", "zeros", "negative logits", "class never predicted", "no gradient"]


@pytest.mark.parametrize("shifted", [2.0, 40.0])
@pytest.mark.parametrize("active", [2.0, 70.0])
def test_ada_scale_counts_no_feature_where_a_percentage_is_less_than_one(shifted: float, active: float) -> None:
    """As the authors, who round down; 2 % of the features of this network are none."""
    network, train, test = conv("plain"), images(30, 0, "plain"), images(8, 1, "plain") * 1.5
    settings = SETTINGS | {"shifted": shifted, "active": active}
    detector = AdaSCALE(**settings)
    scores = fitted_scores(detector, network, train, test)
    np.testing.assert_allclose(scores, ada_scale(network, train, test, "a", settings), rtol=1e-9)
    assert len(detector.notes) == (shifted < 3) + (active < 3)
    assert all("less than one feature" in note for note in detector.notes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["a", "l"])
def test_ada_scale(variant: str, kind: str) -> None:
    network, train, test = conv(kind), images(30, 0, kind), images(8, 1, kind) * 1.5
    detector = AdaSCALE(variant, **SETTINGS)
    scores = fitted_scores(detector, network, train, test)
    np.testing.assert_allclose(scores, ada_scale(network, train, test, variant, SETTINGS), rtol=1e-9)


def test_both_variants_share_what_they_ask_of_the_network() -> None:
    network, train = conv(), images(12, 0)
    detectors = [AdaSCALE(), AdaSCALE("l"), AdaSCALE("l", low=60.0)]
    fit(detectors, [outputs := outputs_of(network, train, "t")], Head(network.head.weight, network.head.bias))
    assert outputs.model.passes == 2
    test = outputs_of(network, images(5, 1), "test")
    for detector in detectors:
        detector.score(test)
    assert test.model.passes == AdaSCALE().extra_passes == 2


def test_training_outputs_without_images_or_model_are_refused() -> None:
    network = conv()
    head, whole = Head(network.head.weight, network.head.bias), outputs_of(network, images(4, 0), "t")
    with pytest.raises(InvalidArgumentError, match="missing images"):
        fit([AdaSCALE()], [Outputs(whole.logits, whole.features)], head)
    with pytest.raises(InvalidArgumentError, match=r"Outputs\.model is missing; pass Outputs\(\.\.\., model=module\)"):
        fit([AdaSCALE()], [Outputs(whole.logits, whole.features, images=whole.images)], head)


def test_an_unusual_shift_takes_a_smaller_percentile() -> None:
    """The whole sample lies below, or none: p is `low`, or `high`."""
    network, train = conv(), images(12, 0)
    detector = AdaSCALE("l", low=20.0, high=80.0)
    fitted_scores(detector, network, train, train)
    test = outputs_of(network, images(3, 1), "test")
    for sample, percentile in ((-1.0, 20.0), (1e9, 80.0)):
        detector.sample.fill_(sample)
        same = AdaSCALE("l", low=percentile, high=percentile)
        fitted_scores(same, network, train, train)
        np.testing.assert_allclose(detector.score(test), same.score(test), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1000.0, 2.0])
def test_iodin(temperature: float, kind: str) -> None:
    """Regmi, 2024: one value is moved, by eps / std of its channel."""
    network, test = conv(kind), images(8, 1, kind)
    detector, expected = IODIN(temperature, 0.3), []
    for image in test:

        def cross_entropy(z: Tensor) -> Tensor:
            return -(z / temperature).log_softmax(dim=0)[z.argmax()]

        g = gradient_of(network, image, cross_entropy)
        moved = image.numpy().copy()
        c, i, j = np.unravel_index(np.abs(g).round(12).argmax(), g.shape)
        moved[c, i, j] -= 0.3 / [0.2, 0.5, 1.0][c] * np.sign(g[c, i, j])
        with torch.no_grad():
            z = network(torch.from_numpy(moved)[None])[0] / temperature
        expected.append(float(z.log_softmax(dim=0).max()))
    scores = fitted_scores(detector, network, test, test)
    np.testing.assert_allclose(scores, expected, rtol=1e-9)


def gen(z: Tensor) -> Tensor:
    log_p = z.log_softmax(dim=0)
    return -(0.1 * (log_p + torch.log1p(-log_p.exp()))).exp().sum()


def negative_entropy(z: Tensor) -> Tensor:
    return (z.softmax(dim=0) * z.log_softmax(dim=0)).sum()


def log_msp(z: Tensor) -> Tensor:
    return z.log_softmax(dim=0).max()


MEASURES = {"gen": (gen, gen_slope), "entropy": (negative_entropy, entropy_slope), "msp": (log_msp, msp_slope)}


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "class never predicted"])
@pytest.mark.parametrize("measure", MEASURES)
def test_pro(measure: str, kind: str) -> None:
    """Chen et al., CVPR 2025: the smallest score on a way of K steps down."""
    network, test = conv(kind), images(8, 1, kind)
    s, expected = MEASURES[measure][0], []
    for image in test:
        x, found = image, []
        for _ in range(4):
            with torch.no_grad():
                found.append(float(s(network(x[None])[0] / 2.0)))
            x = x - 0.05 * torch.from_numpy(gradient_of(network, x, lambda z: s(z / 2.0))).sign()
        expected.append(min(found))
    detector = PRO(measure, 0.05, 3, 2.0)
    scores = fitted_scores(detector, network, test, test)
    np.testing.assert_allclose(scores, expected, rtol=1e-9)
    counted = outputs_of(network, test, "t")
    detector.score(counted)
    assert counted.model.passes == detector.extra_passes == 4


def test_pro_is_never_above_its_measure() -> None:
    network, test = conv(), images(20, 1)
    scores = fitted_scores(PRO(), network, test, test)
    plain = GEN().score(outputs_of(network, test, "t"))
    assert bool((scores <= plain).all())
    assert bool((scores < plain).any())


@given(st.integers(2, 100), st.integers(0, 99), st.sampled_from([0.1, 1.0, 10.0]))
def test_slopes_of_the_measures_are_their_gradients(classes: int, seed: int, scale: float) -> None:
    z = scale * normal(classes, seed=seed).double()
    for measure, (s, slope) in MEASURES.items():
        x = z.clone().requires_grad_()
        (expected,) = torch.autograd.grad(s(x), x)
        size = float(expected.abs().max())
        np.testing.assert_allclose(slope(z[None])[0], expected, rtol=1e-6, atol=1e-9 * size, err_msg=measure)


def test_the_slope_of_gen_counts_the_largest_classes_alone() -> None:
    z = normal(130, seed=3).double()
    kept = z.topk(100).indices

    def s(x: Tensor) -> Tensor:
        log_p = x.log_softmax(dim=0)
        return -(0.1 * (log_p + torch.log1p(-log_p.exp())))[kept].exp().sum()

    x = z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(s(x), x)
    np.testing.assert_allclose(gen_slope(z[None])[0], expected, rtol=1e-9)


@pytest.mark.parametrize("gap", [30.0, 100.0, 600.0, 2000.0])
def test_slopes_of_very_sure_images_keep_their_signs(gap: float) -> None:
    """1 - p of the largest class is far below the precision of p; in the end nothing is left, and nothing moves."""
    z = torch.tensor([[gap, 0.0, 1.0]], dtype=torch.float64)
    for slope in (gen_slope, entropy_slope):
        found = slope(z)[0]
        assert found.isfinite().all()
        assert found[0] >= 0
        assert found[1:].amax() <= 0
    assert gap > 700 or bool((gen_slope(z) != 0).all())


MAKES: dict[str, Callable[[], Detector]] = {
    repr(make()): make
    for make in (partial(AdaSCALE, **SETTINGS), partial(AdaSCALE, "l"), IODIN, *map(partial(partial, PRO), MEASURES))
}


@pytest.mark.parametrize("kind", [*KINDS, "one image", "half precision"])
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_scores_are_finite_and_the_same_alone(make: Callable[[], Detector], kind: str) -> None:
    network = conv(kind)
    dtype = torch.float32 if kind == "half precision" else torch.float64
    network = network.to(dtype)
    train, tests = (images(n, seed, kind).to(dtype) for n, seed in ((1 if kind == "one image" else 20, 0), (9, 1)))
    detector = make()
    scores = fitted_scores(detector, network, train, tests)
    assert scores.isfinite().all()
    outputs = outputs_of(network, tests, "test")
    if kind == "half precision":
        outputs = Outputs(outputs.logits.half(), outputs.features.half(), images=tests, model=outputs.model)
        assert detector.score(outputs).isfinite().all()
        return
    alone = torch.cat([detector.score(outputs.select(slice(i, i + 1))) for i in range(len(tests))])
    np.testing.assert_allclose(alone, scores, rtol=1e-9)


def test_scores_inside_inference_mode_are_the_same() -> None:
    network, train, test = conv(), images(12, 0), images(5, 1)
    for make in MAKES.values():
        expected = fitted_scores(make(), network, train, test)
        with torch.inference_mode():
            inside = fitted_scores(make(), network, train.clone(), test.clone())
        np.testing.assert_allclose(inside, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (AdaSCALE, {"variant": "b"}, "variant to be 'a' or 'l', got 'b'"),
        (AdaSCALE, {"low": 90.0}, "low=90.0, high=85.0"),
        (AdaSCALE, {"step": 0.0}, "step to be a positive, finite number, got 0.0"),
        (AdaSCALE, {"weight": -1.0}, "weight to be a finite number >= 0, got -1.0"),
        (AdaSCALE, {"low": 0.8}, "0.8 looks like a fraction"),
        (AdaSCALE, {"active": 101.0}, r"percentile in \[0, 100\], got 101.0"),
        (IODIN, {"temperature": 0.0}, "temperature to be a positive, finite number, got 0.0"),
        (IODIN, {"epsilon": -1.0}, "epsilon to be a positive, finite number, got -1.0"),
        (PRO, {"measure": "max"}, "measure to be 'gen', 'entropy' or 'msp', got 'max'"),
        (PRO, {"steps": 0}, "steps to be at least 1, got 0"),
        (PRO, {"epsilon": 0.0}, "epsilon to be a positive, finite number, got 0.0"),
        (PRO, {"temperature": float("inf")}, "temperature to be a positive, finite number, got inf"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    kind: type[Detector], settings: dict[str, object], message: str
) -> None:
    jaxtyping.config.update("jaxtyping_disable", True)  # messages as users see them
    try:
        with pytest.raises(InvalidArgumentError, match=f"{kind.__name__}: .*{message}"):
            kind(**settings)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_a_percentile_between_two_counts_is_decided_in_float64() -> None:
    """F = 1/3 and p = 50: 3.5 of 7 features, which round to 4, as the authors' float64 does; float32 finds 3."""
    shares = shares_below(torch.arange(3.0).double(), torch.tensor([0.5]))
    assert shares.dtype == torch.float64
    assert round(7 * float((1 - shares) * 75) / 100) == 4
    network, train = Conv(width=7).double(), images(3, 0)
    detector, same = AdaSCALE("l", low=0.0, high=75.0), AdaSCALE("l", low=50.0, high=50.0)
    for one in (detector, same):
        fitted_scores(one, network, train, train)
    test = outputs_of(network, images(4, 1), "test")
    q = detector.scalar(test)
    detector.sample = torch.stack([q.min() - 1, q.max() + 1, q.max() + 2])
    np.testing.assert_array_equal(detector.score(test), same.score(test))


@pytest.mark.parametrize(("variant", "low", "high"), [("a", 80.0, 85.0), ("l", 60.0, 90.0)])
def test_ada_scale_as_published_where_nothing_ties(variant: str, low: float, high: float) -> None:
    """Sorted gradients as they are, and a bias of mean 0: neither our steps of gradients nor our constant is left."""
    network = Conv(width=64).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.3 * normal(*parameter.shape, seed=parameter.numel()))
        network.head.bias -= network.head.bias.mean()
    W, b = (p.detach().numpy() for p in (network.head.weight, network.head.bias))

    def features(image: Tensor) -> Array:
        with torch.no_grad():
            return np.asarray(network.features(image[None])[0])

    def q_and_features(image: Tensor) -> tuple[float, Array]:
        g, moved, x = gradient_of(network, image, torch.max).flatten(), image.flatten().clone(), features(image)
        for i in np.argsort(np.abs(g))[: int(len(g) * 0.05)]:
            moved[i] += 0.5 * np.sign(g[i])
        after, largest = features(moved.view_as(image)), np.argsort(-x)
        active, shifted = largest[: int(64 * 0.05)], largest[: int(64 * 0.01)]
        return np.maximum(after[active], 0).sum() + 10 * np.abs(x - after)[shifted].sum(), x

    train, test = images(25, 0), images(9, 1) * 1.3
    known, expected = np.array([q_and_features(image)[0] for image in train]), []
    for image in test:
        q, x = q_and_features(image)
        k = 64 - int(np.round(64 * (low + (1 - (known <= q).mean()) * (high - low)) / 100))
        r = np.maximum(x, 0).sum() / np.sort(np.maximum(x, 0))[::-1][:k].sum()
        expected.append(lse(W @ (x * math.exp(r)) + b if variant == "a" else r**2 * (W @ x + b)))
    scores = fitted_scores(AdaSCALE(variant, low, high), network, train, test)
    np.testing.assert_allclose(scores, expected, rtol=1e-9)
