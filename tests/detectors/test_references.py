"""Detectors without a golden, and variants, against naive loops over their formulas.

Sources of the formulas are the papers in each detector's `reference`.
"""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from oodlit.detectors import (
    DDU,
    DICE,
    NCI,
    VRA,
    Detector,
    Energy,
    LaRD,
    MaxLogit,
    NNGuide,
    OpenMax,
    RankFeat,
    ReAct,
    RelativeCosine,
    TemperatureScaledMSP,
    fit,
)
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
