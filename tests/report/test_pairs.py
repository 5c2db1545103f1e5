"""The pair of network and detector to choose, and findings of single runs, on the page of several runs."""

import re

import numpy as np
import pandas as pd
import pytest
from msgspec import structs

from oodlit.report import render
from oodlit.report.pairs import pair_view
from oodlit.report.several import Several
from oodlit.results import Finding, Results
from oodlit.results.record_parts import TimeRecord
from tests.report.several_support import make_runs


@pytest.fixture(scope="module")
def runs() -> dict[str, Results]:
    return make_runs(3, 3, 4, per_class=20)


def together(runs: dict[str, Results]) -> Results:
    """One run that has every pair as a detector, made from the scores."""
    first = next(iter(runs.values()))
    columns = {f"{run} with {name}": own.scores[name] for run, own in runs.items() for name in own.detectors}
    frame = pd.concat([first.scores.drop(columns=list(first.detectors)), pd.DataFrame(columns)], axis=1)
    return Results.from_scores(frame, first.datasets, list(columns), bootstrap=0)


def with_findings(results: Results, *findings: Finding) -> Results:
    return results.with_record(structs.replace(results.run, findings=list(findings)))


def timed(results: Results, network: float, **costs: float) -> Results:
    time = TimeRecord(mean={}, max={}, fit={}, backbone_ms=network)
    return results.with_record(structs.replace(results.run, time=time, ms_per_image=costs))


def test_the_pair_is_the_best_of_all_and_the_group_is_that_of_one_run_with_all_pairs(runs: dict[str, Results]) -> None:
    reference = together(runs)
    by_fpr, by_auroc = (reference.group_of_best(["near", "far"], metric) for metric in ("fpr95", "auroc"))
    failures = {n: reference.value("unit_test_failures", dataset="tests", detector=n) for n in reference.detectors}
    both = set(by_fpr.loc[by_fpr["in_group"], "detector"]) & set(by_auroc.loc[by_auroc["in_group"], "detector"])
    members = [name for name in by_fpr["detector"] if name in both]
    best = min(members, key=lambda name: failures[name])  # the first of them, which has the lowest FPR
    view = pair_view(Several(runs))
    tile, near, far, accuracy = view["facts"]
    rates = [reference.value(m, dataset=d, detector=best) for m, d in (("mean_fpr95", "near"), ("fpr95", "far"))]
    assert (tile.label, tile.value) == ("Network and detector to choose", best)
    (mean,) = by_fpr.loc[by_fpr["detector"] == best, "value"]
    assert mean == pytest.approx(np.mean(rates), abs=1e-12)
    assert tile.detail.startswith(f"FPR {100 * mean:.1f} %, mean of 2 OOD sets")
    row = reference.row("fpr95", dataset="far", detector=best)
    assert near.value == f"{100 * rates[0]:.1f} %"
    assert (far.value, far.detail) == (
        f"{100 * rates[1]:.1f} %",
        f"[{100 * row['ci_low']:.1f}, {100 * row['ci_high']:.1f}]",
    )
    assert accuracy.value == f"{100 * runs[best.split()[0]].value('accuracy', dataset='val'):.1f} %"
    first, fpr, auroc, test = view["answers"]
    assert first.startswith(f"Choose {best}: ")
    assert "by FPR at 95 % TPR and by AUROC (averaged over 2 OOD sets)" in first
    for line, table in ((fpr, by_fpr), (auroc, by_auroc)):
        name, value = table["detector"][0], table["value"][0]
        assert f"the best of 9 pairs is {name} ({100 * value:.1f} %)" in line
        others = [re.fullmatch(r"(\w+) with (\w+)", n) for n in table.loc[table["in_group"], "detector"][1:]]
        for run in runs:
            own = [found[2] for found in others if found and found[1] == run]
            assert (f"{run} with " in line.partition("significantly worse")[2]) == bool(own)
            assert all(detector in line for detector in own)
    assert "140 OOD and 400 ID images" in test
    assert "Bonferroni's correction for the number of pairs, at 95 % confidence." in test


def test_it_stands_first_on_the_page(runs: dict[str, Results]) -> None:
    page, view = render(runs), pair_view(Several(runs))
    first = page.index(f'<p class="answer">{view["answers"][0]}</p>')
    assert page.index("<span>Network and detector to choose</span>") < first == page.index('<p class="answer">')


@pytest.mark.parametrize("slow", ["model_01", "model_02"])
def test_the_time_of_the_network_counts(runs: dict[str, Results], slow: str) -> None:
    """Two networks with the same scores: the faster one is chosen."""
    costs = {"detector_00": 0.1, "detector_01": 0.1, "detector_02": 0.1}
    same = {name: timed(runs["model_02"], 9.0 if name == slow else 1.0, **costs) for name in ("model_01", "model_02")}
    [chosen] = {*same} - {slow}
    view = pair_view(Several(same))
    assert view["facts"][0].value.startswith(f"{chosen} with ")
    assert re.search(
        f"it has the lowest FPR .*, equal to that of {slow} with detector_02, but it is faster", view["answers"][0]
    )


def test_a_network_that_takes_half_the_time_outweighs_the_lowest_fpr(runs: dict[str, Results]) -> None:
    best = runs["model_02"]
    frame = best.scores.copy()
    near = frame.index[frame["dataset"] == "near"][:2]
    frame.loc[near, list(best.detectors)] = frame[list(best.detectors)].max().to_numpy() + 1  # two more are accepted
    worse = Results.from_scores(frame, best.datasets, best.detectors, bootstrap=0, run={"backbone": {"name": "quick"}})
    costs = dict.fromkeys(best.detectors, 0.1)
    view = pair_view(Several({"slow": timed(best, 9.0, **costs), "quick": timed(worse, 1.0, **costs)}))
    assert view["facts"][0].value == "quick with detector_02"
    reason = "it takes 1.1 ms per image with the network, at most half the time of slow with detector_02 (9.1 ms). Its"
    assert reason in view["answers"][0]
    unknown = pair_view(Several({"slow": best, "quick": timed(worse, 1.0, **costs)}))
    assert unknown["facts"][0].value == "slow with detector_02"
    assert "ms per image" not in unknown["answers"][0]


def test_findings_of_single_runs_are_repeated_with_the_names_of_the_runs(runs: dict[str, Results]) -> None:
    best = pair_view(Several(runs))["facts"][0].value
    title, detector = best.split(" with ")
    [other, *_] = [name for name in runs if name != title]
    shared, good = Finding("duplicates", "the same images twice"), Finding("accuracy", "they agree", is_good=True)
    own, foreign = (
        Finding("reversed", f"detector {detector} is reversed"),
        Finding("reversed", "detector x is reversed"),
    )
    found = {name: with_findings(results, shared, good) for name, results in runs.items()}
    found[title] = with_findings(runs[title], shared, own, foreign)
    found[other] = with_findings(runs[other], shared, Finding("chance", "accuracy at chance"))
    view = pair_view(Several(found))
    assert [finding.text for finding in view["doubts"]] == [
        f"In {', '.join(runs)}: the same images twice",
        f"In {title}: {own.text}",
    ]
    assert view["about"] == "this pair"
    assert [finding.text for finding in view["findings"]] == [
        f"In {', '.join(runs)}: the same images twice",
        f"In {other}: accuracy at chance",
    ]
    assert {finding.text for finding in view["details"]} == {f"In {title}: {own.text}", f"In {title}: {foreign.text}"}
    page = render(found)
    assert page.index('id="all-findings"') < page.index(f"{other}: accuracy at chance") < page.index('id="all-sets"')
    assert '<a href="#all-findings">the 2 findings that concern this pair</a> before you use these numbers' in page
    assert "<summary>2 findings about single detectors</summary>" in page


def test_one_detector_and_sets_that_differ(runs: dict[str, Results]) -> None:
    one = make_runs(2, 1, 4, per_class=20)
    assert "the best of 2 pairs is" in pair_view(Several(one))["answers"][1]
    with_other = {"a": runs["model_00"], "b": runs["model_01"].recompute(tpr=0.9, bootstrap=0)}
    view = pair_view(Several(with_other))
    assert view["facts"] == []
    (answer,) = view["answers"]
    assert answer.startswith("No network and detector can be chosen: the runs have no OOD set whose values are defined")
    less = runs["model_01"].scores
    fewer = Results.from_scores(
        less[less["key"] != "far/000000"], runs["model_01"].datasets, runs["model_01"].detectors
    )
    assert "AUROC (on near)" in pair_view(Several({"a": runs["model_00"], "b": fewer}))["answers"][0]
