"""Detectors without a golden, and variants, against naive loops over their formulas.

Sources of the formulas are the papers in each detector's `reference`.
"""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import nn

from oodlit.detectors import (
    DDU,
    DICE,
    NCI,
    ODIN,
    VRA,
    Detector,
    Energy,
    LaRD,
    MaxLogit,
    MCDropout,
    NNGuide,
    OpenMax,
    RankFeat,
    ReAct,
    RelativeCosine,
    Residual,
    TemperatureScaledMSP,
    fit,
)
from oodlit.detectors.mc_dropout import _uniform
from oodlit.detectors.open_max import weibull_fit
from oodlit.detectors.rank_feat import without_first_component
from oodlit.detectors.statistics import TrainSample
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.outputs import Head, Outputs

from .networks import Conv, PlainModel
from .support import normal, small_problem


def lse(values: np.ndarray) -> float:
    largest = values.max()
    return float(largest + np.log(np.exp(values - largest).sum()))


def scored(detector: Detector, train: Outputs, head: Head, test: Outputs) -> np.ndarray:
    fit([detector], [train], head)
    return detector.score(test).numpy()


def test_temperature_scaled_msp() -> None:
    train, head = small_problem(n=300, seed=3)
    labels = torch.where(torch.arange(300) % 3 == 0, train.require("labels"), train.predictions)
    train = Outputs(train.logits, train.features, labels)
    z, y = train.require("logits").numpy(), labels.numpy()

    def loss(log_t: float) -> float:
        scaled = z / np.exp(log_t)
        return float(np.mean([lse(row) - row[c] for row, c in zip(scaled, y, strict=True)]))

    best = np.exp(optimize.minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-10}).x)
    detector = TemperatureScaledMSP()
    scores = scored(detector, train, head, train)
    assert float(detector.temperature) == pytest.approx(best, rel=1e-5)
    expected = [np.log(np.exp(r.max() / best) / np.exp(r / best).sum()) for r in z]
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-12)


def test_temperature_without_an_optimum_is_noted() -> None:
    z = torch.eye(3)
    detector = TemperatureScaledMSP()
    fit([detector], [Outputs(z, labels=torch.arange(3))])
    assert "no optimum within (0.01, 100.0): temperature 0.01 is a limit" in detector.notes[0]
    assert "as all images are classified right; fit on outputs of held-out images" in detector.notes[0]
    fit([detector], [Outputs(z, labels=torch.tensor([1, 2, 0]))])
    assert float(detector.temperature) == 100.0
    assert "as all images are classified wrong; " in detector.notes[0]
    fit([detector], [Outputs(z, labels=torch.tensor([0, 2, 1]))])  # one of three is what chance gives
    assert "as 33.33 % of the images are classified right; " in detector.notes[0]
    assert "held-out" in detector.reference.deviations


def test_weibull_fit_against_scipy() -> None:
    values = torch.from_numpy(stats.weibull_min.rvs(3.0, scale=2.0, size=(4, 30), random_state=0))
    valid = torch.ones(4, 30, dtype=torch.bool)
    valid[3, 20:] = False
    shapes, scales = weibull_fit(values, valid)
    for i in range(4):
        shape, _, scale = stats.weibull_min.fit(values[i][valid[i]].numpy(), floc=0)
        assert float(shapes[i]) == pytest.approx(shape, rel=1e-4)
        assert float(scales[i]) == pytest.approx(scale, rel=1e-4)


def test_openmax() -> None:
    tail, alpha, classes = 8, 3, 5
    labels = torch.arange(200) % classes
    train = Outputs(6 * torch.eye(classes).double()[labels] + normal(200, classes).double(), labels=labels)
    test = Outputs(4 * normal(40, classes, seed=5).double())
    detector = OpenMax(tail=tail, alpha=alpha)
    fit([detector], [train])
    z, y, prediction = train.require("logits").numpy(), labels.numpy(), train.predictions.numpy()
    means, models = [], []
    for c in range(classes):
        mine = z[(y == c) & (prediction == c)]
        means.append(mine.mean(axis=0))
        largest = np.sort(np.linalg.norm(mine - means[c], axis=1))[-tail:]
        start = largest.min() - 1
        shape, _, scale = stats.weibull_min.fit(largest - start, floc=0)
        models.append((start, shape, scale))
    for row, score in zip(test.require("logits").numpy(), detector.score(test), strict=True):
        revised, unknown = row.copy(), 0.0
        for rank, c in enumerate(np.argsort(-row)[:alpha]):
            start, shape, scale = models[c]
            w = stats.weibull_min.cdf(np.linalg.norm(row - means[c]) - start, shape, scale=scale)
            loss = row[c] * w * (alpha - rank) / alpha
            revised[c] -= loss
            unknown += loss
        p_unknown = np.exp(unknown - lse(np.append(revised, unknown)))
        assert 1 / (1 + math.exp(score)) == pytest.approx(p_unknown, rel=1e-3)


def test_openmax_with_absent_classes_and_single_images() -> None:
    train = Outputs(torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0]]), labels=torch.tensor([0, 1]))
    detector = OpenMax()
    fit([detector], [train])
    assert "1 classes have no correctly classified training image (first: [2])" in detector.notes[0]
    assert detector.score(Outputs(5 * normal(9, 3))).isfinite().all()
    with pytest.raises(RequirementError, match="none of 2 training images is classified correctly"):
        fit([OpenMax()], [Outputs(train.logits, labels=torch.tensor([2, 2]))])


def test_nci_and_vra_and_react_dice() -> None:
    train, head = small_problem(signed=False)
    test, _ = small_problem(n=30, seed=9, signed=False)
    test = Outputs(head(test.require("features")), test.features)
    x, z = test.require("features").numpy(), test.require("logits").numpy()
    w, b = head.weight.numpy(), head.offset.numpy()
    t = train.require("features").numpy()
    nci = [
        w[zi.argmax()] @ (xi - t.mean(0)) / np.linalg.norm(xi - t.mean(0)) + 1e-4 * np.abs(xi).sum()
        for xi, zi in zip(x, z, strict=True)
    ]
    np.testing.assert_allclose(scored(NCI(), train, head, test), nci, rtol=1e-10)
    low, high = np.percentile(t, [10, 80])
    vra = [lse(w @ np.where(xi < low, 0, np.minimum(xi, high)) + b) for xi in x]
    np.testing.assert_allclose(scored(VRA(low=10.0, high=80.0), train, head, test), vra, rtol=1e-10)
    v = w * t.mean(0)
    masked = np.where(v > np.percentile(v, 30), w, 0)
    both = [(masked @ np.minimum(xi, 0.7) + b).max() for xi in x]
    detector = ReAct(threshold=0.7, then=DICE(percentile=30.0, then=MaxLogit()))
    np.testing.assert_allclose(scored(detector, train, head, test), both, rtol=1e-10)


@pytest.mark.parametrize("covariance", ["full", "tied", "diagonal"])
def test_ddu(covariance: str) -> None:
    train, head = small_problem(n=120)
    test, _ = small_problem(n=20, seed=9)
    x, y = train.require("features").numpy(), train.require("labels").numpy()
    parts = [x[y == c] for c in range(4)]
    matrices = [np.cov(p.T, bias=True) for p in parts]
    if covariance == "tied":
        matrices = [sum(len(p) * m for p, m in zip(parts, matrices, strict=True)) / len(x)] * 4
    if covariance == "diagonal":
        matrices = [np.diag(np.diag(m)) for m in matrices]
    expected = [
        lse(np.array([stats.multivariate_normal(p.mean(0), m).logpdf(q) for p, m in zip(parts, matrices, strict=True)]))
        for q in test.require("features").numpy()
    ]
    np.testing.assert_allclose(scored(DDU(covariance), train, head, test), expected, rtol=1e-8)


def test_ddu_with_singular_classes_is_finite() -> None:
    x = torch.cat([normal(20, 3), torch.ones(1, 3)])
    train = Outputs(features=torch.cat([x, torch.zeros(21, 1)], dim=1), labels=torch.tensor([0] * 20 + [7]))
    for covariance in ("full", "tied", "diagonal"):
        detector = DDU(covariance)
        fit([detector], [train])
        scores = detector.score(Outputs(features=torch.tensor([[0.0, 0, 0, 0], [1.0, 1, 1, 0], [9.0, 9, 9, 1]])))
        assert scores.isfinite().all()
        assert scores[2] < scores[0]


def test_ddu_refuses_by_estimate() -> None:
    from oodlit.detectors import BackboneFacts

    facts = BackboneFacts(width=2048, num_classes=1000, num_train=10**6)
    assert "1000 covariances of 2048 features take 31.2 GiB, above the limit of 4.0 GiB" in DDU("full").why_not(facts)
    assert not DDU("tied").why_not(facts)
    assert not DDU("full", max_bytes=2**36).why_not(facts)


def hidden_problem(n: int, seed: int) -> Outputs:
    maps = normal(n, 5, 3, 3, seed=seed) + (torch.arange(n) % 3)[:, None, None, None]
    return Outputs(torch.zeros(n, 3), labels=torch.arange(n) % 3, hidden={"block": maps})


@pytest.mark.parametrize("dim", [None, 2])
def test_lard(dim: int | None) -> None:
    train, test = hidden_problem(90, 0), hidden_problem(10, 1)
    h, q = (o.hidden["block"].double().mean(dim=(2, 3)).numpy() for o in (train, test))
    if dim is not None:
        basis = np.linalg.svd(h - h.mean(0), full_matrices=False)[2][:dim].T
        h, q = (h - h.mean(0)) @ basis, (q - h.mean(0)) @ basis
    y = train.require("labels").numpy()
    parts = [h[y == c] for c in range(3)]
    within = sum(len(p) * np.cov(p.T, bias=True) for p in parts) / len(h)
    inverse = np.linalg.inv(within)
    distances = [-min((x - p.mean(0)) @ inverse @ (x - p.mean(0)) for p in parts) for x in q]
    head = Head(torch.eye(3))
    np.testing.assert_allclose(scored(LaRD("block", dim=dim), train, head, test), distances, rtol=1e-5)
    u, v = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (h, q))
    nearest = [-np.sort(np.linalg.norm(u - x, axis=1))[3] for x in v]
    np.testing.assert_allclose(
        scored(LaRD("block", density="knn", dim=dim, k=4), train, head, test), nearest, rtol=1e-4
    )


def test_lard_mixture_against_scikit_learn() -> None:
    from sklearn.mixture import GaussianMixture

    train, test = hidden_problem(90, 0), hidden_problem(10, 1)
    detector = LaRD("block", density="gmm", components=2)
    scores = scored(detector, train, Head(torch.eye(3)), test)
    means = test.hidden["block"].double().mean(dim=(2, 3)).numpy()
    again = LaRD("block", density="gmm", components=2)
    np.testing.assert_allclose(scored(again, train, Head(torch.eye(3)), test), scores)
    # Another order of the rows may end in another optimum: the densities must agree in the main.
    h = train.hidden["block"].double().mean(dim=(2, 3)).numpy()
    model = GaussianMixture(2, reg_covar=1e-6 * float(h.var(0).mean()), random_state=0, n_init=5).fit(h)
    assert np.corrcoef(model.score_samples(means), scores)[0, 1] > 0.9


def test_lard_errors() -> None:
    train = hidden_problem(9, 0)
    with pytest.raises(InvalidArgumentError, match="k=50, but there are 9 training images"):
        fit([LaRD("block", density="knn")], [train])
    with pytest.raises(InvalidArgumentError, match="dim=6, but layer 'block' has 5 channels"):
        fit([LaRD("block", dim=6)], [train])
    with pytest.raises(InvalidArgumentError, match="no hidden activation 'stem' was captured; captured: block"):
        fit([LaRD("stem")], [train])
    detector = LaRD("block")
    fit([detector], [train])
    with pytest.raises(InvalidArgumentError, match=r"needs Outputs\.hidden, but this backbone gives none"):
        detector.score(Outputs(torch.zeros(2, 3)))


def test_rank_feat() -> None:
    network = Conv()
    model = PlainModel(network, torch.ones(3))
    maps = normal(5, 6, 3, 4)
    rest = []
    for m in maps.double().numpy():
        u, s, v = np.linalg.svd(m.reshape(6, 12), full_matrices=False)
        rest.append((m.reshape(6, 12) - s[0] * np.outer(u[:, 0], v[0])).reshape(6, 3, 4))
    np.testing.assert_allclose(without_first_component(maps), np.stack(rest), atol=1e-6)
    with torch.no_grad():
        logits = model.logits_from_map(maps)
        expected = network.head(torch.from_numpy(np.stack(rest)).float().mean(dim=(2, 3))).logsumexp(dim=1)
    scores = RankFeat().score(Outputs(logits, hidden={"feature_map": maps}, model=model))
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert without_first_component(torch.zeros(1, 2, 2, 2)).abs().max() == 0
    with pytest.raises(InvalidArgumentError, match="a train-free detector of logits is needed"):
        RankFeat(then=NNGuide())


def test_nnguide_uses_the_first_rows_by_hash() -> None:
    train, head = small_problem()
    test, _ = small_problem(n=20, seed=9)
    sample = TrainSample()
    sample.update(train)
    bank, z = (sample.column(n)[:50].numpy() for n in ("features", "logits"))
    guide = bank / np.linalg.norm(bank, axis=1, keepdims=True) * np.array([lse(r) for r in z])[:, None]
    x = test.require("features").numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    expected = [lse(r) * np.sort(guide @ q)[-4:].mean() for r, q in zip(test.require("logits").numpy(), x, strict=True)]
    np.testing.assert_allclose(scored(NNGuide(k=4, bank_size=50), train, head, test), expected, rtol=1e-6)


def test_mcm_takes_the_rows_of_the_head() -> None:
    train, head = small_problem()
    x, w = train.require("features").numpy(), head.weight.numpy()
    cosines = (x / np.linalg.norm(x, axis=1, keepdims=True)) @ (w / np.linalg.norm(w, axis=1, keepdims=True)).T
    p = np.exp(cosines / 0.5) / np.exp(cosines / 0.5).sum(axis=1, keepdims=True)
    detector = RelativeCosine.preset("mcm", temperature=0.5)
    assert not detector.required_statistics
    np.testing.assert_allclose(np.exp(scored(detector, train, head, train)), p.max(axis=1), rtol=1e-10)


def odin_outputs(std: float = 0.25, network: nn.Module | None = None) -> tuple[Outputs, PlainModel]:
    model = PlainModel(network or Conv(), torch.full((3,), std))
    images = normal(5, 3, 6, 6)
    with torch.no_grad():
        logits = model.network(images)
    return Outputs(logits, images=images, model=model), model


@pytest.mark.parametrize("std", [0.25, 0.5])
def test_odin(std: float) -> None:
    """FAULTS: preprocessing constants in input perturbation - the step is scaled by the std of the model in use."""
    outputs, model = odin_outputs(std)
    expected = []
    for image in outputs.require("images"):
        x = image[None].clone().requires_grad_()
        logits = model.network(x) / 10.0
        (-torch.log_softmax(logits, 1)[0, logits[0].argmax()]).backward()
        moved = image[None] - 0.05 / std * x.grad.sign()
        expected.append(torch.log_softmax(model.network(moved).double() / 10.0, 1).max().item())
    scores = ODIN(temperature=10.0, epsilon=0.05).score(outputs)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert model.passes == ODIN().extra_passes == 2


def test_odin_works_in_inference_mode() -> None:
    outputs, _ = odin_outputs()
    expected = ODIN(temperature=2.0, epsilon=0.1).score(outputs)
    network = Conv()
    with torch.inference_mode():
        inside, _ = odin_outputs(network=network)
        scores = ODIN(temperature=2.0, epsilon=0.1).score(inside)
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert (scores - ODIN(temperature=2.0, epsilon=0.0).score(outputs)).abs().max() > 1e-3


def test_odin_without_step_needs_no_pass() -> None:
    outputs, model = odin_outputs()
    scores = ODIN(temperature=1.0, epsilon=0.0).score(outputs)
    np.testing.assert_allclose(scores, outputs.require("logits").log_softmax(1).amax(1), rtol=1e-5)
    assert model.passes == ODIN(epsilon=0.0).extra_passes == 0


@pytest.mark.parametrize("measure", ["entropy", "max"])
def test_mc_dropout_converges_to_the_mean_over_masks(measure: str) -> None:
    """One dropout of p = 1/2 on two features before the head: four masks, all equally likely."""

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.head = nn.Dropout(0.5), nn.Linear(2, 2, bias=False)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.drop(images.mean(dim=(2, 3))))

    network = Tiny().eval()
    weight = torch.tensor([[1.0, 2.0], [-1.0, 0.5]])
    with torch.no_grad():
        network.head.weight.copy_(weight)
    images = torch.tensor([1.0, 0.5]).view(1, 2, 1, 1)
    masks = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]) * 2
    p = (masks * images.flatten() @ weight.T).softmax(dim=1).mean(dim=0)
    expected = p.max() if measure == "max" else (p * p.log()).sum()
    outputs = Outputs(torch.zeros(1, 2), images=images, model=PlainModel(network, torch.ones(2)))
    score = MCDropout(passes=1000, measure=measure).score(outputs)
    assert float(score) == pytest.approx(float(expected), abs=0.02)


def test_mc_dropout_masks_follow_the_image() -> None:
    """An image has the same score in any batch, order and repetition; batch-norm stays in eval mode."""
    drops = (nn.Dropout(0.3), nn.Dropout2d(0.5), nn.Dropout(0.0))
    model = PlainModel(Conv(dropout=drops), torch.ones(3))
    images = normal(6, 3, 5, 5)
    outputs = Outputs(torch.zeros(6, 4), images=images, model=model)
    detector = MCDropout(passes=5)
    whole = detector.score(outputs)
    assert model.passes == detector.extra_passes == 5
    order = torch.tensor([3, 1, 5])
    np.testing.assert_allclose(detector.score(outputs.select(order)), whole[order], rtol=1e-5)
    assert not torch.equal(MCDropout(passes=5, seed=1).score(outputs), whole)
    assert not any(m.training for m in model.network.modules())
    assert not any(m._forward_hooks for m in model.network.modules())
    plain = model.network(images)
    np.testing.assert_allclose(plain.detach(), model.logits(images).detach())


def test_mc_dropout_without_dropout_is_refused() -> None:
    from oodlit.detectors import BackboneFacts

    assert MCDropout().why_not(BackboneFacts(name="conv")) == "needs nn.Dropout with p > 0; conv has none"
    outputs = Outputs(torch.zeros(2, 4), images=normal(2, 3, 5, 5), model=PlainModel(Conv(), torch.ones(3)))
    with pytest.raises(RequirementError, match="this network has none"):
        MCDropout().score(outputs)


def test_uniform_numbers_are_uniform() -> None:
    values = _uniform(torch.arange(100) * 7, 1000)
    assert stats.kstest(values.flatten().numpy(), "uniform").pvalue > 1e-3
    assert abs(float(torch.corrcoef(values[:2])[0, 1])) < 0.1
    assert 0 <= float(values.min()) <= float(values.max()) < 1


def test_energy_is_the_default_of_a_reshaping() -> None:
    train, head = small_problem(signed=False)
    np.testing.assert_allclose(scored(ReAct(), train, head, train), scored(ReAct(then=Energy()), train, head, train))


def test_rank_feat_takes_a_map_in_half_precision() -> None:
    model = PlainModel(Conv(), torch.ones(3))
    maps = normal(5, 6, 3, 4).bfloat16()
    scores = [
        RankFeat().score(Outputs(torch.zeros(5, 4), hidden={"feature_map": m}, model=model))
        for m in (maps, maps.float())
    ]
    np.testing.assert_allclose(scores[0], scores[1], rtol=0.02, atol=0.01)


@pytest.mark.parametrize("classes", [6, 40])
@pytest.mark.parametrize("kind", ["equal rows", "zero rows", "zero", "rank one"])
def test_origin_of_a_head_without_full_rank(kind: str, classes: int) -> None:
    """U = -W^+ b, many times: memory that nobody wrote may happen to hold zeros."""
    train, _ = small_problem(n=60, width=16)
    weight = normal(classes, 16, seed=4)
    weight = {
        "equal rows": weight[torch.arange(classes) % 3],
        "zero rows": weight * (torch.arange(classes) % 2)[:, None],
        "zero": torch.zeros_like(weight),
        "rank one": normal(classes, 1, seed=5).double() @ normal(1, 16, seed=6).double(),
    }[kind].double()
    bias = normal(classes, 1, seed=7)[:, 0].double()
    expected = -np.linalg.pinv(weight.numpy(), rcond=1e-12) @ bias.numpy()
    for _ in range(20):
        detector = Residual(dim=3)
        fit([detector], [train], Head(weight, bias))
        np.testing.assert_allclose(detector.origin, expected, rtol=1e-8, atol=1e-8)
