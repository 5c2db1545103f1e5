"""The page of several runs: a comparison first, every run on a page of its own, and no name that is not escaped."""

import html
import re
import warnings
from html.parser import HTMLParser
from pathlib import Path

import pytest

from oodlit.cli.report import report
from oodlit.errors import DataError, UsageError
from oodlit.report import render, write_report
from oodlit.report.page import page_names
from oodlit.report.several import Several, titles
from oodlit.results import Results, compare_runs, conclusions, mean_ranks, values_of_runs
from oodlit.results.plots.select import model_name
from tests.report.problems import make_results
from tests.report.several_support import make_runs
from tests.report.test_page import HOSTILE, Parsed

MEGABYTE = 1_000_000


class Grids(HTMLParser):
    """Rows of every table of the class "grid", as texts, and the options of every menu."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.grids: list[list[list[str]]] = []
        self.options: list[str] = []
        self._inside = False
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._inside = "grid" in (dict(attrs).get("class") or "").split()
            self.grids += [[]] if self._inside else []
        elif tag == "tr" and self._inside:
            self.grids[-1].append([])
        elif tag in ("td", "th", "option"):
            self._cell = []

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._inside and self._cell is not None:
            self.grids[-1][-1].append("".join(self._cell).strip())
        if tag == "option" and self._cell is not None:
            self.options.append("".join(self._cell))
        if tag in ("td", "th", "option"):
            self._cell = None


@pytest.fixture(scope="module")
def runs() -> dict[str, Results]:
    return make_runs(3, 4, 16)


@pytest.fixture(scope="module")
def page(runs: dict[str, Results]) -> str:
    return render(runs, pages={name: f"report-{name}.html" for name in runs})


def test_what_is_compared_is_called_a_run_and_the_classifier_a_network() -> None:
    named = make_runs(3, 2, 3, names=("small", "medium", "large"))
    page = render(named, pages=page_names("report", named))
    text = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "Runs and detectors" in text
    assert "Do better networks have better detectors?" in text
    assert re.findall(r"\b(?:models?|classifiers?)\b", text, re.IGNORECASE) == []


def test_the_first_table_holds_the_mean_fpr_of_every_model_and_detector(runs: dict[str, Results], page: str) -> None:
    values = values_of_runs(runs, "near", "mean_fpr95")
    of_models, of_detectors = mean_ranks(values, "mean_fpr95")
    head, *rows = Grids(page).grids[0]
    detectors = head[3:]
    assert set(detectors) == set(values.columns)
    assert detectors == list(of_detectors.sort_values(kind="stable").index)
    assert [row[0] for row in rows[:-2]] == list(of_models.sort_values(kind="stable").index)
    for row in rows[:-2]:
        accuracy = runs[row[0]].value("accuracy", dataset="val")
        assert row[1:3] == [f"{100 * accuracy:.1f}", f"{of_models[row[0]]:.1f}"]
        assert row[3:] == [f"{100 * values.loc[row[0], name]:.1f}" for name in detectors]
    assert rows[-2][3:] == [f"{100 * values[name].mean():.1f}" for name in detectors]
    assert rows[-1][3:] == [f"{of_detectors[name]:.1f}" for name in detectors]


def test_the_first_table_needs_no_script_and_the_others_are_chosen(page: str) -> None:
    tables = page.partition('id="all-runs-values">')[2].partition("</section>")[0]
    shown = re.findall(r"<div (hidden|)>\s*<p><b>([^<]+)</b>", tables)
    assert [label for label, _ in shown] == ["", *["hidden"] * (len(shown) - 1)]
    assert [label for _, label in shown] == [
        "near: mean FPR@95 %",
        "far: FPR@95 %",
        "near: mean AUROC %",
        "far: AUROC %",
        "tests: failed unit tests",
        "val: ID-AUROC %",
    ]
    options = Grids(page).options
    assert options[4 : 4 + len(shown)] == [label for _, label in shown]  # after the detectors of the first section


def test_differences_are_those_of_the_paired_comparison(runs: dict[str, Results], page: str) -> None:
    table = compare_runs(runs)
    assert (table["better"] != "").any()
    grids = Grids(page).grids[6:]
    assert len(grids) == 2
    for dataset, (head, *rows) in zip(("near", "far"), grids, strict=True):
        for row in rows:
            own = table[(table["dataset"] == dataset) & (table["run"] == row[0])].set_index("detector")
            assert row[1] == str((own["better"] == row[0]).sum())
            assert row[2] == str((own["better"] == "model_00").sum())
            for name, text in zip(head[3:], row[3:], strict=True):
                mark = {row[0]: "✓ ", "model_00": "✗ ", "": ""}[own.loc[name, "better"]]
                assert text == f"{mark}{100 * own.loc[name, 'difference']:+.1f}"


def test_the_conclusions_stand_first(runs: dict[str, Results], page: str) -> None:
    lines = conclusions(compare_runs(runs))
    places = [page.index(f'<p class="answer">{line}</p>') for line in lines]
    assert len(lines) == 4
    assert places == sorted(places)
    assert places[-1] < page.index('id="all-sets"') < page.index('id="all-runs"')
    many = render(make_runs(6, 1, 3), pages=None)
    assert "<summary>4 more sentences</summary>" in many


def test_runs_stand_side_by_side_with_intervals(runs: dict[str, Results], page: str) -> None:
    section = page.partition('id="all-sets"')[2].partition("</section>")[0]
    values = values_of_runs(runs, "near", "mean_fpr95")
    of_models, of_detectors = mean_ranks(values, "mean_fpr95")
    assert Grids(section).options == list(of_detectors.sort_values(kind="stable").index)
    best = Grids(section).options[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section.partition("<tbody>")[2].partition("</tbody>")[0], flags=re.DOTALL)
    for name, row in zip(of_models.sort_values(kind="stable").index, rows, strict=True):
        assert f">{name.replace('_', '_<wbr>')}</a>" in row
        own = runs[name].row("fpr95", dataset="far", detector=best)
        interval = f"[{100 * own['ci_low']:.1f}, {100 * own['ci_high']:.1f}]"
        assert re.search(rf">{100 * own['value']:.1f}</span> <small>{re.escape(interval)}</small>", row)
        numbers = re.findall(r'<span(?: class="best")?>([^<]*)</span>', row)
        assert numbers[0] == f"{100 * values.loc[name, best]:.1f}"
        assert len(numbers) == 6


def test_a_page_pairs_images_where_the_classes_cannot_decide(page: str) -> None:
    few = render(made := make_runs(2, 1, 3))
    n = next(iter(made.values())).run.counts["near"]
    assert f"</b>, paired over {n} images</p>" in few
    for text in (few, page):
        assert "corrected p = nan" not in text
        assert "corrected p = " in text
    assert "a significant difference at level" not in page


def test_models_of_many_detectors_can_differ_by_more_than_chance() -> None:
    """So many comparisons are corrected that more sign patterns than usual are needed."""
    table = compare_runs(make_runs(8, 20, 40, n_id=200, per_class=8))
    assert len(table) == 7 * 20 * 2
    assert table["p_corrected"].min() <= 0.02


def test_every_model_is_a_point_with_its_accuracy(runs: dict[str, Results], page: str) -> None:
    chart = page.partition('id="all-accuracy-charts"')[2].partition("</svg>")[0]
    best = values_of_runs(runs, "near", "mean_fpr95").min(axis="columns")
    for name, results in runs.items():
        accuracy = results.value("accuracy", dataset="val")
        text = f"{name}: accuracy {100 * accuracy:.1f} %, near: mean FPR@95 % {100 * best[name]:.1f} %"
        assert f"<title>{text}</title>" in chart
    assert chart.count("<circle") == 3
    places = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', chart)
    assert all(56 <= float(x) <= 870 and 24 <= float(y) <= 340 for x, y in places)


def test_what_cannot_be_compared_is_left_out_and_said_once(runs: dict[str, Results]) -> None:
    other = runs["model_01"].recompute(tpr=0.9)
    text = render({"model_00": runs["model_00"], "model_01": other}, pages={"model_00": "a", "model_01": "b"})
    reason = "thresholds accept 95 % of ID images in model_00 and 90 % in model_01"
    assert f"Not compared: near: mean FPR@95 %, far: FPR@95 %, tests: failed unit tests. Reason: {reason}." in text
    assert text.count(reason) == 1
    assert "<h2>Differences" not in text
    assert Grids(text).options[4:] == ["near: mean AUROC %", "far: AUROC %", "val: ID-AUROC %"]


def test_missing_detectors_and_other_settings_are_said(runs: dict[str, Results]) -> None:
    one, other = runs["model_00"], runs["model_01"]
    assert Several({"A": one, "B": other}).remarks == []
    names = one.detectors[:-1]
    fewer = Results.from_scores(other.scores.drop(columns=one.detectors[-1]), other.datasets, names, bootstrap=0)
    settings = {"detector_00": {"class_path": "KNN", "init_args": {"k": 5}}}
    fewer = fewer.with_record(fewer.run.with_entries({"detector_settings": settings}))
    several = Several({"A": one, "B": fewer})
    assert several.remarks == [
        "detector_00 has different settings in different runs",
        "detector_03 is in 1 of 2 runs, so it does not count in mean ranks",
    ]
    head, *rows = Grids(render(dict(several.runs))).grids[0]
    assert head[-1] == "detector_03"
    assert {row[0]: row[-1] for row in rows}["B"] == "-"
    assert rows[-1][-1] == "-"


@pytest.mark.parametrize("detectors", [(), ("msp",)])
def test_runs_without_labels_or_without_detectors_are_compared_as_far_as_they_go(detectors: tuple[str, ...]) -> None:
    one = make_results(detectors, bootstrap=0)
    bare = one.scores.assign(label=-1, prediction=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are undefined without predictions
        other = Results.from_scores(bare, one.datasets, detectors, bootstrap=0)
    text = render({"A": one, "B": other})
    assert "2 runs compared" in text
    assert ("Runs and detectors" in text) == bool(detectors)
    assert "Do better networks" not in text


def test_hostile_names_are_escaped() -> None:
    hostile = make_runs(len(HOSTILE), 2, 3, names=HOSTILE)
    text = render(hostile, pages=page_names("report", hostile))
    parsed = Parsed(text)
    assert parsed.tags["script"] == 1
    assert "img" not in parsed.tags
    assert not any(name.startswith("on") for _, name, _ in parsed.attributes)
    shown = [row[0] for row in Grids(text).grids[0][1:-2]]
    assert sorted(shown) == sorted(HOSTILE)
    links = [value for _, name, value in parsed.attributes if name == "href"]
    assert all(re.fullmatch(r"#[a-z-]+|report-[\w.%-]+\.html", link) for link in links)


def test_each_run_has_a_page_of_its_own_beside_the_comparison(runs: dict[str, Results], tmp_path: Path) -> None:
    folders = []
    for name in ("one/run", "two/run"):
        folder = tmp_path / name
        runs["model_00" if name == "one/run" else "model_01"].save(folder)
        folders.append(folder)
    report(folders, out=tmp_path / "pages" / "all.html")
    written = sorted(path.name for path in (tmp_path / "pages").iterdir())
    assert written == ["all-one_run.html", "all-two_run.html", "all.html"]
    links = [
        value for _, name, value in Parsed((tmp_path / "pages" / "all.html").read_text()).attributes if name == "href"
    ]
    assert {link for link in links if not link.startswith("#")} == set(written) - {"all.html"}
    assert (tmp_path / "pages" / "all-two_run.html").read_text().count("<h1>model_01</h1>") == 1
    with pytest.raises(UsageError, match="is repeated"):
        report([folders[0], folders[0]])


def test_a_comparison_without_a_name_leaves_the_folders_of_the_runs_alone(
    runs: dict[str, Results], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [Path("one"), Path("two")]
    for folder, results in zip(folders, runs.values(), strict=False):
        results.save(folder)
        report([folder])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert tmp_path / "one" / "report.html" in before
    capsys.readouterr()
    report(folders)
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == f"Report: {Path('comparison', 'report.html')}"
    names = dict(zip(titles(runs, model_name).values(), runs.values(), strict=False))
    assert lines[:-1] == conclusions(compare_runs(dict(list(names.items())[:2])))
    assert lines[-1].startswith("Choose ")
    page = Path("comparison", "report.html").read_text()
    assert all(html.escape(line) in page for line in lines)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    new = sorted(str(path.relative_to(tmp_path)) for path in after.keys() - before.keys())
    assert new == [f"comparison/report{name}.html" for name in ("-one", "-two", "")]
    assert before.items() <= after.items()
    runs["model_00"].save(tmp_path / "comparison")
    with pytest.raises(UsageError, match="comparison contains the results of a run; choose another file with --out"):
        report(folders)


def test_where_one_page_cannot_be_made_none_is_written(runs: dict[str, Results], tmp_path: Path) -> None:
    last = list(runs)[-1]
    (tmp_path / "thumbnails").mkdir()
    (tmp_path / "thumbnails" / "index.json").write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        write_report(runs, tmp_path / "pages" / "report.html", folders={last: tmp_path})
    assert not (tmp_path / "pages").exists()
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError, match=r"expected a file name, got the folder .*taken"):
        write_report(runs, tmp_path / "taken")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken", "thumbnails"]


def test_no_run_is_lost_to_a_name_that_looks_like_that_of_another() -> None:
    one, two, three = make_runs(3, 1, 3, names=("net", "net ", "net (a)")).values()
    two = Results(two.scores, two.table, two.run.with_entries({"backbone": {"name": "net"}}))
    found = titles({"a": one, "b": two, "c": three}, model_name)
    assert list(found) == ["a", "b", "c"]
    assert list(found.values()) == ["net (a)", "net (b)", "net (a)_2"]
    assert "3 runs compared" in render({"a": one, "b": two, "c": three})


def test_names_of_pages_are_distinct_on_every_file_system() -> None:
    names = page_names("report", ["A", "a", "a/b", "a b", "x" * 300, "x" * 299])
    assert len({page.lower() for page in names.values()}) == 6
    assert all(len(page) < 130 for page in names.values())


def test_one_run_is_a_page_without_comparison(runs: dict[str, Results], tmp_path: Path) -> None:
    path = write_report({"alone": runs["model_00"]}, tmp_path / "report.html")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert "runs compared" not in path.read_text()


@pytest.mark.slow
def test_26_models_with_20_detectors_and_64_classes_are_a_small_page() -> None:
    runs = make_runs(26, 20, 64)
    text = render(runs, pages=page_names("report", runs))
    assert len(text.encode()) < 1.5 * MEGABYTE
    name = next(iter(runs))
    assert len(render({name: runs[name]}).encode()) < 3 * MEGABYTE
