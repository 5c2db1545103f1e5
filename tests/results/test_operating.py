"""Risk and coverage in the table, at operating points, and in limits."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from oodlit.cli.guard import check
from oodlit.errors import InvalidArgumentError
from oodlit.metrics import joint_augrc, operating_point
from oodlit.results import DatasetInfo, Limit, Results, operating_sentence
from oodlit.results.limits import priors_of
from oodlit.roles import Role

N, M = 60, 40


@pytest.fixture(scope="module")
def results() -> Results:
    random = np.random.default_rng(0)
    correct = random.random(N) < 0.8
    known = pd.DataFrame({"dataset": "val", "group": -1, "label": 0, "prediction": np.where(correct, 0, 1)})
    unknown = pd.DataFrame({"dataset": "near", "group": np.arange(M) % 2, "label": -1, "prediction": 0})
    frame = pd.concat([known.head(N).assign(key=[f"val/{i}" for i in range(N)]), unknown], ignore_index=True)
    frame.loc[N:, "key"] = [f"near/{i}" for i in range(M)]
    frame["good"] = np.concatenate([2 + correct + random.normal(size=N), random.normal(size=M)])
    frame["bad"] = random.normal(size=N + M)
    infos = [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD, ("seven", "eight"))]
    return Results.from_scores(frame, infos, ["good", "bad"], bootstrap=20)


def _parts(results: Results, detector: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    inside, outside = results.images("val"), results.images("near")
    correct = (inside["label"] == inside["prediction"]).to_numpy()
    return inside[detector].to_numpy(), outside[detector].to_numpy(), correct


def test_the_table_has_risk_and_coverage_at_every_prior(results: Results) -> None:
    found = results.recompute(prior=[0.01, 0.5])
    inside, outside, correct = _parts(results, "good")
    for prior, number in ((0.01, "1"), (0.5, "50")):
        value = found.value(f"pooled_joint_augrc{number}", dataset="near", detector="good")
        assert value == joint_augrc(inside, outside, is_correct=correct, prior=prior)
        point = operating_point(inside, outside, is_correct=correct, prior=prior, tpr=0.95)
        assert found.value(f"pooled_joint_risk{number}", dataset="near", detector="good") == point.risk
        coverage = found.value(f"pooled_joint_coverage{number}", dataset="near", detector="good")
        assert coverage == pytest.approx(point.coverage, abs=1e-12)
    assert not results.table["metric"].str.contains("risk|coverage").any(), "only where a prior is given"


def test_the_prior_is_saved(results: Results, tmp_path: Path) -> None:
    results.recompute(prior=0.01).save(tmp_path / "run")
    loaded = Results.load(tmp_path / "run")
    assert loaded.settings.priors == (0.01,)
    again = loaded.recompute(tpr=0.9)
    assert "mean_joint_risk1" in set(again.table["metric"])


def test_operating_points_are_sorted_and_agree_with_the_metric(results: Results) -> None:
    frame = results.operating_points("near", prior=0.1, max_risk=0.3)
    assert frame["detector"].tolist() == ["good", "bad"]
    inside, outside, correct = _parts(results, "good")
    point = operating_point(inside, outside, is_correct=correct, prior=0.1, max_risk=0.3)
    assert tuple(frame.loc[0, list(point._fields)]) == point
    by_default = results.operating_points(prior=0.1)
    assert by_default["tpr"].min() >= 0.95


def test_unreachable_risk_is_undefined_with_a_reason(results: Results) -> None:
    bad = results.operating_points("near", prior=1, max_risk=0.001).set_index("detector").loc["bad"]
    assert math.isnan(bad["coverage"])
    assert "no threshold has a risk of at most 0.001" in bad["reason"]


def test_sets_that_do_not_fit(results: Results) -> None:
    with pytest.raises(InvalidArgumentError, match=r"an OOD set, got 'val'; OOD sets of these results: .*near"):
        results.operating_points("val", prior=0.1)
    inside = results.scores[results.scores["dataset"] == "val"]
    without = Results.from_scores(inside, [results.id_dataset], ["good"], bootstrap=0)
    with pytest.raises(InvalidArgumentError, match="OOD sets of these results: none"):
        without.operating_points(prior=0.1)
    unlabeled = results.scores.assign(label=-1)
    missing = Results.from_scores(unlabeled, results.datasets, ["good"], bootstrap=0)
    with pytest.raises(InvalidArgumentError, match=r"requires labels and predictions of all ID images.*: 60 of 60"):
        missing.operating_points(prior=0.1)


def test_sentence(results: Results) -> None:
    point = results.operating_points(prior=0.01).iloc[0]
    assert operating_sentence(results).startswith(
        "If 1 % of the images are unknown, like those of near, good has the best joint AUGRC. At the threshold of the"
        f" run, it accepts {100 * point.coverage:.1f} %"
    )


def test_limits_on_the_risk_need_no_setting_of_the_run(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    limits = [Limit.of("good: pooled_joint_risk1 > 90%"), Limit.of("bad: pooled_joint_coverage20 < 99%")]
    assert priors_of(limits) == (0.01, 0.2)
    assert check(results, limits) == 1
    printed = capsys.readouterr().out
    assert "FAILED bad: pooled_joint_coverage20 on near" in printed
    assert "FAILED good" not in printed
