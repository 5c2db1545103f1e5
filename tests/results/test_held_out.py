"""The numbers of a run without the images that calibrate p-values."""

import numpy as np
import pandas as pd
import pytest

from oodlit import Results, Role
from oodlit.errors import InvalidArgumentError
from oodlit.gate.calibration import calibrate
from oodlit.results import DatasetInfo, held_out


@pytest.fixture
def results() -> Results:
    rng = np.random.default_rng(0)
    parts = [
        pd.DataFrame({
            "key": [f"{name}/{i}" for i in range(number)],
            "dataset": name,
            "group": -1,
            "label": -1,
            "prediction": 0,
            "mine": rng.normal(size=number),
        })
        for name, number in (("val", 60), ("far", 30))
    ]  # fmt: skip
    infos = [DatasetInfo("val", Role.ID, num_samples=60), DatasetInfo("far", Role.OOD)]
    return Results.from_scores(pd.concat(parts), infos, ["mine"], bootstrap=0, tpr=0.9)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_no_image_both_calibrates_and_counts(results: Results, share: float) -> None:
    rest = held_out(results, share)
    used, _ = calibrate(results, "mine", calibration=share)
    counted = rest.scores.loc[rest.scores["dataset"] == "val", "mine"].tolist()
    every = results.scores.loc[results.scores["dataset"] == "val", "mine"].tolist()
    assert sorted([*counted, *used.scores.tolist()]) == sorted(every)
    assert (rest.scores["dataset"] == "far").sum() == 30
    assert rest.settings == results.settings
    again = Results.from_scores(rest.scores, results.datasets, ["mine"], bootstrap=0, tpr=0.9)
    pd.testing.assert_frame_equal(rest.table, again.table)
    assert set(rest.table["n_id"]) == {len(counted)}
    assert (
        rest.run.notes[-1] == f"metrics use {len(counted)} of the 60 images of val; the other images calibrate p-values"
    )
    assert not any("expected 60" in note or "of 60" in note for note in rest.run.notes)


def test_an_image_must_be_left(results: Results) -> None:
    with pytest.raises(InvalidArgumentError, match="leaves none of the 60 ID images"):
        held_out(results, 0.9999)
    with pytest.raises(InvalidArgumentError, match="expected calibration"):
        held_out(results, 1)
