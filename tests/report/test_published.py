"""Published figures on the page: each is the one in the file, and none stands where the rules differ."""

import csv
import gzip
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import oodlit.results.published
from oodlit.report import render
from oodlit.results import Results
from oodlit.results.published import published_table
from tests.report.problems import make_results
from tests.results.published_support import ninco_run

FOLDER = Path(oodlit.results.published.__file__).parent


class Figures(HTMLParser):
    """Text of every element whose title names a published figure."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._place = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        title = dict(attrs).get("title") or ""
        self._place = title if re.match(r"(ninco|timm|openood|human)\w*: ", title) else ""

    def handle_data(self, data: str) -> None:
        if self._place:
            self.found[self._place], self._place = data, ""


def in_the_file(place: str) -> float:
    """The figure in percent, read from the file by other means than the table's own."""
    name, _, rest = place.partition(": ")
    file = FOLDER / published_table(name).file
    data = file.read_bytes()
    rows = list(csv.DictReader((gzip.decompress(data) if file.suffix == ".gz" else data).decode().splitlines()))
    if name == "timm":
        model, size, crop, dataset, _ = rest.split(", ")
        wanted = (model, size.removesuffix(" px"), float(crop.removeprefix("crop ")))
        return next(float(r[dataset]) for r in rows if (r["model"], r["img_size"], float(r["crop_pct"])) == wanted)
    return next(
        float(r["value"])
        for r in rows
        if ", ".join(filter(None, (r["model"], r["detector"], r["dataset"], r["metric"]))) == rest
    )


@pytest.fixture(scope="module")
def results() -> Results:
    return ninco_run(("msp", "vim", "knn", "react", "mine"), ood={"ssb_hard": 50, "inaturalist": 40})


def section(page: str) -> str:
    return page.partition(">Published figures</h2>")[2].partition("</section>")[0]


def test_every_published_figure_on_the_page_is_the_one_in_the_file(results: Results) -> None:
    page = render({"run": results})
    figures = Figures(section(page)).found
    assert len(figures) == 4 * 2 + 1  # four detectors with FPR and AUROC in NINCO's table, and timm's accuracy
    for place, text in figures.items():
        assert float(text.removesuffix(" %")) == in_the_file(place), place
    assert figures["ninco: ResNet50, ViM, ninco, mean_fpr95"] == "78.6 %"
    assert figures["timm: resnet50.a1_in1k, 224 px, crop 0.95, imagenet_val, accuracy"] == "80.382 %"
    assert set(Figures(page).found) == set(figures)


def test_what_is_no_comparison_has_its_reason(results: Results) -> None:
    text = section(render({"run": results}))
    assert "mean_aupr_s of ninco, mean_aupr_e of ninco: the table does not state" in text
    assert "ninco has 46 classes in the table, 64 in this run" in text
    assert "this run does not include textures, openimage_o" in text
    differences = re.findall(r'<td class="num">([+-]\d+\.\d|-)</td>', text)
    assert len([d for d in differences if d != "-"]) == 4 * 2 + 1
    assert "mine" not in text


def test_an_unknown_network_has_a_place_alone() -> None:
    text = section(render({"run": ninco_run(("msp",), published_as=None)}))
    assert "not known to be one of the published models" in text
    assert Figures(text).found == {}
    assert " of 27</td>" in text


def test_a_run_of_other_sets_has_no_such_section() -> None:
    assert "Published figures" not in render({"run": make_results()})
