"""The section of means over data sets and controls."""

import pytest
from markupsafe import Markup

from oodlit.report.section import Shown
from oodlit.report.sections.images.means import sections
from oodlit.report.thumbnails import ThumbnailStyles
from oodlit.results import Results
from tests.report.problems import make_results
from tests.results.test_controls import run


def shown(results: Results) -> Shown:
    return Shown(results, ThumbnailStyles({}, "t"))


def test_a_run_without_means_and_controls_has_no_section() -> None:
    assert list(sections(shown(make_results()))) == []


def test_means_and_controls_in_one_section() -> None:
    results = run(controls=True, aggregates={"near": ["far"]}).recompute(bootstrap=10)
    (section,) = sections(shown(results))
    assert (section.key, section.title) == ("means", "Means over data sets and controls")
    (mean,) = section.content["means"]
    assert mean["metrics"] == ["auroc", "fpr95", "fpr_e95", "aupr_s", "aupr_e", "fs_auroc", "fs_fpr95"]
    assert {row["detector"] for row in mean["rows"]} == {"good", "shift", "bank", "leak"}
    assert all(row["cells"][0]["interval"].startswith("[") for row in mean["rows"])
    assert [*section.content["controls"][0]["cells"]] == ["halves", "training", "covariate", "semantic"]
    assert isinstance(section.content["picture"], Markup)
    assert section.content["picture"].count("shift: AUROC") == 1


@pytest.mark.filterwarnings("ignore::oodlit.metrics.UndefinedMetricWarning")
def test_the_page_shows_them(tmp_path) -> None:
    from oodlit.report import write_report

    page = tmp_path / "report.html"
    write_report({"run": run(controls=True, aggregates={"near": ["far", "other"]})}, page)
    text = page.read_text()
    assert "near: mean over far, other" in text
    assert "Undefined: this run is missing these data sets: other." in text
    one_lost = run(aggregates={"near": ["far"]}, full_spectrum=["shifted", "imagenet_c"])
    write_report({"run": one_lost}, page)
    assert (
        "<p>Undefined for fs_fpr95, fs_auroc: this run is missing these shifted data sets: imagenet_c.</p>"
        in page.read_text()
    )
