"""The aggregation reproduces the tables of papers from their own parts."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from oodlit.metrics import unit_test_failures
from oodlit.metrics.classwise import mean_of
from oodlit.results import DatasetInfo, Results
from oodlit.results.published import NINCO
from oodlit.roles import Role

PUBLISHED = Path(__file__).parent / "published"


def table(name):
    return pd.read_csv(PUBLISHED / f"{name}.csv")


def ninco_means():
    """Mean FPR in percent by model and detector; the package has them."""
    return {
        (f.model, f.detector): 100 * f.value
        for f in NINCO.figures()
        if (f.dataset, f.metric) == ("ninco", "mean_fpr95")
    }


def scores_with(share, n):
    """n OOD scores of which the given share is accepted by a threshold of 1."""
    accepted = round(share * n)
    return (np.arange(n) < accepted).astype(np.float64)


def test_mean_over_ninco_classes_of_the_complete_columns():
    sizes = table("ninco_classes").set_index("shortname")["n_samples"]
    means = ninco_means()
    complete = 0
    for (model, detector), column in table("ninco_per_class_fpr").groupby(["model", "detector"]):
        if column["fpr"].isna().any():
            continue
        complete += 1
        names = tuple(column["class_shortname"])
        rows = [("val/0", "val", -1, 1.0)]
        for group, (name, fpr) in enumerate(zip(names, column["fpr"], strict=True)):
            rows += [
                (f"ninco/{name}/{i}", "ninco", group, s) for i, s in enumerate(scores_with(fpr / 100, sizes[name]))
            ]
        frame = pd.DataFrame(rows, columns=["key", "dataset", "group", "score"]).assign(label=-1, prediction=-1)
        datasets = [DatasetInfo("val", Role.ID), DatasetInfo("ninco", Role.OOD, names)]
        results = Results.from_scores(frame, datasets, ["score"], bootstrap=0)
        assert len(names) == 64
        assert len(results.scores) == 1 + 5879
        per_class = 100 * results.per_class("ninco")["score"].to_numpy()
        np.testing.assert_allclose(per_class, column["fpr"], atol=0.0501)  # printed with one decimal
        mean = 100 * results.value("mean_fpr95", dataset="ninco", detector="score")
        assert mean == pytest.approx(means[model, detector], abs=0.0501)
    assert complete == 1


def test_mean_over_the_two_overlap_groups_is_the_mean_over_all_classes():
    rows = table("ninco_overlap")
    # The means are read from the workshop version; where the two versions differ, take its parts as well.
    workshop = rows["note"].str.extract(r"workshop version prints ([\d.]+)")[0].astype(float)
    assert workshop.notna().sum() == 3
    overlap = rows.assign(fpr=workshop.fillna(rows["fpr"])).pivot(
        index=["model", "detector"], columns="subset", values="fpr"
    )
    means = ninco_means()
    assert len(means) == len(overlap) == 290
    for pair, row in overlap.iterrows():
        mean = mean_of([row["without_21k_overlap"]] * 9 + [row["with_21k_overlap"]] * 55)
        assert mean == pytest.approx(means[pair], abs=0.1), pair


def test_average_over_the_eight_sets_of_the_human_centric_paper():
    frame = table("human_centric_der")
    consistent = 0
    for _, block in frame.groupby(["model", "detector"]):
        average = block[block["dataset"] == "Average"].iloc[0]
        parts = block[block["dataset"] != "Average"]
        assert len(parts) == 8
        consistent += sum(abs(mean_of(list(parts[m])) - average[m]) <= 0.0201 for m in ("der99", "der95"))
    assert consistent == 126


def test_number_of_failed_unit_tests():
    rows = 0
    for _, block in table("ninco_unit_tests").groupby(["model", "detector"]):
        tests = [scores_with(fpr / 100, 1000) for fpr in block["fpr"]]
        assert len(tests) == 17
        assert unit_test_failures([1.0], tests) == block["n_fails"].iloc[0]
        rows += 1
    assert rows == 17
