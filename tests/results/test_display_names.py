"""Names of detectors for readers: derived from the class, chosen names kept, the same in every table."""

import pytest
from matplotlib.text import Text

from oodlit.detectors import KNN, MSP, MahalanobisPlusPlus, detectors
from oodlit.gate.threshold import threshold_of
from oodlit.report import render
from oodlit.results import Results, compare_runs, crossings
from oodlit.results.display_names import display_names
from oodlit.results.displayed import displayed
from oodlit.results.plots import roc
from oodlit.results.views.paper import paper_table
from tests.report.problems import make_results

NAMES = ("msp", "mahalanobis_plus_plus", "knn_50", "mine")


def config(kind: type) -> dict[str, object]:
    return {"class_path": f"oodlit.detectors.{kind.__name__}", "init_args": {}}


@pytest.fixture(scope="module")
def results() -> Results:
    kinds = dict(zip(NAMES, (MSP, MahalanobisPlusPlus, KNN), strict=False))
    run = {
        "detector_settings": {name: config(kind) for name, kind in kinds.items()},
        "ms_per_image": dict.fromkeys(NAMES, 0.5),
        "time": {"fit": {"mahalanobis_plus_plus": 2.0}},
        "undefined": [{"detector": "msp", "dataset": "far", "ood_class": "", "metric": "auroc", "reason": "none"}],
    }
    return make_results(NAMES, run=run, bootstrap=0)


def test_default_names_become_those_of_the_class_and_chosen_names_stay(results: Results) -> None:
    assert list(display_names(results.run).values()) == ["MSP", "Mahalanobis++", "knn_50", "mine"]


def test_every_detector_has_a_distinct_name_without_underscores() -> None:
    names = [kind.display_name or key for key, kind in detectors().items() if "_" in key]
    shown = [kind.display_name or kind.__name__ for kind in detectors().values()]
    assert len(set(map(str.lower, shown))) == len(shown) > len(names) > 10
    assert not [name for name in shown if "_" in name or "PlusPlus" in name or not name.strip()]


def test_a_recorded_name_comes_first_and_names_stay_distinct() -> None:
    about = {"reads": "logits", "is_fitted": False, "cost": "closed form", "tuned": "", "display_name": "Softmax"}
    run = {"detector_settings": {"msp": config(MSP)}, "overview": {"msp": about}}
    recorded = make_results(("msp", "knn"), run=run, bootstrap=0)
    assert display_names(recorded.run) == {"msp": "Softmax", "knn": "knn"}
    taken = make_results(("msp", "MSP"), run={"detector_settings": {"msp": config(MSP)}}, bootstrap=0)
    assert display_names(taken.run) == {"msp": "msp", "MSP": "MSP"}


def test_readers_names_are_accepted_wherever_results_are_asked_for_a_detector(results: Results) -> None:
    plus = "Mahalanobis++"
    assert results.value("auroc", dataset="far", detector="msp") == results.value(
        "auroc", dataset="far", detector="MSP"
    )
    assert results.threshold(plus) == results.threshold("mahalanobis_plus_plus")
    assert results.accepted(plus)[1] == results.accepted("mahalanobis_plus_plus")[1]
    assert results.compare("MSP", plus)["other"].tolist() == ["mahalanobis_plus_plus"]
    assert paper_table(results, detectors=["Msp", plus]).names == ("MSP", plus)
    assert threshold_of(results, "MSP") == threshold_of(results, "msp")
    assert [c.row["detector"] for c in crossings(results, [f"{plus}: auroc on far >= 0%"])] == ["mahalanobis_plus_plus"]
    both = compare_runs({"a": results, "b": results}, detectors=[plus])
    assert set(both["detector"]) == {"mahalanobis_plus_plus"}


def test_values_scores_thresholds_and_costs_move_to_the_new_names(results: Results) -> None:
    shown = displayed(results)
    for key, name in display_names(results.run).items():
        for metric, dataset in (("mean_fpr95", "near"), ("auroc", "far")):
            assert shown.value(metric, dataset=dataset, detector=name) == results.value(
                metric, dataset=dataset, detector=key
            )
        assert shown.threshold(name) == results.threshold(key)
        assert (shown.scores[name] == results.scores[key]).all()
        assert shown.run.ms_per_image[name] == 0.5
    assert shown.value("accuracy", dataset="val") == results.value("accuracy", dataset="val")
    assert shown.run.time.fit == {"Mahalanobis++": 2.0}
    assert {one.detector for one in shown.run.undefined} <= {*shown.detectors, "model"}
    assert displayed(shown) is shown
    assert results.detectors == NAMES


def test_page_and_figure_show_display_names_and_the_page_says_the_key(results: Results) -> None:
    page = render({"run": results})
    assert 'data-d="Mahalanobis++"' in page
    assert 'data-d="mahalanobis_plus_plus"' not in page
    assert '<br><small class="soft">mahalanobis_plus_plus</small>' in page
    assert "detector_settings" in page.partition("Everything in run.json")[2]
    figure = roc(results, "far", detectors=["msp", "mahalanobis_plus_plus"])
    labels = " ".join(text.get_text() for text in figure.findobj(Text))
    assert "Mahalanobis++" in labels
    assert "MSP" in labels
