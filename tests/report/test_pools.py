"""Pools on the page: curves, levels, hardest classes, published curves, several runs."""

import re

import pytest

from oodlit.report import render
from oodlit.report.sections.images.correlation import correlation_views
from oodlit.report.sections.images.pools import pool_view
from oodlit.results import Results
from oodlit.results.views.pools import hardest_classes
from tests.results.pool_support import WNIDS, pool_results


@pytest.fixture(scope="module")
def results() -> Results:
    return pool_results()


def shown(results: Results) -> dict:
    return pool_view(results, results.dataset("pool"), results.detectors, lambda key: f"shot {key}")


def test_levels_are_those_of_the_results(results: Results) -> None:
    view = shown(results)
    table = results.levels("pool")
    for row in view["rows"]:
        values = table.loc[table["detector"] == row["name"], "auroc"].tolist()
        assert [cell.sort for cell in row["cells"][:-1]] == values
        assert [cell.text for cell in row["cells"][:-1]] == [f"{100 * value:.1f}" for value in values]
        assert row["cells"][-1].sort == pytest.approx(results.value("mean_auroc", dataset="pool", detector=row["name"]))
    means = [row["cells"][-1].sort for row in view["rows"]]
    assert means == sorted(means, reverse=True)
    start = (
        "24 classes, 3 per level. The severity of classes is estimated on 576 images, and 192 other images are tested"
    )
    assert view["detail"] == f"{start} (as packed)"


def test_hardest_classes_come_first_with_their_most_accepted_image(results: Results) -> None:
    info = results.dataset("pool")
    found = hardest_classes(results, info, "good", 5)
    order = results.severities("pool", "good")
    assert found["ood_class"].tolist() == order["ood_class"].tolist()[::-1][:5]
    for row in found.to_dict("records"):
        own = results.scores[results.scores["group"] == info.class_names.index(row["ood_class"])]
        assert row["key"] == own.loc[own["good"].idxmax(), "key"]
    assert [item["shot"] for item in shown(results)["hardest"][1]["items"]][:5] == [f"shot {k}" for k in found["key"]]


def test_page_shows_a_pool_and_no_published_curve_for_another_kind_of_pool(results: Results) -> None:
    page = render({"run": results})
    assert "pool: from the easiest to the hardest classes" in page
    assert page.count('aria-label="AUROC"') == 1
    assert (
        "published"
        not in re.sub(r"<style>.*?</style>", "", page, flags=re.S).split("How to read")[0].split("Scores")[0]
    )
    assert "38 %" not in page


def test_imagenet_21k_is_compared_and_called_contaminated() -> None:
    names = tuple(f"n{90000000 + i} thing" for i in range(1010))
    many = pool_results(names=names, id_classes=1000, per_class=2)
    view = shown(many)
    assert [band.split(" published")[0] for band in view["bands"]] == ["5 to 95 % of 539", "25 to 75 % of 539"]
    (line,) = view["standings"]
    assert re.fullmatch(
        r"msp has a higher mean AUROC over levels than \d+ of 539 published curves \(softmax\)\."
        r" Its AUROC is above \d+ of them at level s0, \d+ at s5, and \d+ at s10\.",
        line,
    )
    assert any("ID objects in 38 % of a sample of such images" in found.text for found in many.findings)
    page = render({"run": many})
    assert line.replace("msp has", "MSP has") in page
    assert "ID objects in 38 % of a sample of such images" in page


def test_few_known_classes_are_no_comparison_but_the_warning_stays() -> None:
    few = pool_results(names=WNIDS)
    assert shown(few)["standings"] == []
    assert shown(few)["bands"] == []
    assert any(found.kind == "contaminated" for found in few.findings)


def test_undefined_levels_are_shown_as_undefined() -> None:
    one = pool_results()
    estimates = one.estimates.copy()
    estimates.loc[(estimates["detector"] == "good") & (estimates["ood_class"] == "kind 3"), "n_estimation"] = 0
    with pytest.warns(match="undefined"):
        broken = Results.from_scores(
            one.scores, one.datasets, one.detectors, run=one.run, estimates=estimates, bootstrap=0
        )
    page = render({"run": broken})
    assert "good, s0: undefined" in page
    assert len(hardest_classes(broken, broken.dataset("pool"), "good")) == 0


def test_several_runs_are_ranked_and_unlike_pools_are_not() -> None:
    runs = {f"net {i}": pool_results(i) for i in range(3)}
    assert correlation_views(dict(list(runs.items())[:2])) == []
    (view,) = correlation_views(runs)
    assert [chart["detector"] for chart in view["charts"]] == ["msp", "good"]
    cells = view["charts"][0]["rows"][0]["cells"]
    assert (len(cells), cells[0].text) == (11, "1.00")
    assert "is the order of runs the same" in render(runs)
    other = pool_results(5, per_class=9)
    (view,) = correlation_views({**runs, "other": other})
    assert "differs between the runs 'net 0' and 'other'" in view["problem"]
    assert "differs between the runs" in render({**runs, "other": other})


def test_runs_of_one_network_are_told_apart() -> None:
    same = pool_results(0)
    page = render({"before": same, "after": same, "other": pool_results(1)})
    assert [f">{title}</a>" in page for title in ("net 0 (before)", "net 0 (after)", "net 1", "net 0")] == [
        True,
        True,
        True,
        False,
    ]


def test_names_are_escaped() -> None:
    odd = pool_results(names=tuple(f"<b>{i}" for i in range(24)))
    assert "<b>3" not in render({"run": odd})
