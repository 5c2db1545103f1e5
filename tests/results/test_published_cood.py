"""The published severity curves: what the paper prints is recomputed from the file that ships."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.results import rank_correlation
from oodlit.results.published import cood

NUMBERS = {"softmax": 539, "max_logit": 677, "entropy": 536, "odin": 65, "mcd_entropy": 31}


PAPER = Path(__file__).parent.parent / "golden" / "published"
"""Numbers that the paper prints: in its text, and in Fig. 15."""


def printed_settings() -> dict[str, str]:
    with (PAPER / "cood_settings.csv").open(encoding="utf-8") as file:
        return {row["setting"]: row["value"] for row in csv.DictReader(file)}


def printed_rank_correlation() -> np.ndarray:
    cells = np.loadtxt(PAPER / "cood_rank_correlation.csv", delimiter=",", skiprows=1)
    assert [tuple(pair) for pair in cells[:, :2]] == [(a, b) for a in range(11) for b in range(11)]
    return cells[:, 2].reshape(11, 11)


def curve(model: str, kappa: str) -> cood.PublishedCurve:
    (found,) = [c for c in cood.published_curves(kappa) if c.model == model]
    return found


def table(kappa: str) -> np.ndarray:
    return np.array([c.levels for c in cood.published_curves(kappa)])


def test_numbers_of_curves() -> None:
    assert {kappa: len(cood.published_curves(kappa)) for kappa in cood.kappas()} == NUMBERS
    curves = cood.published_curves()
    assert len({c.model for c in curves}) == 706
    assert len({(c.model, c.kappa) for c in curves}) == len(curves) == 1848
    assert all(0 <= value <= 1 for c in curves for value in (c.accuracy, c.id_auroc, *c.levels))


def test_accuracy_against_mean_auroc() -> None:
    curves = cood.published_curves("softmax")
    correlation = rank_correlation([(c.accuracy, c.mean) for c in curves])[0, 1]
    assert round(correlation, 3) == 0.650
    assert f"{correlation:.2f}" == f"{float(printed_settings()['spearman_accuracy_vs_mean_auroc']):.2f}"


def test_gains_of_odin_and_of_the_maximum_logit() -> None:
    softmax, odin, logit = (curve("vit_large_patch32_384", kappa).levels for kappa in ("softmax", "odin", "max_logit"))
    gain = [round(100 * (a / b - 1), 3) for a, b in zip(odin, softmax, strict=True)]
    assert (gain[0], gain[10]) == (0.401, 9.036)
    assert round(100 * (logit[10] / softmax[10] - 1), 3) == 10.653
    printed = printed_settings()
    assert f"{gain[0]:.1f}" == printed["odin_gain_vit_l32_384_s0_pct"]
    assert f"{gain[10]:.0f}" == printed["odin_gain_vit_l32_384_s10_pct"]


def test_best_zero_shot_clip_against_all_other_models() -> None:
    best = curve("CLIP_RN50x64", "max_logit").mean
    others = [c.mean for c in cood.published_curves("softmax") if not c.model.startswith("CLIP")]
    assert (sum(mean < best for mean in others), len(others)) == (502, 523)
    assert f"{502 / 523:.2f}" == printed_settings()["clip_rn50x64_outperforms_share"]


def test_curves_fall() -> None:
    falling = [bool((np.diff(c.levels) <= 0).all()) for c in cood.published_curves()]
    assert (sum(falling), f"{100 * np.mean(falling):.1f}") == (1844, "99.8")


def test_own_matrix_is_pinned_and_that_of_the_paper_is_another() -> None:
    own = rank_correlation(table("softmax"))
    np.testing.assert_allclose(own, spearmanr(table("softmax")).statistic, rtol=0, atol=1e-12)
    assert [round(float(value), 4) for value in own[0]] == FIRST_ROW
    assert [round(float(value), 4) for value in own[10]] == LAST_ROW
    assert round(float(own.sum()), 6) == 107.244975
    printed = printed_rank_correlation()
    assert (printed == printed.T).all()
    assert (np.diag(printed) == 1).all()
    assert round(float(np.abs(own - printed).max()), 3) == 0.191
    nearest = rank_correlation(table("max_logit"))
    assert round(float(np.abs(nearest - printed)[~np.eye(11, dtype=bool)].mean()), 3) == 0.013


FIRST_ROW = [1.0, 0.9627, 0.9175, 0.8673, 0.8328, 0.8098, 0.7904, 0.7655, 0.735, 0.6741, 0.4735]
LAST_ROW = [0.4735, 0.5455, 0.6083, 0.6764, 0.7233, 0.7598, 0.7917, 0.8245, 0.8561, 0.9073, 1.0]


@pytest.mark.parametrize("kappa", cood.kappas())
def test_standing_of_a_published_curve_is_its_own_rank(kappa: str) -> None:
    levels, means = table(kappa), np.array([c.mean for c in cood.published_curves(kappa)])
    for index in (0, len(levels) // 2, len(levels) - 1):
        found = cood.rank_curve(levels[index].tolist(), kappa)
        assert found.published == len(levels)
        assert found.below == tuple((levels < levels[index]).sum(axis=0))
        assert found.equal == tuple((levels == levels[index]).sum(axis=0))
        assert found.mean_below == (means < means[index]).sum()


@given(st.floats(0, 1), st.sampled_from(cood.kappas()))
def test_quantile_curves_are_quantiles(share: float, kappa: str) -> None:
    (found,) = cood.quantile_curves(kappa, [share])
    levels = table(kappa)
    reached = (levels <= np.array(found)).mean(axis=0)
    assert (reached >= share - 1e-12).all()
    assert all(value in column for value, column in zip(found, levels.T, strict=True))


@pytest.mark.parametrize("levels", [[0.5] * 10, [0.5] * 10 + [1.5], [0.5] * 10 + [float("nan")]])
def test_other_curves_are_refused(levels: list[float]) -> None:
    with pytest.raises(InvalidArgumentError, match="the AUROC of 11 levels, from 0 to 1"):
        cood.rank_curve(levels, "softmax")


def test_unknown_confidence_function_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"softmx.*softmax"):
        cood.rank_curve([0.5] * 11, "softmx")
    with pytest.raises(InvalidArgumentError, match=r"shares in 0\.\.1"):
        cood.quantile_curves("softmax", [1.5])
