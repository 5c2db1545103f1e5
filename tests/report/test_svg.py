"""Charts of the page: valid XML whatever the scores, and the numbers that matplotlib draws."""

import itertools
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.report.svg import interval_bars, level_curves, roc_curves, score_histogram, simplified
from oodlit.results import plots
from oodlit.results.plots.charts import Curves, Estimate, Grid, Line
from oodlit.results.plots.drawing import draw
from oodlit.results.plots.score_histograms import ScoreAxis, histogram
from tests.report.problems import make_results
from tests.results.pool_support import pool_results

SCORES = st.lists(st.floats(allow_nan=False, width=32), max_size=30).map(lambda values: np.array(values, np.float32))


def svg_of(threshold: float, inside: object, *others: object) -> str:
    """A histogram as the page shows it."""
    scores = {f"set{index}": np.asarray(values) for index, values in enumerate((inside, *others))}
    return str(score_histogram(histogram("msp", scores, threshold)))


@given(SCORES, SCORES, st.floats(allow_nan=True, width=32))
def test_histogram_is_xml_with_finite_coordinates(inside: np.ndarray, other: np.ndarray, threshold: float) -> None:
    svg = svg_of(threshold, inside, other)
    root = ET.fromstring(svg)
    assert "nan" not in svg
    assert not re.search(r'[MHV ="]-?inf\b', "".join(path.get("d") or "" for path in root.iter("path")))
    assert len(list(root.iter("path"))) == bool(len(inside)) + bool(len(other))


@pytest.mark.parametrize("scores", [[1.0] * 5, [0.0, 1e30], [-np.inf, np.inf], [1e-30, 2e-30]])
def test_degenerate_scores(scores: list[float]) -> None:
    values = np.array(scores, np.float32)
    ET.fromstring(svg_of(float(values[0]), values))


def test_histogram_threshold_lies_between_the_scores_it_separates() -> None:
    svg = svg_of(9.5, np.arange(10.0, 20.0), np.arange(10.0))
    x = float(next(line.get("x1") or "" for line in ET.fromstring(svg).iter("line") if line.get("stroke-dasharray")))
    assert x == pytest.approx(170, abs=1)


def test_colours_stay_with_their_set_where_one_has_no_images() -> None:
    root = ET.fromstring(svg_of(0.5, np.ones(3), np.ones(0), np.zeros(3)))
    assert [path.get("stroke") for path in root.iter("path")] == ["var(--s0)", "var(--s2)"]


def test_bars_show_value_interval_and_count() -> None:
    cells = ((Estimate(0.25, 0.1, 0.5, 31),), (Estimate(n=5),))
    root = ET.fromstring(str(interval_bars(Grid("FPR", ("sea", "<sky>"), ("msp",), cells, (Estimate(),)), "msp")))
    texts = ["".join(text.itertext()) for text in root.iter("text")]
    assert {"sea (31)", "25.0 %", "<sky> (5)", "undefined"} <= set(texts)
    assert [rect.get("width") for rect in root.iter("rect")] == ["160.0"]


def test_ends_of_the_axis_are_no_impossible_scores() -> None:
    """A probability is never below 0 or above 1, on the axis neither."""
    root = ET.fromstring(svg_of(0.05, np.linspace(0.0, 1.0, 101)))
    assert [text.text for text in root.iter("text")][:2] == ["0", "1"]
    root = ET.fromstring(svg_of(1.0, np.ones(5)))
    assert [text.text for text in root.iter("text")] == [None, None, "all at 1"]


def test_bars_of_the_page_and_of_matplotlib_are_the_same() -> None:
    grid = plots.fpr_per_class.describe(make_results())
    figure = draw(grid).axes[0]
    for index, detector in enumerate(grid.detectors):
        root = ET.fromstring(str(interval_bars(grid, detector)))
        on_page = [float(rect.get("width") or "") / 640 for rect in root.iter("rect")]
        in_file = [float(bar.get_width()) for bar in figure.containers[2 * index]]  # type: ignore[attr-defined]
        assert on_page == pytest.approx([max(width, 1 / 640) for width in in_file], abs=1e-4)
        names = [str(text.text).split(" (")[0] for text in root.iter("text") if text.get("text-anchor") == "end"]
        assert names == [label.get_text().split("  (")[0] for label in figure.get_yticklabels()]


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_histograms_of_the_page_and_of_matplotlib_are_the_same(scale: float) -> None:
    """Also where few scores are so far away that the axis is compressed."""
    results = make_results()
    far = results.scores["key"].str.endswith("000")
    frame = results.scores.assign(msp=results.scores["msp"].where(~far, results.scores["msp"] * scale))
    charts = plots.score_histograms.describe(
        type(results).from_scores(frame, results.datasets, results.detectors, bootstrap=0)
    )
    assert (charts.panels[results.detectors.index("msp")].labels[1] == "compressed axis") == (scale > 1)
    for panel, axes in zip(charts.panels, draw(charts).axes, strict=True):
        root = ET.fromstring(str(score_histogram(panel)))
        heights = [
            [120 - float(step) for step in re.findall(r"V([\d.]+)H", path.get("d") or "")] for path in root.iter("path")
        ]
        drawn = [stairs.get_data().values for stairs in axes.patches]  # type: ignore[attr-defined]
        top = max(float(values.max()) for values in drawn)
        for on_page, in_file in zip(heights, drawn, strict=True):
            assert on_page == pytest.approx((0.94 * 120 * in_file / top).tolist(), abs=0.06)
        x = next(float(line.get("x1") or "") for line in root.iter("line") if line.get("stroke-dasharray"))
        assert x / 340 == pytest.approx(float(np.asarray(axes.lines[0].get_xdata())[0]), abs=1e-3)
        ends = [str(text.text or "") for text in root.iter("text")]
        assert [label.get_text() for label in axes.get_xticklabels()] == [ends[0], ends[2], ends[1]]
        assert math.isfinite(panel.position)


def test_level_curves_of_the_page_and_of_matplotlib_are_the_same() -> None:
    names = tuple(f"n{90000000 + i} a" for i in range(1010))
    chart = plots.severity_curve.describe(pool_results(names=names, id_classes=1000, per_class=2))
    root = ET.fromstring(str(level_curves(chart, {chart.lines[1].label: "--s0"})))
    bands, lines = [path for path in root.iter("path") if path.get("fill") != "none"], []
    assert [band.findtext("title") for band in bands] == [band.label for band in chart.bands]
    for path in root.iter("path"):
        if path.get("fill") == "none":
            points = [tuple(map(float, point.split())) for point in (path.get("d") or "")[1:].split("L")]
            lines.append((path.findtext("title"), path.get("stroke"), points))
    assert [(title, stroke) for title, stroke, _ in lines] == [
        (chart.lines[0].label.strip(), "var(--soft)"),
        (chart.lines[1].label.strip(), "var(--s0)"),  # on top
    ]
    rows = {
        float(str(text.text).split()[0]) / 100: float(text.get("y") or "") - 4
        for text in root.iter("text")
        if text.get("text-anchor") == "end"
    }
    (low, y_low), *_, (high, y_high) = sorted(rows.items())
    drawn = [line for line in draw(chart).axes[0].lines if not str(line.get_label()).startswith("_")]
    for line, axes_line, (_, _, points) in zip(chart.lines, drawn, lines, strict=True):
        on_page = [low + (y - y_low) / (y_high - y_low) * (high - low) for _, y in points]
        assert on_page == pytest.approx(list(line.y), abs=1e-3)
        assert list(line.y) == np.asarray(axes_line.get_ydata()).tolist()


def test_undefined_levels_leave_no_line() -> None:
    nan = math.nan
    chart = Curves(
        "", "", "<y>", (Line("a <b>", (0.0, 1.0), (nan, nan)), Line("c", (0.0, 1.0), (nan, 0.5))), bottom=0.0
    )
    root = ET.fromstring(str(level_curves(chart, {})))
    assert [path.findtext("title") for path in root.iter("path")] == ["c"]
    assert "nan" not in str(level_curves(chart, {}))


def test_roc_curves_of_the_page_are_those_of_the_figure() -> None:
    """Up to a third of a unit: the points that are left lie on the curve, and it passes near all of them."""
    chart = plots.roc.describe(make_results(("msp", "<knn>")), "near")
    root = ET.fromstring(str(roc_curves(chart, {1: 0})))
    groups = [group for group in root.iter("g") if group.get("class") == "line"]
    assert [(group.findtext("title"), group.get("data-colour")) for group in groups] == [("msp", None), ("<knn>", "0")]
    for line, group in zip(chart.lines, groups, strict=True):
        found = np.array(re.findall(r"[\d.]+", next(group.iter("path")).get("d") or ""), float).reshape(-1, 2)
        fpr, tpr = ((found[:, 0] - 46) / 840) ** 2, 1 - ((found[:, 1] - 8) / 380) ** 2
        assert (fpr[0], tpr[0]) == pytest.approx((0, 0), abs=1e-3)
        assert (fpr[-1], tpr[-1]) == pytest.approx((1, 1), abs=1e-3)
        points = np.stack([46 + 840 * np.sqrt(line.x), 8 + 380 * np.sqrt(1 - np.array(line.y))], axis=1)
        assert max(distance(point, found) for point in points) < 1 / 3 + 0.1
        [dot] = [path.get("d") or "" for path in group.iter("path") if path.get("class") == "dot"]
        (x, y), *_ = line.dots
        cx, cy = map(float, re.findall(r"[\d.]+", dot.removesuffix("h0")))
        drawn = ((cx - 46) / 840) ** 2, 1 - ((cy - 8) / 380) ** 2
        assert drawn == pytest.approx((x, y), abs=1e-3)


def distance(point: np.ndarray, line: np.ndarray) -> float:
    """From a point to the nearest part of a line, in a plain loop."""
    found = []
    for start, end in itertools.pairwise(line):
        along = end - start
        place = min(max(float((point - start) @ along) / max(float(along @ along), 1e-12), 0.0), 1.0)
        found.append(math.dist(point, start + place * along))
    return min(found)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=30), st.floats(0.01, 5))
def test_simplified_lines_pass_near_all_points(places: list[tuple[int, int]], tolerance: float) -> None:
    points = np.array(sorted(places), float)
    kept = simplified(points, tolerance)
    assert (kept[0], kept[-1]) == (0, len(points) - 1)
    assert all(distance(point, points[kept]) <= tolerance + 1e-9 for point in points)


def test_spike_is_drawn_on_an_axis_of_ranks() -> None:
    """Nine of ten ID scores within a thousandth of the axis: as values all lie in one bin, as ranks they part."""
    rng = np.random.default_rng(0)
    inside = np.concatenate([rng.uniform(0.999, 1.0, 900), rng.uniform(0, 0.999, 100)])
    other = rng.uniform(0.0, 1.0, 1000)
    chart = histogram("msp", {"val": inside, "near": other}, float(np.quantile(inside, 0.05)))
    assert chart.labels[1] == "axis of ranks"
    assert max(map(max, chart.shares)) < 0.1
    assert [sum(shares) for shares in chart.shares] == pytest.approx([1, 1])
    both = np.add(*chart.shares) / 2
    assert both == pytest.approx(np.full(48, 1 / 48), abs=2e-3)  # equal widths, equal shares of both sets
    assert chart.position == pytest.approx((0.05 + (other < np.quantile(inside, 0.05)).mean()) / 2, abs=2e-3)
    assert "axis of ranks" in svg_of(0.5, inside, other)
    plain = histogram("msp", {"val": other, "near": other}, 0.5)
    assert plain.labels[1] == ""


@given(SCORES.filter(len), SCORES.filter(len), st.floats(allow_nan=True, width=32))
def test_axis_keeps_the_order_of_scores(inside: np.ndarray, other: np.ndarray, threshold: float) -> None:
    axis = ScoreAxis.fitting([inside, other], threshold)
    places = axis.positions(np.sort(np.concatenate([inside, other])))
    assert (np.diff(places) >= 0).all()
    assert places.min() >= 0
    assert places.max() <= 1
