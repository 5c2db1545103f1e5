"""The table of a paper: its content, and names that no format may misread."""

import io
import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.metrics import UndefinedMetricWarning
from oodlit.results import Results
from oodlit.results.record_parts import ReferenceRecord
from oodlit.results.views.bibtex import citation, to_bibtex
from oodlit.results.views.export import csv_of, latex_of, markdown_of
from oodlit.results.views.paper import PaperCell, PaperColumn, PaperTable, paper_table
from oodlit.results.views.risk_table import risk_table
from tests.report.problems import make_results
from tests.results.latex_reader import read_table

RUN = {
    "detector_settings": {
        "knn": {"class_path": "oodlit.detectors.KNN", "init_args": {"k": None, "bank_size": 50}},
        "mahalanobis_plus_plus": {"class_path": "oodlit.detectors.MahalanobisPlusPlus"},
    },
    "fit_notes": {
        "knn": ["k=7, chosen for a bank of 50 training images", "something else"],
        "msp": ["part KNN(k=None, bank_size=9): k=3, chosen for a bank of 9 training images", "dim=24, chosen for 48"],
    },
}
NAMES = ("msp", "knn", "mahalanobis_plus_plus")


@pytest.fixture(scope="module")
def results() -> Results:
    return make_results(NAMES, per_class=60, run=RUN)


def column(table: PaperTable, dataset: str, metric: str) -> PaperColumn:
    return next(one for one in table.columns if (one.dataset, one.metric) == (dataset, metric))


def test_columns_are_in_the_usual_order_with_an_average_over_ood_sets(results: Results) -> None:
    table = paper_table(results)
    assert [(one.dataset, one.metric, one.better) for one in table.columns] == [
        ("near", "FPR95", "lower"),
        ("near", "AUROC", "higher"),
        ("far", "FPR95", "lower"),
        ("far", "AUROC", "higher"),
        ("average", "FPR95", "lower"),
        ("average", "AUROC", "higher"),
        ("tests", "failed tests", "lower"),
        ("val", "ID-AUROC", "higher"),
    ]
    assert table.names == ("msp", "KNN", "Mahalanobis++")
    for index, name in enumerate(NAMES):
        near, far = (results.value(m, dataset=d, detector=name) for d, m in (("near", "mean_auroc"), ("far", "auroc")))
        assert column(table, "near", "AUROC").cells[index].text == f"{100 * near:.1f}"
        assert column(table, "average", "AUROC").cells[index].text == f"{50 * (near + far):.1f}"


def test_bold_is_the_group_of_the_best(results: Results) -> None:
    table = paper_table(results)
    for dataset, sets in (("near", ["near"]), ("average", ["near", "far"])):
        group = results.group_of_best(sets, "auroc").set_index("detector")["in_group"]
        assert 1 <= group.sum() < len(NAMES)
        cells = column(table, dataset, "AUROC").cells
        assert [cell.is_best for cell in cells] == [bool(group[name]) for name in NAMES]
    failures = [cell.text for cell in column(table, "tests", "failed tests").cells]
    assert [cell.is_best for cell in column(table, "tests", "failed tests").cells] == [
        t == min(failures) for t in failures
    ]


def test_without_a_distinguishable_detector_nothing_is_bold(results: Results) -> None:
    frame = results.scores.assign(copy=results.scores["msp"] * 2)
    same = Results.from_scores(frame, results.datasets, ["msp", "copy"], bootstrap=0)
    table = paper_table(same)
    assert not any(cell.is_best for cell in column(table, "near", "AUROC").cells)
    assert any("values and no bold, no detector is" in note for note in table.notes)
    alone = paper_table(same, detectors=["msp"])
    assert not any(cell.is_best for cell in column(alone, "near", "AUROC").cells)
    assert not any("no bold" in note for note in alone.notes)  # nothing was compared


def test_the_footnote_states_counts_rule_settings_and_intervals(results: Results) -> None:
    notes = paper_table(results, intervals=True).notes
    assert notes[0].startswith("Thresholds accept 95 % of val (n = 100; threshold rule: 'attained'); near n = 180")
    assert "Settings: msp KNN k=3, dim=24; KNN bank_size=50, k=7." in notes
    risks = risk_table(results, prior=0.1, detectors=["mahalanobis_plus_plus", "knn"]).notes
    assert "Settings: KNN bank_size=50, k=7." in risks
    assert any(note.startswith("Brackets show the 95 % confidence interval") for note in notes)
    row = results.row("auroc", dataset="far", detector="knn")
    interval = column(paper_table(results, intervals=True), "far", "AUROC").cells[1].interval
    assert interval == f"{100 * row['ci_low']:.1f}, {100 * row['ci_high']:.1f}"
    assert not any(cell.interval for cell in column(paper_table(results, intervals=True), "average", "AUROC").cells)


def test_the_footnote_says_what_is_in_percent_and_what_the_metrics_mean(results: Results) -> None:
    text = " ".join(paper_table(results).notes)
    assert "Values are in percent, except failed tests." in text
    assert "failed tests: Number of unit tests with more than 10 % of their images accepted" in text
    assert "ID-AUROC: Probability that a correctly classified ID image" in text
    assert "DER95" not in text  # there is no such column
    assert "Values are in percent." in " ".join(paper_table(results, ["auroc"]).notes)
    changed = results.table.replace({"metric": {"accepted95": "der95"}})
    der = Results(results.scores, changed, results.run, None)
    for written in (der.to_latex(), der.to_markdown()):
        assert "DER95: Fraction of wrong decisions" in written


def test_undefined_values_are_dashes_with_a_reason_and_never_best(results: Results) -> None:
    frame = results.scores
    with pytest.warns(UndefinedMetricWarning):
        some = Results.from_scores(frame[frame["dataset"] != "far"], results.datasets, NAMES, bootstrap=0)
    table = paper_table(some)
    for dataset in ("far", "average"):
        assert column(table, dataset, "FPR95").cells == (PaperCell("-"),) * 3
    assert any(
        re.match(r"Undefined, shown as a dash: FPR95 on far for all detectors \(\w.*\)\.$", note)
        for note in table.notes
    )
    assert any(cell.is_best for cell in column(table, "near", "AUROC").cells)


def test_one_undefined_detector_is_named(results: Results) -> None:
    reason = {"detector": "knn", "dataset": "far", "ood_class": "", "metric": "auroc", "reason": "no scores"}
    changed = results.table.copy()
    changed.loc[(changed[["detector", "dataset", "metric"]] == ["knn", "far", "auroc"]).all(axis=1), "value"] = math.nan
    run = results.run.with_entries({"undefined": [reason]})
    table = paper_table(Results(results.scores, changed, run, None))
    assert column(table, "far", "AUROC").cells[1] == column(table, "average", "AUROC").cells[1] == PaperCell("-")
    assert "Undefined, shown as a dash: AUROC on far for KNN (no scores)." in table.notes


def test_rows_can_be_chosen(results: Results) -> None:
    table = paper_table(results, ["auroc"], detectors=["knn", "msp"])
    assert table.names == ("KNN", "msp")
    assert [(one.dataset, one.metric) for one in table.columns] == [("far", "AUROC")]
    with pytest.raises(UnknownNameError, match="unknown detector 'kn' in these results; did you mean 'knn'"):
        paper_table(results, detectors=["kn"])
    with pytest.raises(InvalidArgumentError, match=r"write \['knn'\]"):
        results.to_latex(detectors="knn")


def test_csv_reads_back(results: Results) -> None:
    table = paper_table(results, intervals=True)
    read = pd.read_csv(io.StringIO(csv_of(table)))
    assert read["detector"].tolist() == list(table.names)
    assert read["near: FPR95"].tolist() == [float(cell.text) for cell in column(table, "near", "FPR95").cells]
    assert (read["near: FPR95 low"] <= read["near: FPR95 high"]).all()
    assert read["average: AUROC best"].tolist() == [int(c.is_best) for c in column(table, "average", "AUROC").cells]


def test_latex_and_markdown_hold_the_same_table(results: Results) -> None:
    table = paper_table(results, intervals=True)
    rows, notes = read_table(results.to_latex(intervals=True))
    lines = results.to_markdown(intervals=True).split("\n\n")
    assert notes == list(table.notes) == [*(line.strip() for line in lines[1:])]
    pipes = [line.strip("| ").split(" | ") for line in lines[0].splitlines()]
    assert rows[2:] == pipes[2:]
    assert [f"{a}: {b}" for a, b in zip(rows[0], rows[1], strict=True)][1:] == pipes[0][1:]


_ANY = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], include_characters=" "), min_size=1)
_ODD = st.text("\\{}[]$&%#_^~<>|*`'\"- aB,", min_size=1)
NAMED = st.one_of(_ANY, _ODD).map(lambda name: " ".join(name.split())).filter(bool)


@given(st.lists(NAMED, min_size=1, max_size=3), NAMED, NAMED)
def test_names_stay_as_they_are(names: list[str], dataset: str, note: str) -> None:
    cells = tuple(PaperCell(f"{index}.0", "1.0, 2.0", index == 0) for index in range(len(names)))
    table = PaperTable(tuple(names), (PaperColumn(dataset, "FPR95", "lower", cells),), (note,))
    rows, notes = read_table(latex_of(table))
    assert [row[0] for row in rows[2:]] == names
    assert (rows[0][1], notes) == (dataset, [note])
    assert rows[2][1] == "**0.0** [1.0, 2.0]"
    header, _, *body = markdown_of(table).splitlines()[: 2 + len(names)]
    split = [[_unescaped(cell) for cell in re.findall(r"(?:\\.|[^\\|])+", line)] for line in (header, *body)]
    assert [row[0] for row in split[1:]] == names
    assert split[0][1] == f"{dataset}: FPR95 ↓"


def _unescaped(cell: str) -> str:
    return re.sub(r"\\(.)", r"\1", cell.strip()).replace("&amp;", "&")


def test_bibtex_has_one_entry_per_paper() -> None:
    one = ReferenceRecord("In & Out of 100 % {sets}", "J. Bitterwolf", "ICML", 2023, "https://arxiv.org/abs/2306.00826")
    other = ReferenceRecord("In other words", "L. Liu and Y. Qin", "arXiv", 2023, "https://example.org/a_b")
    text = to_bibtex([("cosine", one), ("mine", other), ("relative_cosine", one)])
    entries = dict(re.findall(r"@\w+\{(\w+),\n(.*?)\n\}", text, re.DOTALL))
    assert list(entries) == ["bitterwolf2023sets", "liu2023other"]
    assert text.startswith("% cosine, relative_cosine\n@inproceedings{")
    assert r"title = {{In \& Out of 100 \% \{sets\}}}" in entries["bitterwolf2023sets"]
    assert "author = {J. Bitterwolf and others}" in entries["bitterwolf2023sets"]
    assert "eprint = {2306.00826}" in entries["bitterwolf2023sets"]
    assert "@misc{liu2023other" in text
    assert "author = {L. Liu and Y. Qin}" in entries["liu2023other"]
    assert "booktitle" not in entries["liu2023other"]


def test_a_citation_without_the_usual_form_is_left_out() -> None:
    assert citation("see source", "") is None
    assert np.isclose(citation("A, B: Title: more, ICLR 2022", "u").year, 2022)
