"""Memory of a fit: what is announced before it, and that one large batch takes no more."""

from collections.abc import Mapping
from functools import partial

import pytest
import torch

from oodlit.detectors import DDU, KNN, MSP, CoRP, LaRD, Mahalanobis, WeiPer
from oodlit.detectors.contract.fitting import estimate_bytes, make_statistics
from oodlit.detectors.statistics import FeatureBank, Statistics
from oodlit.detectors.statistics.smallest_rows import SmallestRows
from oodlit.outputs import BackboneFacts

from .statistics_support import assert_same, facts_of, train
from .support import cut


def test_one_large_batch_stays_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bank of few rows is cut while a batch comes in, not after it."""
    longest, append = 0, SmallestRows.append

    def watched(store: SmallestRows, columns: Mapping[str, torch.Tensor]) -> None:
        nonlocal longest
        append(store, columns)
        longest = max(longest, len(store))

    monkeypatch.setattr(SmallestRows, "append", watched)
    bank, whole = FeatureBank(rows=600), train(9000)
    bank.update(whole)
    assert longest <= 2 * 600
    small = FeatureBank(rows=600)
    for batch in cut(whole, 100):
        small.update(batch)
    assert_same(facts_of(bank), facts_of(small))


def test_memory_is_estimated() -> None:
    facts = BackboneFacts(width=768, num_classes=1000, num_train=1_281_167)
    megabytes = {
        repr(d): estimate_bytes(make_statistics([d]), facts) / 1e6
        for d in (Mahalanobis(), KNN(), KNN(bank_size=100_000), DDU("diagonal"), DDU("full"), LaRD("feature_map"))
    }
    assert megabytes["Mahalanobis()"] == pytest.approx(45.3, rel=0.01)
    assert megabytes["KNN()"] == pytest.approx(4023, rel=0.01)
    assert megabytes["KNN(bank_size=100000)"] == pytest.approx(347.4, rel=0.01)
    assert megabytes["DDU(covariance='diagonal')"] == pytest.approx(12.3, rel=0.01)
    assert megabytes["DDU(covariance='full')"] == pytest.approx(4718, rel=0.01)
    assert megabytes["LaRD()"] == pytest.approx(173.7, rel=0.01)


def test_memory_that_detectors_keep_is_estimated() -> None:
    """Beside the statistics: perturbed weights where all of them are kept, axes of random features."""
    facts = BackboneFacts(width=2048, num_classes=1000, num_train=1_281_167)
    weights = partial(WeiPer, perturb="weights")
    detectors = (MSP(), WeiPer(), weights(), weights(copies=200), CoRP(size=4096))
    kept = [estimate_bytes(Statistics(), facts, [d]) / 1e6 for d in detectors]
    assert kept == pytest.approx([0, 0.8, 1638.4, 16.384, 201.3], rel=0.001)
    assert estimate_bytes(make_statistics([CoRP()]), facts) > 8 * 4096**2
