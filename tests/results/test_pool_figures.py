"""Severity curves and correlations of levels as figures."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.results import Results, check_same_pool, level_correlation, levels_of_runs, plots
from oodlit.results.plots.drawing import draw
from oodlit.results.published.cood import kappa_of, published_curves
from tests.results.pool_support import pool_results


@pytest.fixture(scope="module")
def results() -> Results:
    return pool_results()


def test_curve_holds_the_levels(results: Results, tmp_path: Path) -> None:
    chart = plots.severity_curve.describe(results)
    table = results.levels("pool")
    means = [np.mean(line.y) for line in chart.lines]
    assert means == sorted(means, reverse=True)
    assert chart.lines[0].label == f" {100 * means[0]:.1f} %  {chart.lines[0].label.split()[-1]}"
    for line in chart.lines:
        own = table[table["detector"] == line.label.split()[-1]]
        assert list(line.y) == own["auroc"].tolist()
    assert (chart.bands, [text for _, text in chart.ticks]) == ((), [f"s{i}" for i in range(11)])
    rates = plots.severity_curve.describe(results, metric="fpr95")
    means = [np.mean(line.y) for line in rates.lines]
    assert means == sorted(means)
    figure = results.plot("severity_curve")
    figure.savefig(tmp_path / "figure.png", dpi=60)
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == [f"s{i}" for i in range(11)]


def test_published_curves_lie_behind() -> None:
    names = tuple(f"n{90000000 + i}" for i in range(1010))
    many = pool_results(names=names, id_classes=1000, per_class=2)
    outer, inner = plots.severity_curve.describe(many).bands
    levels = np.array([curve.levels for curve in published_curves("softmax")])
    assert ((levels >= outer.low) & (levels <= outer.high)).mean(axis=0).min() >= 0.9
    assert ((levels >= inner.low) & (levels <= inner.high)).mean(axis=0).min() >= 0.5
    assert plots.severity_curve.describe(many, metric="fpr95").bands == ()
    assert plots.severity_curve.describe(many, detectors=["good"]).bands == ()
    assert (
        "677 published curves (max_logit)" in plots.severity_curve.describe(many, published="max_logit").bands[0].label
    )
    assert len(draw(plots.severity_curve.describe(many)).axes[0].collections) == 2
    with pytest.raises(UnknownNameError, match="confidence function 'energy'"):
        plots.severity_curve(many, published="energy")


def test_confidence_functions_of_detectors() -> None:
    settings = {"temperature": 2.0, "epsilon": 1e-5, "step": "cood"}
    assert kappa_of("ODIN", settings) == "odin"
    assert kappa_of("ODIN", {**settings, "epsilon": 0.1}) is None
    assert kappa_of("MCDropout", {}) == "mcd_entropy"
    assert kappa_of("MCDropout", {"passes": 10}) is None
    assert kappa_of("Cosine", {}) is None
    assert kappa_of("Energy", {}) is None


def test_correlation_over_models() -> None:
    runs = [pool_results(seed) for seed in range(5)]
    chart = plots.severity_correlation.describe(runs)
    table = [plots.severity_curve.describe(one, detectors=["msp"]).lines[0].y for one in runs]
    np.testing.assert_allclose(chart.cells, spearmanr(table).statistic, rtol=0, atol=1e-12)
    assert chart.title == "pool, msp: rank correlation of levels over 5 models"
    named = {f"net {i}": one for i, one in enumerate(runs)}
    np.testing.assert_array_equal(level_correlation(named, "pool", ["msp"]).to_numpy(), chart.cells)
    figure = plots.severity_correlation(runs)
    assert len(figure.axes[0].texts) == 121


def test_correlation_over_detectors_of_one_run(results: Results) -> None:
    chart = plots.severity_correlation.describe(results)
    assert chart.title == "pool, AUROC: rank correlation of levels over 2 detectors"
    assert set(np.abs(chart.cells).ravel().tolist()) == {1.0}  # two curves


def test_correlation_refuses(results: Results) -> None:
    for wrong, message in (
        ({"detectors": ["msp"]}, "expected at least two .*, got 1 .*1"),
        ({"names": ["a", "b"]}, "expected .*name.* per result.*, got .*2"),
        ({"dataset": "val"}, "'val' has role id, but .* figure requires a pool"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            plots.severity_correlation(results, **wrong)
    with pytest.raises(InvalidArgumentError, match="differs between the runs"):
        plots.severity_correlation([results, pool_results(1, per_class=9)])


def test_no_results_are_no_pool() -> None:
    for call in (check_same_pool, levels_of_runs):
        with pytest.raises(InvalidArgumentError, match="at least one run to compare on 'pool'"):
            call({}, "pool")


def test_a_part_of_the_id_images_is_another_comparison() -> None:
    runs = {"all": pool_results(0), "few": pool_results(1, n_id=100)}
    with pytest.raises(InvalidArgumentError, match=r"pool 'pool' differs between .* \(ID images: 200 and 100\)"):
        levels_of_runs(runs, "pool")
