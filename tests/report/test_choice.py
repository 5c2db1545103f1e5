"""What the page answers to "which detector?": the group of the best, the choice of it, and detectors of one order."""

import re

import numpy as np
import pytest
from msgspec import structs

from oodlit.metrics import UndefinedMetricWarning
from oodlit.report import render
from oodlit.report.detector_choice import answers, choose, coinciding
from oodlit.report.headline import Cell, Column
from oodlit.report.section import Shown
from oodlit.report.thumbnails import ThumbnailStyles
from oodlit.results import Finding, Results
from oodlit.results.record_parts import TimeRecord
from tests.report.problems import make_results
from tests.results.pool_support import pool_results


def shown(results: Results) -> Shown:
    return Shown(results, ThumbnailStyles({}, "t"))


SHORT = "one of 2 detectors that are not significantly worse than the best by FPR at 95 % TPR and by AUROC"


@pytest.fixture(scope="module")
def results() -> Results:
    """Two detectors that are one, a worse one and one of noise."""
    full = make_results(("msp", "mahalanobis"), per_class=60, bootstrap=0)
    best = full.scores["mahalanobis"].astype(float)
    rng = np.random.default_rng(4)
    frame = full.scores.assign(lard=best / 2, noise=rng.normal(size=len(best)))
    run = {"ms_per_image": {"msp": 0.5, "mahalanobis": 0.3, "lard": 0.2, "noise": 0.1}}
    return Results.from_scores(frame, full.datasets, [*full.detectors, "lard", "noise"], bootstrap=0, run=run)


def test_answers_are_those_of_the_groups(results: Results) -> None:
    by_fpr, by_auroc = answers(shown(results))
    for line, metric in ((by_fpr, "fpr95"), (by_auroc, "auroc")):
        table = results.group_of_best(["near", "far"], metric)
        best, *others = table.loc[table["in_group"], "detector"]
        assert f"averaged over 2 OOD sets, the best of 4 detectors is {best} ({100 * table['value'][0]:.1f} %)" in line
        assert set(re.findall(r"\w+", line.partition(";")[2])) >= set(others)
        assert "noise" not in line
        assert ("; one other is not significantly worse: " in line) == (len(others) == 1)
        assert "1 others" not in line
    choice = choose(shown(results))
    assert choice is not None
    group = "2 detectors that fail the fewest unit tests and are not significantly worse than the best"
    rate = f"{100 * results.group_of_best(['near', 'far'])['value'][0]:.1f} %"
    assert choice.sentence == (
        f"Choose mahalanobis: it has the lowest FPR of the {group} by FPR at 95 % TPR and by AUROC."
        f" Its FPR is {rate} averaged over 2 OOD sets, equal to that of lard."
    )
    assert choice.others == " Also not significantly worse: lard."


def timed(results: Results, network: float | None, **costs: float) -> Shown:
    time = TimeRecord(mean={}, max={}, fit={}, backbone_ms=network)
    return shown(results.with_record(structs.replace(results.run, time=time, ms_per_image=costs)))


@pytest.fixture(scope="module")
def alike(results: Results) -> Results:
    """The group has a second detector with a higher FPR, and both pass the same unit tests."""
    frame = results.scores.copy()
    near = np.flatnonzero(frame["dataset"] == "near")
    frame.loc[frame.index[near[:2]], "lard"] = frame["lard"].max() + 1  # two more accepted images
    return Results.from_scores(frame, results.datasets, ["mahalanobis", "lard", "noise"], bootstrap=0)


@pytest.mark.parametrize(
    ("network", "slow", "quick", "chosen"),
    [
        (1.0, 0.3, 0.0, "mahalanobis"),  # tenths of a millisecond do not outweigh the FPR
        (10.0, 3.0, 0.5, "mahalanobis"),  # the time of the network counts
        (0.5, 3.0, 0.5, "lard"),
        (None, 3.0, 0.5, "mahalanobis"),  # no network ran
    ],
)
def test_only_half_the_time_of_a_whole_answer_outweighs_the_lowest_fpr(
    alike: Results, network: float | None, slow: float, quick: float, chosen: str
) -> None:
    choice = choose(timed(alike, network, mahalanobis=slow, lard=quick, noise=0.0))
    values = alike.group_of_best(["near", "far"]).set_index("detector")["value"]
    assert values["mahalanobis"] < values["lard"]
    assert choice is not None
    assert choice.detector == chosen
    low, high = (f"{100 * values[name]:.1f} %" for name in ("mahalanobis", "lard"))
    if chosen == "lard":
        text = "it takes 1 ms per image with the network, at most half the time of mahalanobis (3.5 ms)."
        assert f"{text} Its FPR is {high} averaged over 2 OOD sets. Of the 2 detectors that" in choice.sentence
        assert choice.sentence.endswith(f", mahalanobis has the lowest FPR: {low} averaged over 2 OOD sets.")
        assert choice.short == SHORT
    else:
        assert "it has the lowest FPR of the 2 detectors" in choice.sentence
        assert choice.sentence.endswith(f". Its FPR is {low} averaged over 2 OOD sets.")
    assert choice.others.split()[-1] == f"{({'mahalanobis', 'lard'} - {chosen}).pop()}."


@pytest.mark.parametrize(
    ("failures", "detector", "reason"),
    [
        ((0, 2, 2, 0), "mahalanobis", "of the 2 detectors that fail the fewest unit tests and are not significantly"),
        ((0, 1, 0, 0), "lard", "lard: of the 2 detectors that are not significantly worse than the best by"),
        ((0, 1, 0, 0), "lard", "AUROC (averaged over 2 OOD sets), it alone fails no unit test."),
        ((0, 1, 3, 0), "mahalanobis", "OOD sets), it alone fails the fewest unit tests."),
        ((0, 0, 0, 0), "mahalanobis", "AUROC. Its FPR is {} averaged over 2 OOD sets, equal to that of lard."),
        ((0, 0, 0, 0), "mahalanobis", "that fail no unit test and are not significantly worse than the best by FPR"),
    ],
)
def test_the_choice_is_one_of_those_that_fail_the_fewest_unit_tests(
    results: Results, failures: tuple[int, ...], detector: str, reason: str
) -> None:
    looked_at = shown(results)
    cells = [Cell(sort=float(count)) for count in failures]
    looked_at.__dict__["columns"] = [Column("failed", "unit_tests", "unit_test_failures", "", cells=cells)]
    choice = choose(looked_at)
    [other] = {"mahalanobis", "lard"} - {detector}
    assert choice is not None
    assert choice.detector == detector
    assert choice.short == SHORT
    more = "with more failed unit tests: "
    assert choice.others == f" Also not significantly worse: {more * (len({*failures[1:3]}) > 1)}{other}."
    assert reason.format(f"{100 * results.group_of_best(['near', 'far'])['value'][0]:.1f} %") in choice.sentence


def test_the_tile_shows_the_choice_with_its_own_value(alike: Results) -> None:
    page = render({"run": timed(alike, 0.5, mahalanobis=3.0, lard=0.5).results})
    [(name, detail)] = re.findall(r"<span>Detector to choose</span><b>(\w+)</b><span>([^<]*)</span>", page)
    rates = [alike.value(m, dataset=d, detector="lard") for m, d in (("mean_fpr95", "near"), ("fpr95", "far"))]
    assert name == "lard"
    assert detail.startswith(f"FPR {100 * np.mean(rates):.1f} %, mean of 2 OOD sets; one of 2 detectors that are")


def test_without_ood_images_there_is_no_best_but_a_reason(results: Results) -> None:
    without = results.scores[results.scores["dataset"] != "far"]
    with pytest.warns(UndefinedMetricWarning, match="there is no OOD score"):
        empty = Results.from_scores(without, results.datasets, results.detectors, bootstrap=0)
    assert choose(shown(empty)) is None
    page = render({"run": empty})
    [detail] = re.findall(r"<span>Lowest FPR</span><b>undefined</b><span>([^<]*)</span>", page)
    assert detail in {one.reason for one in empty.run.undefined if one.dataset == "far"}
    assert detail
    assert not re.search(r'class="[^"]*\b(best|in)\b[^"]*">undefined', page)


def test_detectors_of_one_order_are_named_with_the_declared_reason(results: Results) -> None:
    assert coinciding(shown(results)) == ["mahalanobis and lard put all 360 images in the same order."]
    about = {"reads": "features", "is_fitted": True, "cost": "closed form", "tuned": ""}
    overview = {"lard": about | {"same_order_as": {"mahalanobis": "equal channels", "knn": "another reason"}}}
    known = Results.from_scores(
        results.scores, results.datasets, results.detectors, bootstrap=0, run={"overview": overview}
    )
    [line] = coinciding(shown(known))
    assert line == "mahalanobis and lard put all 360 images in the same order. lard and mahalanobis: equal channels."


def test_group_cost_and_p_values_stand_in_the_table(results: Results) -> None:
    page = render({"run": results})
    table = page[page.index('id="r0-headline"') : page.index('id="r0-roc0"')]
    rows = dict(re.findall(r'<tr data-d="(\w+)">(.*?)</tr>', table, flags=re.DOTALL))
    assert next(iter(rows)) in ("mahalanobis", "lard")
    group = results.group_of_best("near").set_index("detector")
    for name, row in rows.items():
        first = re.findall(r'<span class="([\w ]*)">', row)[0]
        assert ("in" in first.split()) == bool(group.loc[name, "in_group"])
        assert f">{results.run.ms_per_image[name]:.2g}</span>" in row
    assert "corrected p = " in rows["noise"]
    assert "ms per image" not in render({"run": make_results(bootstrap=0)}).split('id="r0-measured"')[0]


def test_seconds_of_the_fit_are_a_column_where_they_were_measured() -> None:
    run = {"ms_per_image": {"msp": 0.5, "knn": 0.25}, "time": {"fit": {"knn": 12.0}}}
    results = make_results(bootstrap=0).scores, make_results(bootstrap=0).datasets, ["msp", "knn"]
    page = render({"run": Results.from_scores(*results, bootstrap=0, run=run)}).partition('id="r0-roc0"')[0]
    rows = dict(re.findall(r'<tr data-d="(\w+)">(.*?)</tr>', page, flags=re.DOTALL))
    ends = {name: re.findall(r'<span class="[\w ]*">([^<]*)</span>', row)[-2:] for name, row in rows.items()}
    assert ends == {"msp": ["0.5", "-"], "knn": ["0.25", "12"]}
    assert '<th class="set first" colspan="2">cost<br>' in page


def test_where_all_are_equal_nothing_is_marked() -> None:
    full = make_results(("msp",), bootstrap=0)
    frame = full.scores.assign(copy=full.scores["msp"])
    same = Results.from_scores(frame, full.datasets, ["msp", "copy"], bootstrap=0)
    table = render({"run": same}).partition('id="r0-roc0"')[0]
    assert 'class="best in"' not in table
    assert "no other detector is significantly worse" in answers(shown(same))[0]


def test_one_detector_needs_no_choice_and_pools_are_not_compared() -> None:
    assert answers(shown(make_results(("msp",), bootstrap=0))) == []
    assert answers(shown(pool_results())) == []


def test_the_line_at_the_top_counts_findings_that_concern_the_choice(results: Results) -> None:
    texts = ("'Relative mahalanobis' failed", "'mahalanobis++' failed", "'mahalanobis' has ties", "'noise' has ties")
    found = [Finding("ties", text) for text in texts] + [Finding("chance", "the accuracy is close to chance level")]
    renamed = results.scores.rename(columns={"msp": "Relative mahalanobis"})
    names = ["Relative mahalanobis", "mahalanobis", "noise"]
    run = Results.from_scores(renamed, results.datasets, names, bootstrap=0)
    run = run.with_record(structs.replace(run.run, findings=found))
    assert 'Read <a href="#r0-findings">the 2 findings that concern mahalanobis</a> before' in render({"run": run})
