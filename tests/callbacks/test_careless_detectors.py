"""A detector that writes to what others read is left out of a run, and leaves no trace."""

import pandas as pd
import pytest
import torch

from oodlit.detectors import ASH, KNN, MSP, Detector, Energy, Mahalanobis, NNGuide, Reference, TrainFreeDetector, ViM
from oodlit.detectors.formulas.gaussian import class_gaussians
from oodlit.detectors.statistics import ClassMoments, FeatureBank, TrainSample
from oodlit.errors import InvalidArgumentError
from tests.callbacks.support import make_streams, run

pytestmark = pytest.mark.filterwarnings("ignore:.*undefined .NaN.")

COUNTED = {
    "logits": lambda o: o.logits[:, 0].sub_(1),
    "features": lambda o: o.features.mul_(2),
    "labels": lambda o: o.labels.zero_(),
    "groups": lambda o: o.groups.fill_(1),
    "images": lambda o: o.images.zero_(),
    "max_logits": lambda o: o.max_logits.sub_(1),
}
"""Writes that torch counts: the detector is caught."""
HIDDEN = {
    "logits.data": lambda o: o.logits.data.sub_(1),
    "features.numpy": lambda o: o.features.numpy().fill(0),
    "logits.dlpack": lambda o: torch.from_dlpack(o.logits).zero_(),
    "images.data": lambda o: o.images.data.zero_(),
    "keys": lambda o: o.keys.reverse(),
}
"""Writes that nothing counts."""


class Writes(TrainFreeDetector):
    needs = frozenset({"logits", "images"})
    reference = Reference("t", "a", "v", 2024, "https://example.org")

    def __init__(self, write: str = "logits") -> None:
        super().__init__()
        self.write = write

    def _score(self, outputs):
        (COUNTED | HIDDEN)[self.write](outputs)
        return outputs.logits[:, 0]


class WritesToLogits(TrainFreeDetector):
    needs = frozenset({"logits"})
    reference = Writes.reference

    def _score(self, outputs):
        return outputs.logits.data.zero_()[:, 0]


class Reads(TrainFreeDetector):
    """Another one that is none of oodlit's own."""

    needs = frozenset({"logits", "features", "images"})
    reference = Reference("t", "a", "v", 2024, "https://example.org")

    def _score(self, outputs):
        return outputs.max_logits + outputs.features.sum(dim=1) + outputs.images.mean(dim=(1, 2, 3))


def others():
    others = (Energy(), MSP(), Mahalanobis(), ViM(), KNN(k=3), NNGuide(k=3), Reads())
    return {type(detector).__name__.lower(): detector for detector in others}


@pytest.fixture(scope="module")
def expected():
    return run(others()).results


@pytest.mark.parametrize("write", [*COUNTED, *HIDDEN])
def test_a_detector_that_writes_to_a_batch_reaches_no_other(write, expected):
    results = run({"writes": Writes(write), **others()}).results
    if write in COUNTED:
        reason = results.run.not_applicable["writes"]
        assert f"{Writes(write)!r} wrote to tensors that it shares with other detectors: {write};" in reason
        assert results.detectors == tuple(others())
    pd.testing.assert_frame_equal(results.scores[expected.scores.columns], expected.scores, check_exact=True)


def test_one_inside_a_detector_of_oodlit_reaches_no_other(expected):
    results = run({"ash": ASH(then=WritesToLogits()), "first": Writes(), **others()}).results
    assert set(results.run.not_applicable) == {"first"}
    pd.testing.assert_frame_equal(results.scores[expected.scores.columns], expected.scores, check_exact=True)


def test_without_training_images_and_in_strict_runs():
    without = make_streams(with_train=False)
    results = run({"w": Writes(), "energy": Energy(), "msp": MSP()}, streams=without).results
    assert results.detectors == ("energy", "msp")
    with pytest.raises(InvalidArgumentError, match=r"Writes\(\) wrote to .*: logits;"):
        run({"energy": Energy(), "w": Writes()}, streams=without, strict=True)


AT_FIT = {
    "state": lambda statistics, head: statistics[ClassMoments].counts,
    "column": lambda statistics, head: statistics[TrainSample].column("features"),
    "sample": lambda statistics, head: statistics[TrainSample].outputs.require("features"),
    "bank": lambda statistics, head: statistics[FeatureBank].bank()[0],
    "memo": lambda statistics, head: class_gaussians(statistics)["whiten"],
    "head": lambda statistics, head: head.weight,
}


class Greedy(Detector):
    """Writes to what others are fitted on."""

    needs = frozenset({"features", "head", "labels"})
    statistics = (ClassMoments, TrainSample, FeatureBank)
    reference = Reference("t", "a", "v", 2024, "https://example.org")

    def __init__(self, write: str, counted: bool) -> None:
        super().__init__()
        self.write, self.counted = write, counted

    def _fit(self, statistics, head):
        shared = AT_FIT[self.write](statistics, head)
        (shared if self.counted else shared.data).mul_(2)

    def _score(self, outputs):
        return outputs.feature_norms


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("write", AT_FIT)
def test_a_fit_that_writes_to_what_is_shared_reaches_no_other(write, first, counted, expected):
    """Others that were fitted before hold views of what is shared, and so does the network of its head."""
    greedy = {"greedy": Greedy(write, counted)}
    results = run(greedy | others() if first else others() | greedy).results
    if counted:
        assert "other detectors are fitted on" in results.run.not_applicable["greedy"]
        assert results.detectors == tuple(others())
    pd.testing.assert_frame_equal(results.scores[expected.scores.columns], expected.scores, check_exact=True)
