"""The section about joint risk: its numbers are those of the metrics, and it is left out where they are undefined."""

import re

import numpy as np
import pandas as pd
import pytest

from oodlit.metrics import UndefinedMetricWarning, joint_augrc, risk_curve
from oodlit.report import render
from oodlit.report.detector_choice import choose
from oodlit.report.section import Shown
from oodlit.report.sections.images import risk
from oodlit.report.thumbnails import ThumbnailStyles
from oodlit.results import DatasetInfo, Results, operating_sentence
from oodlit.results.views.operating import scores_of
from oodlit.roles import Role
from tests.report.problems import make_results

DETECTORS = ("msp", "energy", *(f"d{i}" for i in range(20)))


def content(results: Results) -> list[dict]:
    shown = Shown(results, ThumbnailStyles({}, "t"))
    return [dict(section.content) for section in risk.sections(shown)]


def points_of(svg: str, name: str) -> list[tuple[float, float]]:
    """The points of a line."""
    found = re.search(rf'<g data-d="{name}">.*?<path d="M([^"]+)"', svg)
    assert found is not None
    pairs = (point.split() for point in found[1].split("L"))
    return [(float(x), float(y)) for x, y in pairs]


@pytest.fixture(scope="module")
def results() -> Results:
    return make_results(DETECTORS, bootstrap=0)


def test_numbers_are_those_of_the_operating_points(results: Results) -> None:
    [shown] = content(results)
    near, far = shown["sets"]
    assert (shown["prior"], near["name"], far["name"]) == ("1 %", "near", "far")
    points = results.operating_points("near", prior=0.01)
    choice = choose(Shown(results, ThumbnailStyles({}, "t")))
    assert choice is not None
    assert near["sentence"] == operating_sentence(results, "near", choice=choice.detector)
    assert choice.detector != points["detector"][0]
    assert near["sentence"].endswith(
        f". The choice by FPR is {choice.detector}; joint AUGRC also counts wrong predictions"
    )
    best = points["detector"][0]
    assert operating_sentence(results, "near", choice=best) == operating_sentence(results, "near")
    assert [row["detector"] for row in near["rows"][:10]] == points["detector"][:10].tolist()
    assert float(near["rows"][0]["augrc"].removesuffix(" %")) == pytest.approx(
        100 * points["joint_augrc"][0], rel=0.005
    )
    assert near["rows"][0]["risk"] == f"{100 * points['risk'][0]:.1f} %"
    assert len(near["rows"]) + near["others"] == len(DETECTORS)
    assert {"msp", "energy"} <= {row["detector"] for row in near["rows"]}
    assert list(near["legend"])[:3] == points["detector"][:3].tolist()
    assert set(near["legend"]) == {*points["detector"][:3], "msp", "energy"}


def test_lines_are_those_of_the_metrics(results: Results) -> None:
    """Risk against coverage."""
    [shown] = content(results)
    inside, outside, correct = scores_of(results, ["msp"], "near")["msp"]
    drawn = np.array(points_of(shown["sets"][0]["over_coverage"], "msp"))
    curve = risk_curve(inside, outside, is_correct=correct, prior=0.01)
    least = float(curve.coverage[curve.coverage >= 0.1][0])
    assert drawn[-1][0] == 880.0
    assert drawn[0][0] == pytest.approx(56 + 824 * least, abs=0.1)
    risks = np.interp((drawn[:, 0] - 56) / 824, np.asarray(curve.coverage), np.asarray(curve.risk))
    slope, offset = np.polyfit(risks, drawn[:, 1], 1)
    assert slope < 0
    np.testing.assert_allclose(drawn[:, 1], slope * risks + offset, atol=2)


def test_the_curve_over_priors_is_joint_augrc_above_that_of_a_perfect_detector(results: Results) -> None:
    [shown] = content(results)
    inside, outside, correct = scores_of(results, ["msp"], "near")["msp"]
    drawn = np.array(points_of(shown["sets"][0]["over_priors"], "msp"))
    priors = (drawn[:, 0] - 56) / 824 * risk.PRIORS[-1]
    assert (priors[0], priors[-1]) == (0.0, 0.2)
    wrong = float((~correct).double().mean())
    above = [
        joint_augrc(inside, outside, is_correct=correct, prior=prior) - (1 - (1 - prior) * (1 - wrong)) ** 2 / 2
        for prior in priors.tolist()
    ]
    slope, offset = np.polyfit(above, drawn[:, 1], 1)
    assert slope < 0
    np.testing.assert_allclose(drawn[:, 1], slope * np.array(above) + offset, atol=0.2)


def test_the_prior_of_the_run_is_shown(results: Results) -> None:
    [shown] = content(results.recompute(prior=[0.2, 0.5]))
    assert shown["prior"] == "20 %"
    assert shown["sets"][0]["sentence"].startswith("If 20 % of the images are unknown, like those of near,")


def test_pages_without_labels_have_no_such_section(results: Results) -> None:
    assert "Errors if some images are unknown" in render({"run": results})
    unlabeled = Results.from_scores(results.scores.assign(label=-1), results.datasets, ["msp"], bootstrap=0)
    assert content(unlabeled) == []
    assert "Errors if some images are unknown" not in render({"run": unlabeled})


def test_a_detector_that_accepts_none_of_the_traffic() -> None:
    """All images are unknown, and all have lower scores than the known ones."""
    known = pd.DataFrame({"dataset": "val", "group": -1, "label": 0, "prediction": 0, "sure": np.arange(1.0, 21)})
    unknown = pd.DataFrame({"dataset": "near", "group": 0, "label": -1, "prediction": 0, "sure": -np.arange(20.0)})
    frame = pd.concat([known, unknown], ignore_index=True)
    frame["key"] = [f"{name}/{i}" for i, name in enumerate(frame["dataset"])]
    infos = [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD, ("a",))]
    with pytest.warns(UndefinedMetricWarning):
        results = Results.from_scores(frame, infos, ["sure"], bootstrap=0, prior=[1])
    [shown] = content(results)
    [near] = shown["sets"]
    assert near["sentence"] == "If all images are unknown, like those of near, sure accepts none of them"
    assert (near["rows"][0]["coverage"], near["rows"][0]["risk"]) == ("0.0 %", "undefined")
    assert "nan" not in near["over_coverage"]
