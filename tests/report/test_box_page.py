"""The page of results of boxes: the frame of every page, sections of boxes, several runs."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from oodlit.cli.main import main
from oodlit.cli.running.outcome import print_outcome
from oodlit.errors import InvalidArgumentError
from oodlit.objects import ObjectResults
from oodlit.objects.results.summary import headline_metrics
from oodlit.report import load_results, render, write_report
from oodlit.report.section import Section, ShownBoxes
from oodlit.report.sections.boxes import SECTIONS
from oodlit.results import Results
from tests.objects.support import Plain
from tests.objects.test_results import example, made
from tests.report.problems import make_results


def test_sections_have_distinct_anchors_that_the_contents_link_to() -> None:
    found = [section for sections in SECTIONS for section in sections(ShownBoxes(example()))]
    assert [section.key for section in found] == ["split0", "tau0", "measured", "words"]
    assert all(isinstance(section, Section) and section.title and section.entry for section in found)
    page = render({"run": example()})
    for section in found:
        assert page.count(f'href="#r0-{section.key}"') == page.count(f'id="r0-{section.key}"') == 1
    assert 'id="filter"' in page
    assert page.count("<script>") == 1


def test_the_table_can_be_sorted_and_filtered_and_marks_the_best() -> None:
    found = example(bootstrap=20)
    page = render({"run": found})
    table = page[page.index('<table class="detectors sortable') : page.index("</table>")]
    assert 'data-better="higher" aria-sort="descending">ap_u</th>' in table
    assert [table.index(f'<tr data-d="{name}">') > 0 for name in found.detectors] == [True, True]
    row = found.row("auroc", dataset="near", detector="g")
    best = max("gh", key=lambda name: found.value("auroc", dataset="near", detector=name))
    text = f"{100 * found.value('auroc', dataset='near', detector=best):.1f}"
    assert f'<span class="best ">{text}</span>' in table
    assert f"{100 * row['ci_low']:.1f} to {100 * row['ci_high']:.1f}" in table
    heads = re.findall(r'title="[^"]+" data-better[^>]*>([^<]+)</th>', table)
    assert heads == ["ap_u", "r_u", "p_u", "nose", "tau", "auroc", "fpr95"]
    assert "<details><summary>More metrics</summary>" in page


def test_the_page_begins_with_the_detector_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oodlit.objects.results.results.has_id_quality", lambda: False)
    found = example(bootstrap=20)
    page = render({"run": found})
    values = {name: found.value("ap_u", dataset="near", detector=name) for name in found.detectors}
    best = max(values, key=lambda name: values[name])
    assert f"Choose {best}: of 2 detectors, it has the highest ap_u on near ({100 * values[best]:.1f} %)." in page
    tile = f"average precision of unknown objects (ap_u): {100 * values[best]:.1f} % on near"
    assert f"<span>Detector to choose</span><b>{best}</b><span>{tile}</span>" in page
    assert "mean average precision was not computed; it requires: pip install" in page
    assert not re.search(r'class="alert[^>]*>[^<]*pip install', page)  # a missing extra is a remark, not a warning
    low, high = ({n: found.row("ap_u", dataset="near", detector=n)[end] for n in "gh"} for end in ("ci_low", "ci_high"))
    overlap = low["g"] <= high["h"] and low["h"] <= high["g"]
    assert ("overlaps with that of" in page) == overlap


def printed(found: ObjectResults) -> str:
    console = Console(file=io.StringIO(), width=400)
    print_outcome(found, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_terminal_names_the_choice_units_and_reasons() -> None:
    found = example(bootstrap=20)
    text = printed(found)
    best = max(found.detectors, key=lambda name: found.value("ap_u", dataset="near", detector=name))
    assert f"Choose {best}: of 2 detectors, it has the highest ap_u on near" in text
    [heading] = [line for line in text.splitlines() if line.strip().startswith("detector")]
    assert re.findall(r"(\w+)( %)?", heading)[1:4] == [("auroc", " %"), ("fpr95", " %"), ("auroc_hit", " %")]
    assert re.search(r"\baose\b(?! %)", heading)
    empty = made(Plain(), Plain(n_images=2))
    text = printed(empty)
    shown = headline_metrics(empty.settings)
    undefined = [one for one in empty.run.undefined if one.metric in shown and one.detector in empty.detectors]
    reasons = {one.reason for one in undefined if one.dataset in empty.splits}
    assert reasons
    assert [f"undefined: {reason}" in " ".join(text.split()) for reason in reasons] == [True] * len(reasons)
    rows = [line for line in text.splitlines() if line.split()[:1] in (["g"], ["h"])]
    assert all(re.search(r"- \[\d\]", row) for row in rows)
    assert not any(re.search(r"-(?! \[)|nan", row) for row in rows)


def test_columns_of_detectors_that_nothing_fills_are_not_shown() -> None:
    page = render({"run": example()})
    table = page[page.index('<table class="catalogue">') :]
    assert re.findall("<th[^>]*>([^<]+)</th>", table[: table.index("</thead>")]) == ["name", "threshold"]


def test_a_run_without_boxes_has_a_page_with_reasons() -> None:
    page = render({"run": made(Plain(), Plain(n_images=2))})
    assert "tau: there is no ID box" in page
    assert "no object is annotated" in page


def test_several_runs_are_compared_where_they_are_alike(tmp_path: Path) -> None:
    one, two, other = example(), example(t_star=0.5), example(iou=0.75)
    runs = {"one": one, "two": two}
    page = write_report(runs, tmp_path / "both.html").read_text()
    assert "Runs and detectors" in page
    assert "Not compared" not in page
    assert re.search(r"(one|two) has the highest ap_u on near with \d of \d detectors \(no significance test\)", page)
    pairs = {f"{n} with {d}": r.value("ap_u", dataset="near", detector=d) for n, r in runs.items() for d in "gh"}
    best = max(pairs, key=lambda name: pairs[name])
    first = page[page.index('<p class="answer">') :]
    assert first.startswith(f'<p class="answer">Choose {best}: of 4 pairs, it has the highest ap_u on near (')
    assert f"<span>Network and detector to choose</span><b>{best}</b>" in page
    value = 100 * one.value("ap_u", dataset="near", detector="g")
    assert f">{value:.1f}</td>" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both-one.html", "both-two.html", "both.html"]
    alike = render({"one": one, "other": other})
    assert "the setting iou is 0.5 in one and 0.75 in other" in alike
    assert "Runs and detectors" not in alike
    assert "No network and detector can be chosen" in alike
    moved = made(Plain(), Plain(n_images=3))
    assert "the images or objects of val differ between one and moved" in render({"one": one, "moved": moved})


def test_images_and_boxes_do_not_share_a_page() -> None:
    with pytest.raises(InvalidArgumentError, match=r"results of boxes \('boxes'\) and results of images \('images'\)"):
        render({"images": make_results(bootstrap=0), "boxes": example()})


def test_saved_results_are_loaded_by_their_kind(tmp_path: Path) -> None:
    example().save(tmp_path / "boxes")
    make_results(bootstrap=0).save(tmp_path / "images")
    assert isinstance(load_results(tmp_path / "boxes"), ObjectResults)
    assert isinstance(load_results(tmp_path / "images"), Results)


@pytest.mark.parametrize("command", [["report"], ["objects", "report"]])
def test_both_commands_write_the_page(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        example().save(name)
    assert main([*command, "one"]) == 0
    assert (tmp_path / "one" / "report.html").is_file()
    assert main([*command, "one", "two", "--out=both.html"]) == 0
    assert "2 runs compared" in (tmp_path / "both.html").read_text()
    assert "both.html" in capsys.readouterr().out


def test_names_are_escaped(tmp_path: Path) -> None:
    found = example()
    named = ObjectResults(
        found.boxes, found.images, found.objects, found.table, found.run.with_entries({"title": "<i>"})
    )
    page = write_report(named, tmp_path / "report.html").read_text()
    assert "<h1>&lt;i&gt;</h1>" in page
