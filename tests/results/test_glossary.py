"""Every metric of the table is explained, everything explained is in a table, and each fact stands in one entry."""

import inspect

import pandas as pd
import pytest
import torchmetrics

from oodlit import metrics
from oodlit.metrics.registry import entries
from oodlit.metrics.settings import Settings
from oodlit.results.glossary import entry_of, glossary, meaning, table_metrics
from oodlit.roles import Role
from tests.report.problems import make_results


def test_every_name_of_a_full_table_is_explained() -> None:
    results = make_results()
    assert all(entry_of(name) for name in set(results.table["metric"]))
    assert all(entry_of(name) for name in set(results.recompute(tpr=0.905, der=(0.5,)).table["metric"]))
    assert [entry_of(name) for name in ("fpr", "auroc95", "fpr.5", "mean_", "95")] == [None] * 5


def test_a_metric_at_more_thresholds_refers_to_the_first() -> None:
    texts = {metric.name: text for metric, text in glossary(Settings(der=(0.95, 0.99, 0.999)))}
    assert texts["der99"] == "like der95, but for 99 %"
    assert texts["der99.9"] == "like der95, but for 99.9 %"


def test_everything_explained_can_occur() -> None:
    full = make_results()
    train = full.scores[full.scores["dataset"] == "val"].assign(dataset="train")
    train["key"] = "train/" + train["key"].str.partition("/")[2]
    scores = pd.concat([full.scores, train])
    info = type(full.datasets[0])("train", Role.TRAIN, ("zero", "one"))
    table = type(full).from_scores(scores, [info, *full.datasets], full.detectors, bootstrap=0).table
    plain = {name.removeprefix("mean_").removeprefix("pooled_") for name in table["metric"]}
    assert plain == {metric.name for metric, _ in glossary()}


def test_entries_are_complete() -> None:
    found = entries()
    assert len(found) == 24
    assert len({entry.name for entry in found}) == len({entry.order for entry in found}) == 24
    for entry in found:
        assert getattr(metrics, entry.function.__name__) is entry.function
        assert not entry.name[-1].isdigit()
        assert entry.text[0].islower()
        assert "{share}" in entry.text or entry.numbered_by == ""
        assert entry.by_threshold or entry.numbered_by in ("", "prior")
        assert not entry.needs - {"labels", "id_labels", "shifted", "training"}
        assert ("training" in entry.needs) == (entry.numbered_by == "der")
        assert Role.TRAIN not in entry.of


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_direction_is_that_of_the_streaming_class(entry) -> None:
    home = inspect.getmodule(entry.function)
    plain = entry.function.__name__.replace("_", "")  # as in FPRAtTPR and fpr_at_tpr
    classes = [
        value
        for name, value in vars(home).items()
        if inspect.isclass(value) and issubclass(value, torchmetrics.Metric) and value.__module__ == home.__name__
        if name.lower() == plain
    ]
    assert len(classes) == 1
    better = "higher" if classes[0].higher_is_better else "lower"
    assert entry.better in (better, "") or entry.name == "unit_test_passes"


def test_the_texts_name_the_numbers_of_the_run() -> None:
    settings = Settings(tpr=0.9, der=(0.5, 0.8), unit_test_limit=0.2)
    texts = {metric.name: metric.text(settings) for metric in table_metrics(settings)}
    assert texts["fpr90"].endswith("keeps 90 % of ID images")
    assert texts["fs_fpr90"].startswith("full spectrum: fpr90")
    assert texts["accepted90"].endswith("keeps 90 % of ID images")
    assert "keeps 80 %" in texts["der80"]
    assert "more than 20 %" in texts["unit_test_failures"]
    assert meaning("mean_der80", settings).startswith("Fraction of wrong decisions")
    assert (
        meaning("pooled_accepted90", settings)
        == "Fraction of shifted images accepted at the threshold that keeps 90 % of ID images."
    )
    assert meaning("images", settings) == ""


def test_exported_tables_say_what_they_rest_on() -> None:
    results = make_results().recompute(rule="interpolated", bootstrap=0)
    note = (
        "Thresholds accept 95 % of val (n = 100; threshold rule: 'interpolated'); near n = 60, far n = 30, tests n = 30"
    )
    assert note in results.summary().attrs["note"]
    assert note.replace("%", r"\%") in results.to_latex()
    assert f"\n\n{note}" in results.to_markdown()
