"""The HTML page: self-contained, escaped, complete, and made again from the folder alone."""

import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oodlit.detectors import BATS, KNN, overview
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.report import keys_to_show, render, save_thumbnails, write_report
from oodlit.report.thumbnails import load_thumbnails
from oodlit.results import DatasetInfo, Results
from oodlit.roles import Role
from tests.report.problems import TESTS, make_results, read_images

HOSTILE = (
    "<script>alert(1)</script>",
    'a" onload="x',
    "it's & <b>bold</b>",
    "</style><img src=x>",
    "{{ 7*7 }}",
    "ü ☃ 名",
)


class Parsed(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def results() -> Results:
    return make_results(
        run={"backbone": {"name": "tiny"}, "not_applicable": {"ash": "needs <b>non-negative</b> features"}}
    )


def test_page_needs_nothing_else(results: Results) -> None:
    page = Parsed(render({"run": results}))
    assert not {"link", "iframe", "object", "embed", "img"} & set(page.tags)
    sources = [value for _, name, value in page.attributes if name in ("src", "srcset", "data", "action")]
    assert sources == []
    links = {value for _, name, value in page.attributes if name == "href"}
    assert all(link.startswith(("https://", "http://", "#")) for link in links)
    assert "default-src 'none'" in "".join(value for _, _, value in page.attributes)
    assert "url(http" not in render({"run": results})


def test_page_holds_every_number_of_the_headline(results: Results) -> None:
    text = " ".join(Parsed(render({"run": results})).text)
    for detector in results.detectors:
        for dataset, metric in (("near", "mean_fpr95"), ("far", "fpr95")):
            assert f"{100 * results.value(metric, dataset=dataset, detector=detector):.1f} %" in text
        assert f"{results.value('unit_test_failures', dataset='tests', detector=detector):.0f}" in text
    for name in (*results.detectors, "seven", "eight", "nine", *TESTS, "val", "near", "far", "tests", "noisy"):
        assert name in text
    assert "needs <b>non-negative</b> features" in text
    assert "tiny" in text


def test_names_are_text_whatever_they_hold() -> None:
    plain = make_results(("a1", "b2"), tuple(f"c{i}" for i in range(6)), labels=("l0", "l1"))
    hostile = make_results(HOSTILE[:2], HOSTILE, labels=HOSTILE[2:4], run={"backbone": {"name": HOSTILE[0]}})
    expected, found = Parsed(render({"run": plain})), Parsed(render({HOSTILE[3]: hostile}))
    assert found.tags["script"] == expected.tags["script"] == 1
    assert found.tags["b"] == expected.tags["b"]
    assert not found.tags["img"]
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    text = "".join(found.text)
    assert all(name in text for name in HOSTILE)
    assert "49" not in {part.strip() for part in found.text} - {part.strip() for part in expected.text}


LETTERS = st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))  # names are one line each


@cache
def plain_structure() -> Counter[str]:
    return Parsed(render({"run": make_results(("a1", "b2"), ("x", "y", "z"), bootstrap=0)})).tags


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@example(names=["0", "1", "2", "3", "_0"])
@given(names=st.lists(st.text(LETTERS, min_size=1, max_size=12).filter(str.strip), min_size=5, max_size=5, unique=True))
def test_any_names_leave_the_structure_as_it_is(names: list[str]) -> None:
    taken = {"key", "dataset", "group", "label", "prediction", "model", "n"}
    detectors = tuple(f"{name} " if name in taken else name for name in names[:2])
    tags = Parsed(render({"run": make_results(detectors, tuple(names[2:]), bootstrap=0)})).tags
    del tags["wbr"]  # a long name may break after "_"
    assert tags == plain_structure()


def test_twenty_detectors_and_64_classes() -> None:
    detectors, classes = tuple(f"detector_{i}" for i in range(20)), tuple(f"class {i}" for i in range(64))
    text = render({"run": make_results(detectors, classes, per_class=5, bootstrap=0)})
    assert text.count('class="heat"') == 20 * 65
    assert len(text) < 3_000_000


def test_same_results_give_the_same_page(results: Results) -> None:
    assert render({"run": results}) == render({"run": results})


def test_page_again_from_the_folder_alone(results: Results, tmp_path: Path) -> None:
    results.save(tmp_path)
    save_thumbnails(results, tmp_path, read_images)
    first = write_report(results, tmp_path / "report.html").read_bytes()
    assert b"data:image/png;base64," in first
    assert b"data:image/jpeg;base64," in first
    assert write_report(Results.load(tmp_path), tmp_path / "report.html").read_bytes() == first
    assert not list(tmp_path.glob("**/*.tmp"))


def test_without_pictures_the_page_says_so(results: Results) -> None:
    assert "No pictures are stored with these results" in render({"run": results})


def test_each_picture_is_stored_once(results: Results, tmp_path: Path) -> None:
    save_thumbnails(results, tmp_path, read_images)
    text = render({"run": results}, folders={"run": tmp_path})
    assert text.count("base64,") == len(keys_to_show(results))


def test_missing_thumbnail_is_an_error(results: Results, tmp_path: Path) -> None:
    save_thumbnails(results, tmp_path, read_images)
    next((tmp_path / "thumbnails").glob("*.jpg")).unlink()
    with pytest.raises(DataError, match=r"thumbnail .* is missing"):
        load_thumbnails(tmp_path, keys_to_show(results))


@pytest.mark.parametrize("content", [b'{"near/1": ', b"[1]", b"\xff\xfe"])
def test_unreadable_index_of_thumbnails_is_an_error(results: Results, tmp_path: Path, content: bytes) -> None:
    save_thumbnails(results, tmp_path, read_images)
    (tmp_path / "thumbnails" / "index.json").write_bytes(content)
    with pytest.raises(DataError, match=r"index\.json: .*delete .*thumbnails to write the page without"):
        load_thumbnails(tmp_path, ["near/1"])


def test_several_runs_on_one_page(results: Results) -> None:
    page = Parsed(render({"one": results, "two": make_results()}))
    assert page.tags["h1"] == 3  # the comparison, and each of them
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_no_results_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="expected at least one run"):
        render({})


def test_detectors_are_described_by_their_settings() -> None:
    inner = {"class_path": "oodlit.detectors.logits.energy.Energy", "init_args": {"temperature": 2.0}}
    run = {
        "detector_settings": {
            "mine": {
                "class_path": "oodlit.detectors.shaping.react.ReAct",
                "init_args": {"percentile": 90, "then": inner},
            },
            "knn": {"class_path": "somebody.elses.KNN", "init_args": {}},
        }
    }
    page = Parsed(render({"run": make_results(("mine", "knn"), run=run)}))
    text = " ".join(page.text)
    assert "percentile=90, then=Energy(temperature=2.0)" in text


def test_entries_of_the_record_are_shown_once() -> None:
    """Under "Run" stands what no other part of the page shows, and nothing is left out."""
    marks = {
        "caveat": "MARK caveat",
        "warnings": ["MARK warnings"],
        "fit_notes": {"msp": ["MARK fit_notes"]},
        "not_applicable": {"vim": "MARK not_applicable"},
        "skipped": [{"key": "near/7", "reason": "MARK skipped"}],
        "detector_settings": {"msp": {"class_path": "their.MSP", "init_args": {"path": "MARK detector_settings"}}},
        "references": {"knn": {"title": "MARK references", "authors": "", "venue": "", "year": 1, "url": ""}},
        "argv": ["MARK", "argv"],
        "somebody_s_own": "MARK somebody_s_own",
    }
    page = render({"run": make_results(run=marks)}).split("Everything in run.json", maxsplit=1)[0]
    assert {name: len(re.findall(f"MARK {re.escape(name)}", page)) for name in marks} == dict.fromkeys(marks, 1)


def test_paper_of_somebody_s_own_detector_comes_from_the_record() -> None:
    """A page imports no code of others: what it cites lies beside the results."""
    paper = {"title": "Mine", "authors": "me", "venue": "here", "year": 2026, "url": "https://e.org", "deviations": "d"}
    run = {"references": {"mine": paper}, "detector_settings": {"mine": {"class_path": "their.Mine", "init_args": {}}}}
    page = Parsed(render({"run": make_results(("mine", "msp"), run=run)}))
    assert "me, Mine, here, 2026" in page.text


def test_notes_skipped_images_and_left_out_detectors_are_on_the_page() -> None:
    run = {
        "warnings": ["KLMatching(): one class is left out", "something else"],
        "fit_notes": {"kl_matching": ["one class is left out"]},
        "skipped": [{"key": "near/7", "reason": "image file is truncated"}],
        "not_applicable": {"vim": "needs the linear head"},
    }
    text = Parsed(render({"run": make_results(run=run)})).text
    for line in (
        "kl_matching: one class is left out",
        "something else",
        "near/7: image file is truncated",
        "needs the linear head",
    ):
        assert line in {part.strip() for part in text}, line
    assert "KLMatching(): one class is left out" not in {part.strip() for part in text}  # said once


def test_lowest_fpr_is_the_mean_over_the_sets(results: Results) -> None:
    means = {
        name: (
            results.value("mean_fpr95", dataset="near", detector=name)
            + results.value("fpr95", dataset="far", detector=name)
        )
        / 2
        for name in results.detectors
    }
    text = " ".join(Parsed(render({"run": results})).text)
    assert f"{100 * min(means.values()):.1f} %, mean of 2 OOD sets" in text


def test_run_with_id_images_alone() -> None:
    frame = make_results().scores
    only = Results.from_scores(frame[frame["dataset"] == "val"], [DatasetInfo("val", Role.ID)], ["msp"], bootstrap=0)
    text = " ".join(Parsed(render({"run": only})).text)
    assert "msp" in text
    assert "Accepted with the highest score" not in text


def test_run_without_detectors() -> None:
    text = " ".join(Parsed(render({"run": make_results(())})).text)
    assert "Accuracy of the classifier" in text


def test_histograms_show_the_images_that_the_table_is_about() -> None:
    some = make_results().recompute(classes={"near": ["nine"]}, bootstrap=0)
    frame = some.scores[(some.scores["dataset"] != "near") | (some.scores["group"] == 2)]
    alone = Results.from_scores(frame, some.datasets, some.detectors, classes={"near": ["nine"]}, bootstrap=0)
    panels = [re.findall(r'<svg[^>]*aria-label="histogram.*?</svg>', render({"run": run})) for run in (some, alone)]
    assert panels[0] == panels[1] != []


@pytest.mark.filterwarnings("ignore:.*undefined")
def test_undefined_values_are_shown_with_their_reason() -> None:
    full = make_results()
    datasets = [
        DatasetInfo("near", Role.OOD, ("seven", "eight", "nine", "none")),
        *[d for d in full.datasets if d.name != "near"],
    ]
    results = Results.from_scores(full.scores, datasets, list(full.detectors), bootstrap=0)
    text = " ".join(Parsed(render({"run": results})).text)
    assert "undefined" in text
    assert re.search(r"fpr95 of msp on near/none", text)


def test_infinite_scores_and_thresholds_are_shown() -> None:
    frame = make_results().scores
    frame["msp"] = np.where(frame["dataset"] == "val", -np.inf, frame["msp"])
    results = Results.from_scores(frame, make_results().datasets, ["msp", "knn"], bootstrap=0)
    assert "threshold -inf" in render({"run": results})


def test_page_names_the_real_sizes_and_how_intervals_are_made() -> None:
    text = " ".join(Parsed(render({"run": make_results(run={"caveat": "Few photos."})})).text)
    assert "Few photos." in text
    assert "Classes have 20 images; one image is 5.0 % of the smallest" in text
    assert "a bootstrap with 20 repetitions" in text
    assert "100 images, 90 correct, 10 wrong" in text
    assert "the run used no bootstrap" in " ".join(Parsed(render({"run": make_results(bootstrap=0)})).text)


def test_no_sentence_stands_twice_on_a_page() -> None:
    results = make_results()
    only = [info for info in results.datasets if info.role is not Role.OOD or info.class_names]
    frame = results.scores[results.scores["dataset"] != "far"]
    page = render({"run": Results.from_scores(frame, only, list(results.detectors), bootstrap=20)})
    prose = " ".join(re.findall(r"<(?:p|dd)[^>]*>(.*?)</(?:p|dd)>", page, flags=re.DOTALL))
    sentences = Counter(s.strip() for s in re.split(r"(?<=[.;:])\s+", " ".join(prose.split())) if len(s.split()) > 4)
    assert [sentence for sentence, count in sentences.items() if count > 1] == []


def terms_of(text: str) -> dict[str, str]:
    """Names and meanings under "How to read this page"."""
    part = text[text.index("How to read this page") :]
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", part))


def test_words_on_the_page_are_explained(results: Results) -> None:
    found = terms_of(render({"run": results}))
    assert "at the threshold that keeps 95 % of the ID images" in found["accepted %"]
    assert "correctly classified ID image scores higher than a wrongly classified one" in found["ID-AUROC %"]
    assert "uniform noise" in found["uni"]
    assert "threshold that keeps 95 % of the correctly classified training images" in found["der95"]
    assert "threshold that keeps 99 % of the correctly classified training images" in found["der99"]
    frame = results.scores[results.scores["dataset"].isin(["val", "far"])]
    infos = [d for d in results.datasets if d.name in ("val", "far")]
    few = terms_of(render({"run": Results.from_scores(frame, infos, results.detectors, tpr=0.9, der=[0.8])}))
    assert not {"accepted %", "uni", "der95", "der99"} & set(few)
    assert "threshold that keeps 80 %" in few["der80"]


def test_undefined_values_are_explained() -> None:
    text = render({"run": make_results(("msp",), bootstrap=0)})
    for name in re.findall(r"<li>(\w+) of msp on", text):
        assert name in terms_of(text), name


def test_no_empty_titles_and_no_empty_entries() -> None:
    page = Parsed(render({"run": make_results(run={"backbone": {"name": "tiny", "width": 0, "head_problem": ""}})}))
    assert not [tag for tag, name, value in page.attributes if name == "title" and not value]
    assert any(line.startswith("name tiny, width 0") for line in page.text)


def test_keys_are_shown_as_paths(results: Results) -> None:
    scores = results.scores.assign(key=results.scores["key"] + "%2Epng")
    page = Parsed(render({"run": Results.from_scores(scores, results.datasets, results.detectors, bootstrap=0)}))
    titles = [value for tag, name, value in page.attributes if tag == "figure" and name == "title"]
    assert titles
    assert all(title.endswith(".png") and "%" not in title for title in titles)


def test_findings_stand_before_every_number_and_costs_beside_the_detectors() -> None:
    """Hostile text in a finding is shown as text."""
    findings = [
        {"kind": "class_lists", "text": "six <b>logits</b>, five names", "is_good": False},
        {"kind": "class_lists", "text": "the accuracy agrees", "is_good": True},
    ]
    text = render({"run": make_results(run={"findings": findings, "ms_per_image": {"msp": 0.01234}})})
    body = text[text.index("<h1>") :]
    assert body.index("Six &lt;b&gt;logits&lt;/b&gt;, five names") < body.index("Which detector separates")
    assert '<p class="alert good">The accuracy agrees</p>' in body
    assert '<td class="num">0.0123</td>' in body


def test_needs_cost_and_tuned_settings_stand_beside_the_detector() -> None:
    """In the words of `oodlit list detectors`, from the record alone; older results have none."""
    kinds = {"knn": KNN(), "bats": BATS()}
    run = {"overview": {name: overview(detector)._asdict() for name, detector in kinds.items()}}
    page = render({"run": make_results(("knn", "bats"), run=run)})
    assert "<td>features, fitted</td><td>bank</td>" in page
    assert " (preset imagenet, tuned on OOD data)</td><td>features and head, fitted</td><td>closed form</td>" in page
    assert page.count(", tuned on OOD data)") == 1
    assert ", tuned on OOD data)" not in render({"run": make_results(("knn", "bats"))})
