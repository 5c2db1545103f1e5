"""Detectors of one order: monotone maps of each other, and nothing else."""

import numpy as np
import pandas as pd
import pytest

from oodlit.detectors import detectors
from oodlit.results import DatasetInfo, Results
from oodlit.results.comparing.same_order import ALMOST, same_order
from oodlit.roles import Role
from tests.report.problems import make_results


def with_scores(**columns: np.ndarray) -> Results:
    full = make_results(bootstrap=0)
    frame = full.scores.assign(**columns)
    return Results.from_scores(frame, full.datasets, [*full.detectors, *columns], bootstrap=0)


def test_monotone_maps_coincide_and_others_do_not() -> None:
    msp = make_results(bootstrap=0).scores["msp"].to_numpy(dtype=float)
    found = same_order(with_scores(cube=msp**3, negative=-msp, constant=np.ones(len(msp)), flat=np.ones(len(msp))))
    assert [(pair.detector, pair.other, pair.rank_correlation) for pair in found] == [("msp", "cube", 1.0)]
    assert found[0].n == len(msp)


def test_rounding_is_almost_the_same_order() -> None:
    """Two neighbours are exchanged: no longer the same order, and the correlation says so."""
    msp = make_results(bootstrap=0).scores["msp"].to_numpy(dtype=float)
    first, second = np.argsort(msp)[100:102]
    swapped = msp.copy()
    swapped[[first, second]] = msp[[second, first]]
    [pair] = same_order(with_scores(swapped=swapped))
    assert (pair.detector, pair.other) == ("msp", "swapped")
    assert 0.9999 < pair.rank_correlation < 1


def test_a_small_set_that_moves_is_no_rounding() -> None:
    """30 of 10 030 images move by 6 % of the scale: hardly seen in the correlation, and another FPR."""
    inside, ood = np.arange(10_000) / 10_000, 0.03 + np.arange(30) / 750
    key = np.arange(10_030).astype(str)
    frame = pd.DataFrame({"key": key, "dataset": "val", "group": -1, "label": -1, "prediction": -1})
    frame.loc[10_000:, "dataset"] = "far"
    frame["one"], frame["two"] = np.concatenate([inside, ood]), np.concatenate([inside, ood + 0.06])
    infos = [DatasetInfo("val", Role.ID), DatasetInfo("far", Role.OOD)]
    results = Results.from_scores(frame, infos, ["one", "two"], bootstrap=0)
    assert frame["one"].corr(frame["two"], method="spearman") > ALMOST
    assert results.value("fpr95", dataset="far", detector="one") < 0.55
    assert results.value("fpr95", dataset="far", detector="two") == 1
    assert same_order(results) == []


def test_ties_are_part_of_the_order() -> None:
    msp = make_results(bootstrap=0).scores["msp"].to_numpy(dtype=float)
    assert same_order(with_scores(coarse=np.round(msp))) == []


@pytest.mark.parametrize("key", sorted(key for key, kind in detectors().items() if kind.same_order_as))
def test_declared_reasons_name_detectors(key: str) -> None:
    for other, reason in detectors()[key].same_order_as.items():
        assert other in detectors()
        assert other != key
        assert reason[0].islower()
        assert not reason.endswith(".")
