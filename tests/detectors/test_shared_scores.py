"""Equal detectors share their scores and statistics, alone and as parts of others."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from oodlit.base.errors import NotFittedError
from oodlit.detectors import KNN, MSP, SIRC, Combined, Detector, Energy, Mahalanobis, TrainFreeDetector, fit, load, save
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.outputs import Outputs

from .support import small_problem


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often detectors compute scores, by class."""
    calls: Counter[str] = Counter()
    for kind in (Mahalanobis, Energy, KNN):

        def score(self: Detector, outputs: Outputs, kind: type = kind, own: Any = kind._score) -> torch.Tensor:
            calls[kind.__name__] += 1
            return own(self, outputs)

        monkeypatch.setattr(kind, "_score", score)
    return calls


def several() -> dict[str, Detector]:
    return {
        "mahalanobis": Mahalanobis(),
        "energy": Energy(),
        "knn": KNN(k=3),
        "combined": Combined([Mahalanobis(), Energy(), KNN(k=3)]),
        "two": Combined([KNN(k=3), Mahalanobis(), MSP()]),
        "sirc": SIRC(s2=KNN(k=3)),
        "other": KNN(k=4),
    }


def test_a_part_is_computed_once_per_batch(counted: Counter[str], tmp_path: Path) -> None:
    """Alone and in three combinations, for the training sample and for a batch, also after loading."""
    train, head = small_problem()
    detectors = several()
    fit(list(detectors.values()), [train], head)
    assert counted == {"Mahalanobis": 1, "KNN": 1, "Energy": 1}  # the sample of the training images
    save(detectors, tmp_path)
    for chosen in (detectors, load(tmp_path)[0]):
        counted.clear()
        outputs = Outputs(train.logits, train.features)
        scores = {name: detector.score(outputs) for name, detector in chosen.items()}
        assert counted == {"Mahalanobis": 1, "KNN": 2, "Energy": 1}
        for name, detector in chosen.items():
            assert torch.equal(detector.score(Outputs(train.logits, train.features)), scores[name])
    loaded = load(tmp_path)[0]
    assert loaded["knn"].bank is loaded["combined"].nested_detectors()[2].bank is loaded["sirc"].s2.bank


def test_each_statistic_is_accumulated_once() -> None:
    statistics = make_statistics(list(several().values()))
    assert sorted(kind.__name__ for kind in statistics) == ["ClassMoments", "FeatureBank", "TrainSample"]


def test_fits_on_other_images_are_not_confused(counted: Counter[str]) -> None:
    train, head = small_problem()
    one, other = Combined([KNN(k=3)]), KNN(k=3)
    fit([one], [train], head)
    fit([other], [train.select(slice(0, 50))], head)
    outputs = Outputs(train.logits, train.features)
    counted.clear()
    one.score(outputs), other.score(outputs)
    assert counted["KNN"] == 2
    energy = Energy()
    first = energy.score(outputs)
    energy.temperature = 3.0
    assert not torch.equal(energy.score(outputs), first)


class Own(TrainFreeDetector):
    """A user's detector, which could keep anything."""

    needs = frozenset({"logits"})
    reference = MSP.reference
    calls = 0

    def _score(self, outputs: Outputs) -> torch.Tensor:
        Own.calls += 1
        return outputs.require("logits").amax(dim=1)


def test_custom_parts_share_nothing() -> None:
    train, head = small_problem()
    alone, detector = Own(), Combined([Own(), Energy()])
    fit([detector], [train], head)
    Own.calls = 0
    outputs = Outputs(train.logits, train.features)
    alone.score(outputs), detector.score(outputs), detector.score(outputs)
    assert Own.calls == 3
    assert not detector.is_built_in


def test_a_changed_fit_is_scored_anew() -> None:
    """The same batch is scored by one detector with two states, alone and as a part of another."""
    train, _ = small_problem(width=6, classes=4, signed=False, seed=0)
    one, other = Mahalanobis(), Mahalanobis()
    fit([one], [train])
    fit([other], [small_problem(width=6, classes=4, signed=False, seed=5)[0]])
    twins = [copy.deepcopy(one), copy.deepcopy(one)]
    twins[0].score(train)
    twins[0].load_state_dict(other.state_dict())
    assert torch.equal(twins[0].score(train), other.score(train))
    assert torch.equal(twins[1].score(train), one.score(train))
    inner = Combined([MSP()], "validation")
    inner.calibrate([train])
    outer = Combined([inner, MSP()], "validation")
    outer.calibrate([train])
    before = outer.score(train)
    inner_again = next(iter(outer.nested_detectors()))
    assert isinstance(inner_again, Combined)
    inner_again.calibrate([train.select(slice(0, 9))])
    with pytest.raises(NotFittedError, match="a part was fitted or calibrated after the combination"):
        outer.score(train)
    outer.calibrate([train])
    assert not torch.equal(outer.score(train), before)
