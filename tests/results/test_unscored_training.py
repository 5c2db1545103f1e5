"""A detector that cannot score kept training outputs still has every metric that needs no training threshold."""

import numpy as np
import pandas as pd
import pytest

from oodlit.errors import NonFiniteScoreError
from oodlit.results import DatasetInfo, Results
from oodlit.roles import Role

DATASETS = [DatasetInfo("train", Role.TRAIN), DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD)]


def frame() -> pd.DataFrame:
    rows = [(f"{name}/{i}", name, -1, 0, i % 2, 1.0 + i) for name in ("train", "val", "near") for i in range(4)]
    return pd.DataFrame(rows, columns=["key", "dataset", "group", "label", "prediction", "msp"])


def test_no_training_score_at_all_leaves_der_out_with_a_note() -> None:
    scores = frame().assign(odin=lambda f: f["msp"].where(f["dataset"] != "train", np.nan))
    results = Results.from_scores(scores, DATASETS, ["msp", "odin"], bootstrap=0)
    metrics = results.table[results.table["dataset"] == "near"].groupby("detector")["metric"].agg(set)
    assert metrics["msp"] - metrics["odin"] == {"der95", "der99"}
    assert (
        "odin: der95, der99 could not be computed, because the detector did not score the training images"
        in results.run.notes
    )


@pytest.mark.parametrize("dataset", ["train", "val"])
def test_single_nan_is_still_an_error(dataset: str) -> None:
    scores = frame()
    scores.loc[scores["key"] == f"{dataset}/2", "msp"] = np.nan
    with pytest.raises(NonFiniteScoreError, match=f"'msp' returned NaN for 1 of 12 images .*{dataset}/2"):
        Results.from_scores(scores, DATASETS, ["msp"], bootstrap=0)
