"""Every metric of the table is explained, and everything explained is in a table."""

import pandas as pd

from oodlit import metrics
from oodlit.results.glossary import GLOSSARY, entry_of
from oodlit.roles import Role
from tests.report.problems import make_results


def test_every_name_of_a_full_table_is_explained() -> None:
    results = make_results()
    assert all(entry_of(name) for name in set(results.table["metric"]))
    assert all(entry_of(name) for name in set(results.recompute(tpr=0.905, der=(0.5,)).table["metric"]))
    assert entry_of("fpr") is None


def test_everything_explained_can_occur() -> None:
    full = make_results()
    train = full.scores[full.scores["dataset"] == "val"].assign(dataset="train")
    train["key"] = "train/" + train["key"].str.partition("/")[2]
    scores = pd.concat([full.scores, train])
    info = type(full.datasets[0])("train", Role.TRAIN, ("zero", "one"))
    table = type(full).from_scores(scores, [info, *full.datasets], full.detectors, bootstrap=0).table
    plain = {name.removeprefix("mean_").removeprefix("pooled_") for name in table["metric"]}
    assert plain == set(GLOSSARY)


def test_functions_are_public() -> None:
    assert {entry.function for entry in GLOSSARY.values()} <= set(metrics.__all__)


def test_exported_tables_say_what_they_rest_on() -> None:
    results = make_results().recompute(rule="interpolated", bootstrap=0)
    note = "Thresholds keep 95 % of val (n = 100), rule 'interpolated'; near n = 60, far n = 30, tests n = 30"
    assert note in results.summary().attrs["note"]
    assert f"% {note}" in results.to_latex()
    assert f"\n\n{note}" in results.to_markdown()
