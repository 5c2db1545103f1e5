"""Figures: what they show, what they refuse, and that one file and one line make a new one."""

import importlib
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.results import DatasetInfo, Results, plots
from oodlit.results.plots.drawing import draw
from oodlit.results.plots.score_histograms import histogram
from oodlit.roles import Role
from tests.results.pool_support import pool_results
from tests.results.support import DATASETS, DETECTORS, run_scores


@pytest.fixture(scope="module")
def results():
    return Results.from_scores(run_scores(), DATASETS, DETECTORS, bootstrap=50)


OF_POOLS = {"severity_curve", "severity_correlation"}
"""Figures that need a pool; `tests/results/test_pool_figures.py` has more of them."""


@pytest.mark.parametrize("kind", sorted(set(plots.FIGURES) - OF_POOLS))
def test_figures(results, kind, tmp_path):
    figure = results.plot(kind)
    figure.savefig(tmp_path / "figure.png", dpi=60)
    assert (tmp_path / "figure.png").stat().st_size > 3000
    text = " ".join(t.get_text() for axes in figure.axes for t in [axes.title, axes._left_title, *axes.texts])
    legends = [t.get_text() for legend in figure.legends for t in legend.get_texts()]
    ticks = [t.get_text() for axes in figure.axes for t in axes.get_yticklabels()]
    assert any("good" in entry for entry in [text, *legends, *ticks])


def test_figures_of_many_detectors_and_several_models(results):
    frame = run_scores()
    names = [f"d{i}" for i in range(9)]
    for index, name in enumerate(names):
        frame[name] = frame["good"] * (index + 1)
    many = Results.from_scores(frame, DATASETS, names, bootstrap=0)
    rows = many.plot("fpr_per_class").axes[0].get_yticklabels()
    assert len(rows) == 9
    assert len(many.plot("score_histograms").axes) == 12
    figure = plots.accuracy_fpr([results, results], names=["one", "two"])
    assert [t.get_text() for t in figure.axes[0].texts] == ["one", "two"]
    with pytest.raises(InvalidArgumentError, match=r"one entry per result \(2\), got 1"):
        plots.accuracy_fpr([results, results], names=["one"])
    with pytest.raises(UnknownNameError, match="unknown detector 'god' in these results; did you mean 'good'"):
        results.plot("roc", detectors=["god"])
    with pytest.raises(UnknownNameError, match="of 'near'"):
        results.plot("roc", ood_class="sea")
    assert "sky" in results.plot("roc", ood_class="sky").axes[0]._left_title.get_text()


def test_figures_need_their_data():
    frame = run_scores()
    only = Results.from_scores(frame[frame["dataset"] == "val"], DATASETS[1:2], DETECTORS, bootstrap=0)
    messages = {
        "roc": "an OOD set, but the results have no such set",
        "fpr_per_class": "an OOD set with classes",
        "unit_tests": "unit tests",
    }
    for kind, message in messages.items():
        with pytest.raises(InvalidArgumentError, match=message):
            only.plot(kind)


def test_figures_refuse_what_they_would_mislabel(results):
    for kind, dataset, message in (
        ("class_distribution", "shifted", "'shifted' has role shift, but the figure requires an OOD set with classes"),
        ("fpr_per_class", "tests", "'tests' has role unit_test"),
        ("fpr_per_class", "far", "'far' has no classes"),
        ("unit_tests", "near", "'near' has role ood"),
        ("roc", "val", "'val' has role id, but the figure requires an OOD set or a set of unit tests"),
        ("score_histograms", "train", "'train' has role train"),
        ("accuracy_fpr", "tests", "'tests' has role unit_test"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            results.plot(kind, dataset=dataset)
    for kind in plots.FIGURES:
        with pytest.raises(InvalidArgumentError, match="requires at least one detector"):
            (pool_results() if kind in OF_POOLS else results).plot(kind, detectors=[])
    with pytest.raises(InvalidArgumentError, match="expected bins to be at least 1, got 0"):
        results.plot("score_histograms", bins=0)
    results.plot("roc", dataset="tests")


def test_figures_show_the_chosen_classes(results):
    some = results.recompute(classes={"near": ["sky"]}, bootstrap=0)
    titles = [panel.get_title(loc="left") for panel in some.plot("score_histograms").axes]
    expected = some.value("pooled_fpr95", dataset="near", detector="good")
    assert titles[0].endswith(f"{100 * expected:.1f} % of OOD accepted")


def test_grid_holds_the_table(results):
    grid = plots.fpr_per_class.describe(results)
    assert grid.detectors == ("good", "poor")  # by their mean
    for name, n, row in zip(grid.classes, grid.sizes, grid.cells, strict=True):
        assert n == 30
        for detector, share in zip(grid.detectors, row, strict=True):
            assert share.value == results.value("fpr95", dataset="near", detector=detector, ood_class=name)
            assert share.ci_low <= share.value <= share.ci_high
    means = [np.mean([share.value for share in row]) for row in grid.cells]
    assert means == sorted(means, reverse=True)
    for detector, total in zip(grid.detectors, grid.totals, strict=True):
        assert total.value == results.value("mean_fpr95", dataset="near", detector=detector)
    assert plots.fpr_per_class.describe(results, detectors=["poor", "good"]).detectors == ("poor", "good")
    tests = plots.unit_tests.describe(results)
    assert tests.classes == ("black", "white")
    failed = [sum(row[column].value > tests.limit for row in tests.cells) for column in range(2)]
    assert [total.value for total in tests.totals] == failed


@pytest.mark.filterwarnings("ignore::oodlit.metrics.UndefinedMetricWarning")
def test_undefined_classes_are_the_last_and_equal_ones_in_order_of_their_names():
    infos = [
        DatasetInfo("near", Role.OOD, ("none", "high heels", "b", "a")),
        *(d for d in DATASETS if d.name != "near"),
    ]
    frame = run_scores()
    near = frame["dataset"] == "near"
    frame.loc[near, "group"] += 1
    frame.loc[near & (frame["group"] > 1), DETECTORS] = -50.0
    results = Results.from_scores(frame, infos, DETECTORS, bootstrap=0)
    assert plots.fpr_per_class.describe(results).classes == ("high heels", "a", "b", "none")
    for detectors in (["good"], ["good", "poor"] * 3):
        plots.fpr_per_class(results, detectors=detectors)


def test_another_metric_per_class(results):
    grid = plots.fpr_per_class.describe(results, metric="auroc")
    assert grid.title == "AUROC per class of near"
    with pytest.raises(UnknownNameError, match="per-class metric 'fpr96' of 'near'"):
        results.plot("fpr_per_class", metric="fpr96")


def test_dots_of_the_roc_lie_on_its_lines(results):
    curves = plots.roc.describe(results, dataset="far")
    for line in curves.lines:
        (fpr, tpr), threshold = line.dots[0], results.threshold(line.label)
        assert fpr == results.value("fpr95", dataset="far", detector=line.label)
        assert min(math.dist((fpr, tpr), point) for point in zip(line.x, line.y, strict=True)) < 1e-12
        assert tpr == (results.scores.query("dataset == 'val'")[line.label] >= threshold).mean()


SCORES = st.lists(st.floats(allow_nan=False, width=32), max_size=30).map(lambda values: np.array(values, np.float32))


@given(SCORES, SCORES, st.floats(allow_nan=True, width=32), st.integers(1, 60))
def test_every_image_is_in_a_bin(inside, other, threshold, bins):
    chart = histogram("msp", {"val": inside, "near": other}, threshold, bins)
    for scores, shares in zip((inside, other), chart.shares, strict=True):
        assert len(shares) == (bins if len(scores) else 0)
        assert math.fsum(shares) == pytest.approx(1.0 if len(scores) else 0.0)
    assert math.isnan(chart.position) != math.isfinite(threshold)


def test_a_figure_draws_the_numbers_of_its_description(results):
    """No second selection, binning or counting between what is described and what is drawn."""
    grid = plots.fpr_per_class.describe(results)
    axes = draw(grid).axes[0]
    for index, bars in enumerate(axes.containers[::2]):
        assert [bar.get_width() for bar in bars] == [row[index].value for row in grid.cells]
    tests = plots.unit_tests.describe(results)
    image = draw(tests).axes[0].images[0].get_array()
    assert image.T.tolist() == [[share.value for share in row] for row in tests.cells]
    charts = plots.score_histograms.describe(results, bins=20)
    for axes, panel in zip(draw(charts).axes, charts.panels, strict=True):
        assert [tuple(stairs.get_data().values.tolist()) for stairs in axes.patches] == list(panel.shares)
        assert axes.lines[0].get_xdata()[0] == panel.position
    for kind in ("roc", "class_distribution", "accuracy_fpr"):
        curves = plots.FIGURES[kind].describe(results)
        drawn = [line for line in draw(curves).axes[0].lines if not line.get_label().startswith("_")]
        assert [tuple(line.get_xdata()) for line in drawn] == [line.x for line in curves.lines]
        assert [tuple(line.get_ydata()) for line in drawn] == [line.y for line in curves.lines]


def test_failed_unit_tests_are_red_and_passed_ones_blue(results):
    tests = plots.unit_tests.describe(results)
    image = draw(tests).axes[0].images[0]
    for row in tests.cells:
        for share in row:
            red, _, blue, _ = image.to_rgba(share.value)
            assert (red > blue) == (share.value > tests.limit), to_hex((red, 0, blue))


NEWCOMER = '''
from oodlit.results.plots.charts import Curves, Line
from oodlit.results.plots.plot import Plot


@Plot
def sizes(results):
    """Number of images."""
    return Curves("sizes", "x", "y", (Line("all", (0.0, 1.0), (0.0, len(results.scores)), ((1.0, 1.0),)),))
'''


def test_a_new_figure_is_one_file_and_one_line(results, tmp_path, monkeypatch):
    copy = tmp_path / "more_plots"
    shutil.copytree(Path(plots.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "sizes.py").write_text(NEWCOMER, encoding="utf-8")
    text = (copy / "__init__.py").read_text(encoding="utf-8")
    line = "from oodlit.results.plots.roc import roc as roc\n"
    assert line in text
    (copy / "__init__.py").write_text(text.replace(line, f"{line}from more_plots.sizes import sizes as sizes\n"))
    monkeypatch.syspath_prepend(tmp_path)
    more = importlib.import_module("more_plots")
    assert set(more.FIGURES) == {*plots.FIGURES, "sizes"}
    assert "sizes" in more.__all__
    assert more.FIGURES["sizes"](results).axes[0].get_title(loc="left") == "sizes"


def test_figures_are_the_export_list():
    assert set(plots.FIGURES) == set(plots.__all__) - {"FIGURES"}
    assert len(plots.FIGURES) >= 6
    for name, figure in plots.FIGURES.items():
        assert figure.__name__ == name
        assert "Returns:" in figure.__doc__


def test_figures_stand_on_the_base_of_results():
    """`Results` draws figures, so figures do not import `Results`, for type checkers neither."""
    files = list(Path(plots.__file__).parent.glob("*.py"))
    assert len(files) > 8
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "from oodlit.results import" not in text, file
        assert "oodlit.results.results" not in text, file


@pytest.mark.parametrize("names", [["msp"], [f"d{i}" for i in range(6)]], ids=["bars", "heat map"])
def test_many_classes_make_no_endless_figure(names):
    """The classes with the highest values are shown; the mean is over all of them."""
    n = 300
    outside = {"key": [f"far/{i}" for i in range(2 * n)], "dataset": "far", "group": np.arange(2 * n) % n}
    inside = {"key": [f"val/{i}" for i in range(100)], "dataset": "val", "group": -1}
    frame = pd.concat([pd.DataFrame(inside), pd.DataFrame(outside)], ignore_index=True).assign(label=-1, prediction=0)
    values = np.r_[np.linspace(1, 2, 100), np.where(outside["group"] < 7, 3.0, 0.0)]
    frame = frame.assign(**dict.fromkeys(names, values))
    infos = [DatasetInfo("val", Role.ID), DatasetInfo("far", Role.OOD, tuple(f"c{i}" for i in range(n)))]
    results = Results.from_scores(frame, infos, names, bootstrap=0)
    chart = plots.fpr_per_class.describe(results)
    assert len(chart.classes) == len(chart.cells) == 100
    assert {f"c{i}" for i in range(7)} == set(chart.classes[:7])
    assert chart.totals[0].value == pytest.approx(7 / n)
    assert chart.title.endswith("the 100 highest of 300 classes")
    figure = plots.fpr_per_class(results)
    assert max(figure.get_size_inches()) < 60


@pytest.mark.parametrize("number", [1, 4])
def test_the_legend_of_histograms_is_not_cut(results, number) -> None:
    figure = results.plot("score_histograms", detectors=results.detectors[:number])
    figure.draw_without_rendering()
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.width
