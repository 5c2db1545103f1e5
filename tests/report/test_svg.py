"""Charts: every image is in a bin, whatever the scores."""

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.report.svg import Bar, Series, interval_bars, score_histogram

SCORES = st.lists(st.floats(allow_nan=False, width=32), max_size=30).map(lambda values: np.array(values, np.float32))


@given(SCORES, SCORES, st.floats(allow_nan=True, width=32))
def test_histogram_is_xml_with_finite_coordinates(inside: np.ndarray, other: np.ndarray, threshold: float) -> None:
    svg = str(score_histogram(Series("val", inside, "--s0"), [Series("near", other, "--s1")], threshold))
    root = ET.fromstring(svg)
    assert "nan" not in svg.replace("val", "")
    assert not re.search(r'[MHV ="]-?inf\b', "".join(path.get("d") or "" for path in root.iter("path")))
    assert len(list(root.iter("path"))) == bool(len(inside)) + bool(len(other))


@pytest.mark.parametrize("scores", [[1.0] * 5, [0.0, 1e30], [-np.inf, np.inf], [1e-30, 2e-30]])
def test_degenerate_scores(scores: list[float]) -> None:
    values = np.array(scores, np.float32)
    ET.fromstring(str(score_histogram(Series("val", values, "--s0"), [], float(values[0]))))


def test_histogram_threshold_lies_between_the_scores_it_separates() -> None:
    svg = str(
        score_histogram(Series("val", np.arange(10.0, 20.0), "--s0"), [Series("o", np.arange(10.0), "--s1")], 9.5)
    )
    x = float(next(line.get("x1") or "" for line in ET.fromstring(svg).iter("line") if line.get("stroke-dasharray")))
    assert x == pytest.approx(170, abs=1)


def test_bars_show_value_interval_and_count() -> None:
    bars = [Bar("sea", 31, 0.25, 0.1, 0.5, "tip"), Bar("<sky>", 5, math.nan, math.nan, math.nan, "tip")]
    root = ET.fromstring(str(interval_bars(bars)))
    texts = ["".join(text.itertext()) for text in root.iter("text")]
    assert {"sea (31)", "25.0 %", "<sky> (5)", "undefined"} <= set(texts)
    assert [rect.get("width") for rect in root.iter("rect")] == ["160.0"]


def test_ends_of_the_axis_are_no_impossible_scores() -> None:
    """A probability is never below 0 or above 1, on the axis neither."""
    scores = np.linspace(0.0, 1.0, 101)
    root = ET.fromstring(str(score_histogram(Series("val", scores, "--s0"), [], 0.05)))
    assert [text.text for text in root.iter("text")][:2] == ["0", "1"]
    root = ET.fromstring(str(score_histogram(Series("val", np.ones(5), "--s0"), [], 1.0)))
    assert [text.text for text in root.iter("text")] == [None, None, "all at 1"]
