"""Two real processes give what one gives: uneven ranks, an empty rank, no image at all."""

import json
import warnings

import pytest

from tests.callbacks.processes import check_ended, run_function
from tests.metrics import process_worker


@pytest.mark.ddp
def test_uneven_and_empty_ranks_equal_one_process(tmp_path):
    each = [{"RANK": str(rank)} for rank in range(2)]
    check_ended(run_function(process_worker.main, tmp_path, folder=tmp_path / "logs", each=each, timeout=150))
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    told = [one.pop("none warnings") for one in found]
    assert told == [["UndefinedMetricWarning"], []]  # the first process warns for all
    assert found[0] == found[1]
    alone = process_worker.values(list(range(12)))
    assert set(alone) == set(process_worker.METRICS)
    assert found[0]["uneven"] == alone
    assert found[0]["empty"] == alone
    together = {name: value for name, value in alone.items() if name not in process_worker.DICTIONARIES}
    assert process_worker.collected(list(range(12))) == together
    assert found[0]["uneven collected"] == found[0]["empty collected"] == together
    assert found[0]["uneven warnings"] == found[0]["empty warnings"] == []
    assert all("nan" in value for value in found[0]["none"].values())
    assert "ood_scores: 1 of 1 scores is NaN" in found[0]["nan"]


def test_the_worker_covers_every_metric():
    from tests.metrics.test_registry import CLASSES

    assert sorted(process_worker.METRICS) == sorted(CLASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all("nan" not in value for value in process_worker.values(list(range(12))).values())
