"""The group of the best: the values of the table, and who is in it."""

import numpy as np
import pytest

from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.results import DatasetInfo, Results, group_of_best
from oodlit.roles import Role
from tests.report.problems import make_results


@pytest.fixture(scope="module")
def results() -> Results:
    full = make_results(("msp", "knn", "vim"), per_class=60, bootstrap=0)
    rng = np.random.default_rng(3)
    frame = full.scores.assign(
        copy=np.exp(full.scores["vim"].astype(float) / 4), noise=rng.normal(size=len(full.scores))
    )
    return Results.from_scores(frame, full.datasets, [*full.detectors, "copy", "noise"], bootstrap=0)


@pytest.mark.parametrize(
    ("dataset", "metric", "name"),
    [
        ("near", None, "mean_fpr95"),
        ("near", "mean_auroc", "mean_auroc"),
        ("far", "fpr95", "fpr95"),
        ("far", "auroc", "auroc"),
        ("val", "id_auroc", "id_auroc"),
    ],
)
def test_values_are_those_of_the_table(results: Results, dataset: str, metric: str | None, name: str) -> None:
    found = group_of_best(results, dataset, metric)
    assert sorted(found["detector"]) == sorted(results.detectors)
    for detector, value in zip(found["detector"], found["value"], strict=True):
        assert value == pytest.approx(results.value(name, dataset=dataset, detector=detector), abs=1e-12)
    signs = found["value"].diff().dropna()
    assert (signs >= 0).all() if "fpr" in name else (signs <= 0).all()
    assert found["in_group"].iloc[0]


def test_detectors_of_one_order_are_together_and_noise_is_out(results: Results) -> None:
    for metric in ("fpr95", "auroc"):
        found = results.group_of_best("near", metric).set_index("detector")
        assert found.loc["copy"].tolist() == found.loc["vim"].tolist()
        assert not found.loc["noise", "in_group"]
        assert found.loc["noise", "p_corrected"] < 1e-3


def test_several_sets_are_averaged(results: Results) -> None:
    found = group_of_best(results, ["near", "far"], "auroc").set_index("detector")["value"]
    for name in results.detectors:
        parts = [results.value("mean_auroc", dataset="near", detector=name)]
        parts.append(results.value("auroc", dataset="far", detector=name))
        assert found[name] == pytest.approx(np.mean(parts))


def test_more_confidence_keeps_more_detectors(results: Results) -> None:
    sizes = [group_of_best(results, "near", confidence=c)["in_group"].sum() for c in (0.5, 0.95, 1 - 1e-9)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_chosen_classes_alone_count(results: Results) -> None:
    some = results.recompute(classes={"near": ["nine"]})
    found = group_of_best(some, "near").set_index("detector")["value"]
    assert found["msp"] == pytest.approx(results.value("fpr95", dataset="near", detector="msp", ood_class="nine"))


def test_what_cannot_be_compared_is_refused(results: Results) -> None:
    with pytest.raises(UnknownNameError, match="fpr95"):
        group_of_best(results, "near", "aupr_s")
    with pytest.raises(InvalidArgumentError, match="tests has role unit_test; fpr95 requires sets with role ood"):
        group_of_best(results, "tests")
    with pytest.raises(InvalidArgumentError, match="no data set given"):
        group_of_best(results, [])
    with pytest.raises(UnknownNameError, match="data set"):
        group_of_best(results, "nowhere")
    with pytest.raises(InvalidArgumentError, match=r"confidence .* got 1"):
        group_of_best(results, "near", confidence=1)
    with pytest.raises(InvalidArgumentError, match="no detector"):
        group_of_best(make_results((), bootstrap=0), "near")


@pytest.mark.filterwarnings("ignore:.*undefined")
def test_no_image_of_one_kind_is_said() -> None:
    frame = make_results(bootstrap=0).scores
    frame = frame[frame["dataset"] == "val"]
    empty = Results.from_scores(
        frame, [DatasetInfo("val", Role.ID), DatasetInfo("far", Role.OOD)], ["msp"], bootstrap=0
    )
    with pytest.raises(InvalidArgumentError, match=r"fpr95 of far requires both ID and OOD images, got \d+ and 0"):
        group_of_best(empty, "far")
