"""Intervals of means where every class lies at the edge."""

import numpy as np
import pandas as pd
import pytest

from oodlit.metrics import wilson_interval
from oodlit.results import DatasetInfo, Results
from oodlit.roles import Role


def results_of(ood_score: float, num_ood: int = 30) -> Results:
    rng = np.random.default_rng(0)
    rows = [(f"val/{i}", "val", -1, i % 3, i % 3 if i else 1, s) for i, s in enumerate(rng.uniform(1, 2, 100))]
    rows += [(f"train/{i}", "train", -1, 0, 0, s) for i, s in enumerate(rng.uniform(1, 2, 100))]
    rows += [(f"far/{i}", "far", i % 2, -1, 0, ood_score) for i in range(2 * num_ood)]
    frame = pd.DataFrame(rows, columns=["key", "dataset", "group", "label", "prediction", "msp"])
    infos = [DatasetInfo("train", Role.TRAIN), DatasetInfo("val", Role.ID), DatasetInfo("far", Role.OOD, ("a", "b"))]
    return Results.from_scores(frame, infos, ["msp"])


@pytest.mark.parametrize(("score", "accepted"), [(0.0, 0), (3.0, 30)])
def test_nothing_or_everything_accepted_claims_no_certainty(score, accepted):
    table = results_of(score).table
    class_ends = wilson_interval(accepted, 30)
    for metric in ("mean_fpr95", "pooled_fpr95", "mean_auroc", "pooled_auroc", "mean_der95"):
        row = table[(table["dataset"] == "far") & (table["metric"] == metric)].iloc[0]
        assert 0 <= row["ci_low"] <= row["value"] <= row["ci_high"] <= 1, metric
        assert row["ci_high"] - row["ci_low"] > 0.01, metric
        if "auroc" not in metric:  # two classes tell more than one: narrower than each of them
            assert row["ci_high"] - row["ci_low"] < class_ends[1] - class_ends[0], metric


def test_with_one_class_the_interval_is_that_of_the_class():
    frame = results_of(0.0).scores
    infos = [DatasetInfo("train", Role.TRAIN), DatasetInfo("val", Role.ID), DatasetInfo("far", Role.OOD, ("a", "b"))]
    table = Results.from_scores(frame, infos, ["msp"], classes={"far": ["a"]}).table
    row = table[(table["dataset"] == "far") & (table["metric"] == "mean_fpr95")].iloc[0]
    np.testing.assert_allclose((row["ci_low"], row["ci_high"]), wilson_interval(0, 30), atol=1e-12)
