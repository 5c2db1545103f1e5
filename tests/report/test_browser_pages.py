"""Pages of one detector, of several runs and of boxes in a real browser, on wide and narrow screens."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oodlit.report import write_report
from oodlit.results.files.image_features import ImageFeatures, MapPoint, write_features
from tests.objects.test_results import example
from tests.report.problems import make_results
from tests.report.several_support import make_runs
from tests.results.test_controls import run as controlled

pytestmark = pytest.mark.integration

WIDTHS = pytest.mark.parametrize("width", [1400, 400])
CUT = """() => [...document.querySelectorAll("svg text")].filter(text => {
  const own = text.getBoundingClientRect(), figure = text.closest("svg").getBoundingClientRect();
  return own.width && (own.left < figure.left - 1 || own.right > figure.right + 1);
}).map(text => text.textContent)"""
CROSS = """texts => texts.map(text => text.getBoundingClientRect()).some((a, i, all) => all.slice(0, i).some(b =>
  a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom))"""
NAMES = ("resnet50.a1_in1k", "vit_base_patch16_224.augreg_in21k_ft_in1k", "convnext")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of the pages."""
    folder, runs = tmp_path_factory.mktemp("pages"), make_runs(3, 3, 4, n_id=100, names=NAMES)
    made: dict[str, Any] = {"one": make_results(("Mahalanobis++",)), "boxes": example(bootstrap=5), "several": runs}
    made |= {"two": make_runs(2, 1, 3, n_id=50), "many": make_runs(2, 45, 3, n_id=50, names=NAMES[:2])}
    made["several boxes"] = {"one": example(bootstrap=5), "two": example(t_star=0.5, bootstrap=5)}
    points = {name: [MapPoint(i % 5, i % 7, i % 2) for i in range(20)] for name in ("", "val", "far")}
    write_features(folder / "controls", ImageFeatures(20, {}, [0.5, 0.25], points))
    made["controls"] = controlled(controls=True)
    return {name: write_report(results, folder / name / "report.html").as_uri() for name, results in made.items()}


@pytest.fixture
def opened(browser: Any, pages: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """Opens a page; nothing may be complained of in the console."""
    complaints: list[str] = []
    windows = []

    def open_page(name: str, width: int) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(pages[name])
        windows.append(page)
        return page

    yield open_page
    for page in windows:
        page.close()
    assert complaints == []


@WIDTHS
@pytest.mark.parametrize("name", ["one", "boxes", "several"])
def test_nothing_is_cut_and_every_menu_changes_what_it_shows(opened: Any, name: str, width: int) -> None:
    page = opened(name, width)
    page.locator("section > details > summary").evaluate_all("heads => heads.forEach(head => head.click())")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CUT) == []
    for menu in page.locator("select[data-target]").all():
        parts = page.locator(f"#{menu.get_attribute('data-target')} > div")
        for number in range(parts.count()):
            menu.select_option(index=number)
            assert [part.is_visible() for part in parts.all()] == [place == number for place in range(parts.count())]


@WIDTHS
def test_charts_are_as_wide_as_the_screen_with_readable_labels(opened: Any, width: int) -> None:
    page = opened("one", width)
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    charts = page.locator(".bars:visible")
    kinds = charts.evaluate_all("boxes => boxes.map(box => box.closest('section').id.replace(/\\d+$/, ''))")
    assert {"r0-roc", "r0-classes", "r0-risk"} <= set(kinds)
    assert charts.evaluate_all("boxes => boxes.every(box => box.scrollWidth <= box.clientWidth)")
    boxes = charts.locator("text:visible").evaluate_all("texts => texts.map(text => text.getBoundingClientRect())")
    assert min(min(box["width"], box["height"]) for box in boxes) > 9
    for chart in charts.all():
        assert not chart.locator("text:visible").evaluate_all(CROSS)


@WIDTHS
def test_names_of_points_have_room(opened: Any, width: int) -> None:
    page = opened("several", width)
    for value in range(page.locator("#all-accuracy option").count()):
        page.locator("#all-accuracy select").select_option(index=value)
        names = page.locator("#all-accuracy g > text:visible")
        assert page.locator("#all-accuracy circle:visible").count() == 3
        assert 1 <= names.count() <= 3
        assert not names.evaluate_all(CROSS)
        assert page.evaluate(CUT) == []
    assert page.locator("#all-accuracy .bars").evaluate("box => box.scrollWidth <= box.clientWidth")


@WIDTHS
def test_controls_and_map_have_readable_labels(opened: Any, width: int) -> None:
    page = opened("controls", width)
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    assert page.locator("#r0-means h3").count() == 0  # the heading of the section is enough
    heights = "texts => texts.map(text => text.getBoundingClientRect()).map(box => Math.min(box.width, box.height))"
    for chart in ("#r0-means svg", "#r0-map svg"):
        assert 9 < min(page.locator(f"{chart} text").evaluate_all(heights)) < 20
        assert page.locator(chart).bounding_box()["width"] <= 1000
        assert page.locator(chart).evaluate("chart => chart.parentNode.scrollWidth <= chart.parentNode.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    lines = """heads => heads.map(head => {
      const text = document.createTreeWalker(head, NodeFilter.SHOW_TEXT).nextNode(), range = document.createRange();
      range.setStart(text, text.data.indexOf("%") - 2); range.setEnd(text, text.data.indexOf("%") + 1);
      return range.getClientRects().length;
    })"""
    assert set(page.locator("#r0-headline th.num", has_text="%").evaluate_all(lines)) == {1}


@WIDTHS
def test_one_detector_has_a_page_without_folds_and_choices(opened: Any, width: int) -> None:
    page = opened("one", width)
    assert page.locator("#everything, .unfold, .facts + .answer").count() == 0
    assert page.locator("#r0-headline tbody tr:visible").count() == 1
    assert page.locator("#r0-scores figure:visible").count() == 1
    page.locator("#r0-headline thead th", has_text="mean AUROC").click()
    page.locator("#r0-roc0 .chips button").click()
    assert page.locator("#r0-roc0 .line[data-colour]").count() == 0
    before = page.locator("#r0-accepted output").text_content()
    page.locator("#r0-accepted input[type=range]").fill("20")
    assert page.locator("#r0-accepted output").text_content() != before
    page.fill("#filter", "mahalanobisplusplus")
    assert page.locator("#filtered").text_content() == "1 of 1"
    page.fill("#filter", "other")
    assert page.locator("#r0-headline tbody tr:visible").count() == 0


@WIDTHS
def test_runs_are_sorted_filtered_and_named_without_broken_words(opened: Any, width: int) -> None:
    page = opened("several", width)
    answer, sets = page.locator(".answer").first.bounding_box(), page.locator("#all-sets").bounding_box()
    assert answer["y"] < sets["y"]
    table = page.locator("#all-sets table:visible")
    heads = table.locator("thead th")
    for place in range(1, heads.count()):
        heads.nth(place).click()
        column = table.locator(f"tbody td:nth-child({place + 1})")
        values = [float(value) for value in column.evaluate_all("cells => cells.map(cell => cell.dataset.v)")]
        assert values == sorted(values, reverse=heads.nth(place).get_attribute("data-better") == "higher")
    broken = """links => links.flatMap(link => [...link.childNodes].filter(node => node.data).flatMap(node =>
      [...node.data.matchAll(/[A-Za-z0-9]+/g)].filter(word => {
        const range = document.createRange();
        range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
        return range.getClientRects().length > 1;
      }).map(word => word[0])))"""
    assert page.locator("tbody th:visible a").evaluate_all(broken) == []
    page.fill("#filter", "detector_02")
    assert page.locator("#all-runs table:visible thead th[data-d]:visible").count() == 1


@WIDTHS
def test_boxes_are_sorted_unfolded_and_filtered(opened: Any, width: int) -> None:
    page = opened("boxes", width)
    assert str(page.locator(".facts + .answer").text_content()).startswith("Choose ")
    assert page.locator("#r0-split0 table").nth(1).is_visible() is False
    page.locator("#r0-split0 summary", has_text="More metrics").click()
    assert page.locator("#r0-split0 table").nth(1).is_visible()
    table = page.locator("#r0-split0 table").first
    table.locator("thead th", has_text="auroc").click()
    values = table.locator("tbody td:nth-child(2)").evaluate_all("cells => cells.map(cell => Number(cell.dataset.v))")
    assert values == sorted(values, reverse=True)
    assert page.locator("#r0-tau0 figure:visible").count() == 2
    page.fill("#filter", "g")
    assert page.locator("#r0-tau0 figure:visible").count() == table.locator("tbody tr:visible").count() == 1


@WIDTHS
@pytest.mark.parametrize("name", ["two", "several", "many", "several boxes"])
def test_a_comparison_begins_with_the_pair_to_choose_and_stays_narrow_and_small(
    opened: Any, pages: dict[str, str], name: str, width: int
) -> None:
    page = opened(name, width)
    tile, first = page.locator(".fact").first, page.locator(".answer").first
    assert "Network and detector to choose" in str(tile.text_content())
    assert str(first.text_content()).startswith(f"Choose {tile.locator('b').text_content()}: ")
    bottom = first.bounding_box()
    assert bottom is not None
    assert bottom["y"] + bottom["height"] < 900  # on the first screen
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert Path(pages[name].removeprefix("file://").replace("%20", " ")).stat().st_size < 3_000_000
