"""The page in a real browser: what is clicked, typed and pointed at, on wide and narrow screens, in the dark, on paper.

Chromium is that of the system; without one these tests are skipped.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oodlit.metrics import acceptance_threshold
from oodlit.report import save_thumbnails, write_report
from oodlit.results import Results
from tests.report.problems import make_results, read_images

pytestmark = pytest.mark.integration

HOSTILE = "<img src=x onerror=\"document.title='hurt'\">"
LONG = "a_detector_with_a_name_that_is_much_longer_than_any_other_of_them"


@functools.cache
def many_detectors() -> Results:
    """45 detectors, one with a long name and one that copies another, on a set with a hostile class."""
    names = (*(f"detector_{i}" for i in range(43)), LONG)
    full = make_results(names, (HOSTILE, "eight", "nine"), bootstrap=0)
    frame = full.scores.assign(copied=np.exp(full.scores["detector_7"].astype(float) / 20))
    run = {
        "ms_per_image": {name: 0.01 * (45 - i) for i, name in enumerate((*names, "copied"))},  # the best are not first
        "time": {"backbone_ms": 0.1},
        "findings": [
            {"kind": "class_lists", "text": "the class lists differ", "is_good": False},
            {"kind": "failed", "text": "detector 'ash' failed", "is_good": False},
        ],
    }
    return Results.from_scores(frame, full.datasets, [*names, "copied"], bootstrap=20, run=run)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(many_detectors(), tmp_path_factory.mktemp("page") / "report.html").as_uri()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Any]:
    """Opens the page in a window of the given kind; nothing may be complained of in the console."""
    complaints: list[str] = []
    windows = []

    def open_page(width: int = 1400, **options: Any) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        windows.append(page)
        return page

    yield open_page
    for page in windows:
        page.close()
    assert complaints == []


def first_column(page: Any) -> list[str]:
    return page.locator("#r0-headline tbody th").all_text_contents()


def test_rows_start_with_the_best_and_a_click_sorts_with_the_best_first(opened: Any) -> None:
    page, results = opened(), many_detectors()
    rates = {name: results.value("mean_fpr95", dataset="near", detector=name) for name in results.detectors}
    others = {name: results.value("fpr95", dataset="far", detector=name) for name in results.detectors}
    assert first_column(page)[0] == min(results.detectors, key=lambda name: rates[name] + others[name])
    page.locator("#r0-headline thead th", has_text="mean AUROC").click()
    area = [results.value("mean_auroc", dataset="near", detector=name) for name in first_column(page)]
    assert area == sorted(area, reverse=True)
    page.locator("#r0-headline thead th", has_text="ms per image").click()
    assert first_column(page)[0] == "copied"
    page.locator("#r0-headline thead th", has_text="ms per image").press("Enter")
    assert first_column(page)[0] == "detector_0"
    assert page.locator("#r0-headline thead th[aria-sort]").count() == 1


@pytest.mark.parametrize("width", [360, 700, 1400])
def test_words_of_the_cards_break_where_there_is_no_room_alone(opened: Any, width: int) -> None:
    page = opened(width)
    lines = """(name) => {
        const text = document.querySelector(".fact b").firstChild, range = document.createRange();
        text.data = name + " and 12 equal";
        range.setStart(text, 0); range.setEnd(text, name.length);
        return range.getClientRects().length;
    }"""
    assert page.evaluate(lines, "mahalanobis_plus_plus") == 1
    assert page.evaluate(lines, "w" * 300) > 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_filter_leaves_the_named_detectors_everywhere(opened: Any) -> None:
    page = opened()
    page.fill("#filter", "Detector_7, copied")
    assert page.locator("#filtered").text_content() == "2 of 45"
    assert sorted(page.locator("#r0-headline tbody tr:visible th").all_text_contents()) == ["copied", "detector_7"]
    assert page.locator("#r0-scores figure:visible").count() == 2
    for row in page.locator("#r0-classes1 table.by-detector tr, #r0-classes0 table.by-detector tr").all()[:3]:
        assert row.locator("th:visible, td:visible").count() == 3
    page.fill("#filter", "")
    assert page.locator("#r0-headline tbody tr:visible").count() == 11


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("scripts", [True, False])
def test_the_best_are_visible_and_one_click_shows_all(opened: Any, width: int, scripts: bool) -> None:
    page = opened(width, java_script_enabled=scripts)
    rows, panels = page.locator("#r0-headline tbody tr:visible"), page.locator("#r0-scores figure:visible")
    first = page.locator("#r0-headline tbody th:visible").all_text_contents()
    choice = page.locator(".fact b").first.text_content()
    assert first[:10] == first_column(page)[:10]
    assert choice in first
    assert rows.count() == panels.count() == 11
    page.locator("#r0-scores .unfold label").click()
    assert page.locator("#everything").is_checked()
    assert page.locator(".unfold:visible").count() == 0
    assert rows.count() == panels.count() == 45
    page.locator("#everything").click()
    assert rows.count() == 11
    page.emulate_media(media="print")
    assert rows.count() == panels.count() == 45


def test_sorting_shows_all_detectors_and_the_filter_finds_folded_ones(opened: Any) -> None:
    page = opened()
    folded = next(name for name in first_column(page)[10:] if name.startswith("detector_"))
    page.fill("#filter", folded.replace("_", "").upper())
    assert folded in page.locator("#r0-headline tbody th:visible").all_text_contents()
    page.fill("#filter", "")
    page.locator("#r0-headline thead th", has_text="mean AUROC").click()
    assert page.locator("#r0-headline tbody tr:visible").count() == 45


def test_words_of_names_are_not_broken_on_a_phone(browser: Any, tmp_path: Path) -> None:
    names = ("Temperature-scaled MSP", "Relative Mahalanobis++", "relative_mahalanobis", "KNN")
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(write_report({"a": make_results(names, bootstrap=20)}, tmp_path / "report.html").as_uri())
    broken = """cells => cells.flatMap(cell => [...cell.firstChild.data.matchAll(/\\w+/g)].filter(word => {
      const range = document.createRange();
      range.setStart(cell.firstChild, word.index); range.setEnd(cell.firstChild, word.index + word[0].length);
      return range.getClientRects().length > 1;
    }).map(word => word[0]))"""
    assert page.locator("tbody th:visible").evaluate_all(broken) == []
    page.close()


def test_contents_lead_to_every_section_and_stay_in_sight(opened: Any) -> None:
    page = opened()
    links = page.locator(".entries a").all()
    assert len(links) == page.locator("main section").count() > 6
    for link in links:
        link.click()
        target = page.locator(str(link.get_attribute("href")))
        bar, section = page.locator(".bar").bounding_box(), target.bounding_box()
        assert bar["y"] == 0
        at_the_end = page.evaluate("innerHeight + scrollY >= document.body.scrollHeight - 2")
        assert at_the_end or bar["height"] <= section["y"] < 120


@pytest.mark.parametrize("width", [1400, 400])
def test_the_answer_stands_first_and_findings_below_it(opened: Any, width: int) -> None:
    page = opened(width)
    about_all = page.get_by_text("The class lists differ", exact=True)
    of_one = page.get_by_text("Detector 'ash' failed", exact=True)
    order = [".count", ".fact >> nth=0", ".facts + .answer", ".findings", "#r0-headline"]
    places = [page.locator(place).bounding_box()["y"] for place in order]
    assert places == sorted(places)
    assert page.locator(".fact").first.text_content().startswith("Detector to choose")
    assert page.locator(".answer").first.text_content().startswith("Choose ")
    assert about_all.is_visible()
    assert not of_one.is_visible()
    choice = page.locator(".fact b").first.text_content()
    count = f"Read the finding that concerns {choice} before you use these numbers."
    assert page.locator(".count").text_content() == count
    page.locator(".count a").click()
    assert of_one.is_visible()


def test_the_link_marks_the_findings_that_it_counts(opened: Any) -> None:
    page = opened()
    marked = """all => all.filter(one => getComputedStyle(one).outlineStyle !== "none").map(one => one.textContent)"""
    assert page.locator(".findings .alert").evaluate_all(marked) == []
    page.locator(".count a").press("Enter")
    assert page.locator(".findings .alert").evaluate_all(marked) == ["The class lists differ"]  # not that of ash
    places = "one => [one.getBoundingClientRect().top, document.querySelector('.bar').getBoundingClientRect().bottom]"
    top, bar = page.locator(".counted").evaluate(places)
    assert bar <= top < 900


@pytest.mark.parametrize("width", [1400, 400])
def test_details_are_folded_and_a_link_opens_them(opened: Any, width: int) -> None:
    page = opened(width)
    assert page.evaluate("document.documentElement.scrollHeight") < (6000 if width == 1400 else 9500)
    table, link = page.locator("#r0-measured table").last, page.locator('.entries a[href="#r0-measured"]')
    assert not table.is_visible()
    link.click()
    assert table.is_visible()
    assert page.locator("#r0-measured").bounding_box()["y"] < 120
    page.locator("#r0-measured > details > summary").click()
    assert not table.is_visible()
    page.goto(f"{page.url.partition('#')[0]}?again#r0-measured")
    assert table.is_visible()


def test_curves_are_chosen_by_name_and_read_off_by_pointing(opened: Any) -> None:
    page = opened()
    box = page.locator("#r0-roc0")
    coloured = box.locator(".line[data-colour]")
    assert coloured.count() == 5
    pressed = box.locator("button[aria-pressed=true]")
    names = pressed.all_text_contents()
    chosen = next(name for name in many_detectors().detectors if name not in names)
    box.get_by_role("button", name=chosen, exact=True).click()
    assert coloured.count() == pressed.count() == 6
    last = next(name for name in many_detectors().detectors if name not in [*names, chosen])
    box.get_by_role("button", name=last, exact=True).click()  # takes the colour of the first
    assert coloured.count() == 6
    assert names[0] not in pressed.all_text_contents()
    colours = coloured.evaluate_all("lines => lines.map(line => line.dataset.colour)")
    assert sorted(colours) == list("012345")
    pressed.first.click()
    assert coloured.count() == pressed.count() == 5
    box.locator(".plot").hover()
    read = str(box.locator(".readout").text_content())
    found = dict(re.findall(r"(\w+) ([\d.]+) %", read.partition("OOD images accepted: ")[2]))
    assert sorted(found) == sorted(pressed.all_text_contents())
    assert all(0 <= float(value) <= 100 for value in found.values())


def test_values_read_off_are_those_of_the_scores(opened: Any) -> None:
    page, results = opened(), many_detectors()
    svg = page.locator("#r0-roc0 .plot")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * (8 + 380 * 0.05**0.5) / 428)  # 95 % of ID
    read = str(page.locator("#r0-roc0 .readout").text_content())
    assert abs(float(read.split(maxsplit=1)[0]) - 95) < 0.5
    found = re.findall(r"(\w+) ([\d.]+) %", read.partition("OOD images accepted: ")[2])
    assert len(found) == 5
    inside, near = (results.images(name) for name in ("val", "near"))
    for name, value in found:
        low, high = (100 * (near[name] >= np.quantile(inside[name], q)).mean() for q in (0.06, 0.04))
        assert low - 0.1 <= float(value) <= high + 0.1


def test_no_column_is_cut_at_1400_pixels_and_narrow_screens_say_that_there_is_more(opened: Any) -> None:
    wide = opened(1400)
    cut = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth + 2).map(box => box.closest('section').id)"
    assert wide.locator(".scroll").evaluate_all(cut) == []
    phone = opened(400)
    for page in (wide, phone):
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    table = phone.locator("#r0-headline .scroll")
    assert "more" in str(table.get_attribute("class"))
    at_its_end = """async box => {
      box.scrollLeft = box.scrollWidth;
      await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
      return box.classList.contains("more");
    }"""
    assert not table.evaluate(at_its_end)
    heights = phone.locator("#r0-headline tbody tr").evaluate_all("rows => rows.map(r => r.clientHeight)")
    assert sorted(heights)[len(heights) // 2] < 60  # names are not broken letter by letter
    name, box = phone.locator("#r0-headline tbody th").first.bounding_box(), table.bounding_box()
    assert box["x"] <= name["x"] + 1 < box["x"] + box["width"] / 2  # names stay beside the numbers


def test_words_without_end_are_broken(browser: Any, tmp_path: Path) -> None:
    names = ("a" * 300, "漢" * 200, "msp")
    results = make_results(names, names, labels=names, bootstrap=0)
    one, several = tmp_path / "one.html", tmp_path / "several.html"
    write_report({names[0]: results}, one)
    write_report({"b" * 300: results, "c": results}, several)
    for path in (one, several):
        for width in (1400, 400):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.close()


def test_dark_and_light_are_readable(opened: Any) -> None:
    ratio = """() => {
      const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const card = light(getComputedStyle(document.querySelector("section")).backgroundColor);
      const text = "section h2, section p, section td, section small, section a, button";
      return [...document.querySelectorAll(text)].map(e => {
        const ink = light(getComputedStyle(e).color);
        return (Math.max(ink, card) + 0.05) / (Math.min(ink, card) + 0.05);
      }).reduce((least, value) => Math.min(least, value));
    }"""
    light, dark = opened(color_scheme="light"), opened(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert light.evaluate(background) != dark.evaluate(background)
    assert light.evaluate(ratio) >= 4.5  # WCAG 2.1, level AA
    assert dark.evaluate(ratio) >= 4.5


def test_paper_has_no_bar_and_all_columns(opened: Any) -> None:
    page = opened(1000)
    page.emulate_media(media="print")
    assert not page.locator(".bar").is_visible()
    assert page.locator("#r0-headline .scroll").evaluate("box => getComputedStyle(box).overflowX") == "visible"
    assert len(page.pdf(format="A4")) > 10_000


def counts_of(text: str) -> list[tuple[str, int, float]]:
    found = re.findall(r"(\d+) of \d+ images of (\w+) \([TF]PR ([\d.]+) %\)", text)
    return [(name, int(number), float(rate)) for number, name, rate in found]


@pytest.mark.parametrize("width", [1400, 400])
def test_the_slider_moves_counts_rates_and_images_together(opened: Any, width: int) -> None:
    page, results = opened(width), many_detectors()
    box = page.locator("#r0-accepted .look")
    detector, dataset = box.locator("select").all()
    detector.select_option("detector_3")
    dataset.select_option("far")
    slider, readout = box.locator("input[type=range]"), box.locator("output")
    scores = {name: results.images(name)["detector_3"].astype(float) for name in ("val", "near", "far")}
    numbers = []
    for step, share in (("94", 0.95), ("49", 0.5), ("99", 0.995)):
        slider.fill(step)
        threshold = acceptance_threshold(scores["val"].to_numpy(), tpr=share)
        expected = {name: int((own >= threshold).sum()) for name, own in scores.items()}
        found = counts_of(str(readout.text_content()))
        assert {name: number for name, number, _ in found} == expected
        assert all(abs(rate - 100 * number / len(scores[name])) < 0.051 for name, number, rate in found)
        frame = results.images("far").set_index("key")["detector_3"].astype(float)
        accepted = box.locator("figure:not(.rejected)").evaluate_all("figures => figures.map(f => f.title)")
        rejected = box.locator("figure.rejected").evaluate_all("figures => figures.map(f => f.title)")
        shown = frame[[*accepted, *rejected]].tolist()
        assert shown == sorted(shown, reverse=True)
        assert all(frame[key] >= threshold for key in accepted)
        assert all(frame[key] < threshold for key in rejected)
        assert box.locator(".cut").count() == bool(rejected)
        numbers.append(len(accepted))
    assert numbers[1] <= numbers[0] <= numbers[2]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_menu_of_the_risk_shows_another_set(opened: Any) -> None:
    page = opened()
    page.locator("#r0-risk select").select_option("far")
    shown = page.locator("#r0-risk-sets > div:visible")
    assert shown.count() == 1
    assert "like those of far" in str(shown.text_content())
    assert shown.locator(".plot:visible").count() == 1
    assert shown.locator("table:visible").count() == 0
    shown.locator("summary").click()
    assert shown.locator("table:visible").count() == 1


def test_without_scripts_the_images_of_the_chosen_detector_are_there(opened: Any) -> None:
    with_scripts, without = opened(), opened(java_script_enabled=False)
    box = without.locator("#r0-accepted .look")
    assert box.locator("figure").count() == with_scripts.locator("#r0-accepted .look figure").count() > 24
    assert not box.locator(".controls").is_visible()
    [(name, number, rate)] = counts_of(str(box.locator("output").text_content()))
    assert (name, number, rate) in counts_of(str(with_scripts.locator("#r0-accepted output").text_content()))


def test_hostile_class_is_text(opened: Any) -> None:
    page = opened()
    assert page.title() != "hurt"
    assert page.locator("img").count() == 0
    assert page.get_by_text(HOSTILE).count() > 0


def test_forty_five_detectors_make_a_small_page(address: str) -> None:
    path = Path(address.removeprefix("file://"))
    assert path.stat().st_size < 900_000


def test_pictures_of_large_images_leave_the_page_below_3_mb(tmp_path: Path) -> None:
    results = many_detectors()
    save_thumbnails(results, tmp_path, read_images)
    assert write_report(results, tmp_path / "report.html").stat().st_size < 3_000_000
