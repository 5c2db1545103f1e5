"""Edges of single detectors: what they note, refuse and fall back to, and their parts against SciPy.

Their scores are compared with plain formulas in `test_rederived`.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from oodlit.detectors import (
    DDU,
    CADRef,
    Detector,
    Energy,
    LaRD,
    NNGuide,
    OpenMax,
    RankFeat,
    ReAct,
    TemperatureScaledMSP,
    WeiPer,
    fit,
)
from oodlit.detectors.densities import wei_per
from oodlit.detectors.formulas.histograms import Bins, InPlaceBins, divergence, smoothed
from oodlit.detectors.formulas.neighbors import energy_offset
from oodlit.detectors.formulas.principal_axes import axes_by_share
from oodlit.detectors.logits.open_max import weibull_fit
from oodlit.detectors.shaping.rank_feat import without_first_component
from oodlit.detectors.statistics import TrainSample, fourier_features, fourier_map
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


def test_temperature_without_an_optimum_is_noted() -> None:
    z = torch.eye(3)
    detector = TemperatureScaledMSP()
    fit([detector], [Outputs(z, labels=torch.arange(3))])
    assert "not between 0.01 and 100 (100 % of the images are classified correctly)" in detector.notes[0]
    assert "using the limit 0.01. Fit on outputs of held-out images" in detector.notes[0]
    fit([detector], [Outputs(z, labels=torch.tensor([1, 2, 0]))])
    assert float(detector.temperature) == 100.0
    assert "(0 % of the images are classified correctly); using the limit 100. Check the labels" in detector.notes[0]
    fit([detector], [Outputs(z, labels=torch.tensor([0, 2, 1]))])  # one of three is what chance gives
    assert "(33.33 % of the images are classified correctly); " in detector.notes[0]
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


@pytest.mark.parametrize(
    ("energies", "offset", "below"),
    [([-3.0, -1.0], -4.0, "one standard deviation below"), ([-3.0, -3.0], -4.0, "1 below")],
)
def test_the_note_on_negative_energies_states_what_is_subtracted(
    energies: list[float], offset: float, below: str
) -> None:
    detector = NNGuide()
    assert energy_offset(detector, torch.tensor(energies), 0.01) == offset
    assert "more than 1 % of the training images have an energy of zero or less" in detector.notes[0]
    assert f"{offset:g} ({below} the smallest energy" in detector.notes[0]


def test_openmax_with_absent_classes_and_single_images() -> None:
    train = Outputs(torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0]]), labels=torch.tensor([0, 1]))
    detector = OpenMax()
    fit([detector], [train])
    assert "1 class (first: 2) has no correctly classified training images" in detector.notes[0]
    assert detector.score(Outputs(5 * normal(9, 3))).isfinite().all()
    with pytest.raises(RequirementError, match="all 2 training images are misclassified"):
        fit([OpenMax()], [Outputs(train.logits, labels=torch.tensor([2, 2]))])


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
    assert "1000 covariances of 2048 features require 31.2 GiB, above the limit" in DDU("full").why_not(facts)
    assert not DDU("tied").why_not(facts)
    assert not DDU("full", max_bytes=2**36).why_not(facts)


def hidden_problem(n: int, seed: int) -> Outputs:
    maps = normal(n, 5, 3, 3, seed=seed) + (torch.arange(n) % 3)[:, None, None, None]
    return Outputs(torch.zeros(n, 3), labels=torch.arange(n) % 3, hidden={"block": maps})


@pytest.mark.parametrize(
    ("logits", "replaced"),
    [([-3.0, -5.0, -5.0], "2, its excess over"), ([-3.0, -3.0, -5.0], "1, since it does not exceed")],
)
def test_the_note_on_a_small_confidence_states_what_replaces_it(logits: list[float], replaced: str) -> None:
    detector, x = CADRef("max_logit"), torch.tensor([logits, logits])
    fit([detector], [Outputs(x, x)], Head(torch.eye(3)))
    notes = " ".join(detector.notes)
    assert "the mean of confidence='max_logit' over the training images (-3) is too small" in notes
    assert f"It is replaced by {replaced}" in notes


def test_lard_errors() -> None:
    train = hidden_problem(9, 0)
    with pytest.raises(InvalidArgumentError, match="k=50, but there are 9 training images; use k <= 9"):
        fit([LaRD("block", density="knn", k=50)], [train])
    with pytest.raises(InvalidArgumentError, match=r"dim=6\): layer 'block' has 5 channels"):
        fit([LaRD("block", dim=6)], [train])
    with pytest.raises(InvalidArgumentError, match=r"layer 'stem' was not captured \(captured: block"):
        fit([LaRD("stem")], [train])
    detector = LaRD("block")
    fit([detector], [train])
    with pytest.raises(InvalidArgumentError, match=r"missing required fields; pass Outputs\(\.\.\., hidden="):
        detector.score(Outputs(torch.zeros(2, 3)))


def test_rank_feat_of_a_zero_map_and_before_a_detector_of_features() -> None:
    assert without_first_component(torch.zeros(1, 2, 2, 2)).abs().max() == 0
    with pytest.raises(InvalidArgumentError, match="requires no fit and reads only logits, such as Energy"):
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


def test_fourier_features_approximate_a_gaussian_kernel() -> None:
    rows = torch.nn.functional.normalize(torch.randn(8, 5, generator=torch.Generator().manual_seed(0)).double())
    f = fourier_features(rows, *fourier_map(5, 200_000, 1.5, 0, rows.device))
    kernel = torch.exp(-1.5 * torch.cdist(rows, rows).square())
    np.testing.assert_allclose(f @ f.T, kernel, atol=0.01)


def test_equal_axes_are_not_parted_and_one_is_left() -> None:
    """Which of two axes with the same variance comes first would be left to rounding."""
    for values, share, size in (
        ([5, 2, 2, 1], 0.6, 3),
        ([5, 3, 1, 1], 0.95, 3),
        ([1, 1, 1, 1], 0.1, 3),
        ([0] * 4, 0.5, 0),
    ):
        used, rest = axes_by_share(torch.diag(torch.tensor(values).double()), share)
        assert (used.shape[1], rest.shape[1]) == (size, 4 - size)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8, 40])
def test_smoothing_reaches_the_bins_of_a_convolution_of_the_same_size(width: int) -> None:
    """The authors smooth with `Conv1d(padding="same", padding_mode="replicate")`."""
    convolution = torch.nn.Conv1d(1, 1, width, padding="same", padding_mode="replicate", bias=False)
    torch.nn.init.constant_(convolution.weight, 1 / width)
    histograms = normal(3, 50).abs()
    with torch.no_grad():
        torch.testing.assert_close(smoothed(histograms, width), convolution(histograms[:, None])[:, 0])
    impulse = smoothed(torch.eye(50)[[25]], width)[0].nonzero().flatten()
    assert impulse.tolist() == list(range(25 - width // 2, 25 + (width + 1) // 2))


def test_a_fit_that_smoothed_down_keeps_its_scores() -> None:
    """Fits of earlier versions have no mark; their thresholds belong to the former side."""
    train, head = small_problem()
    detector = WeiPer(5, smooth=4, smooth_logits=2)
    scored(detector, train, head, train)
    now = detector.score(train)
    del detector.smooths_up
    earlier = detector.score(train)
    assert not torch.allclose(now, earlier)

    def flipped(histograms: torch.Tensor, width: int) -> torch.Tensor:
        return (
            torch.nn.functional.pad(histograms, (width // 2, (width - 1) // 2), mode="replicate")
            .unfold(1, width, 1)
            .mean(2)
        )

    own, of_logits, softmax = detector._histograms(train.features.double())
    far = divergence(detector.typical, flipped(own, 4), wei_per.LEAST)
    far_of_logits = divergence(detector.typical_of_logits, flipped(of_logits, 2), wei_per.LEAST_OF_LOGITS)
    torch.testing.assert_close(earlier, 0.25 * softmax - far - 2.5 * far_of_logits)


def test_perturbed_weights_are_the_same_kept_or_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    train, head = small_problem()
    kept, drawn = WeiPer(5), WeiPer(5)
    expected = scored(kept, train, head, train)
    kept_head = kept._head
    kept.score(train)
    assert kept._head is kept_head
    monkeypatch.setattr(wei_per, "MOST_BYTES", 0)
    np.testing.assert_array_equal(scored(drawn, train, head, train), expected)
    train, head = small_problem(seed=9)  # a fit on another head draws around its weights
    np.testing.assert_array_equal(scored(kept, train, head, train), scored(WeiPer(5), train, head, train))


def test_perturbed_logits_have_the_law_of_perturbed_weights() -> None:
    """For one image; and the two ways to count them agree."""
    train, head = small_problem(width=5, classes=3)
    x = train.features[:1]
    weights, logits = (WeiPer(20_000, perturb=form) for form in ("weights", "logits"))
    draws = []
    for detector in (weights, logits):
        scored(detector, train.select(slice(0, 2)), head, train.select(slice(0, 2)))
        draws.append(torch.cat(list(detector._logits(x)), dim=1)[0])
    np.testing.assert_allclose(draws[0].mean(dim=0), draws[1].mean(dim=0), atol=0.05)
    for drawn in (draws[0].T, draws[1].T):  # copies and classes are independent
        np.testing.assert_allclose(np.corrcoef(drawn), np.eye(3), atol=0.03)
    for a, b in zip(draws[0].T, draws[1].T, strict=True):
        assert stats.ks_2samp(a, b).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["small", "equal"])
def test_histograms_of_one_image_are_those_of_a_batch(kind: str) -> None:
    values = torch.cat([normal(3, 50).double(), torch.tensor([[-1.0, 2.0, 2.5]] * 3)], dim=1)
    ends = torch.tensor([-1.0, 2.0]).double() if kind == "small" else values[0, :1].repeat(2)
    one = InPlaceBins(ends, 7, (values.shape[1],))
    found = [one.count(row).tolist() for row in values]
    assert found == Bins(ends, 7).counts(values).tolist()


def test_one_table_serves_all_classes_and_is_dropped_with_them() -> None:
    """A fit on many classes perturbs logits; a later fit on few perturbs weights."""
    many, few = small_problem(classes=200, n=400), small_problem()
    detector = WeiPer(5)
    scored(detector, *many, many[0])
    assert detector.table.shape == (5, 200)
    np.testing.assert_array_equal(scored(detector, *few, few[0]), scored(WeiPer(5), *few, few[0]))
    assert not hasattr(detector, "table")
