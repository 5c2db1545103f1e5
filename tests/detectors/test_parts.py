"""Detectors that contain other detectors: which ones fit, given as objects or by name."""

import re
from collections.abc import Callable

import pytest

from oodlit.detectors import (
    ASH,
    DICE,
    KNN,
    MSP,
    SIRC,
    Combined,
    Detector,
    Entropy,
    KLMatching,
    Mahalanobis,
    MahalanobisPlusPlus,
    MaxLogit,
    RankFeat,
    ReAct,
    ViM,
    fit,
)
from oodlit.detectors.contract.class_paths import construct, from_config
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.detectors.statistics import FeatureMean, TrainSample
from oodlit.errors import InvalidArgumentError, UnknownNameError

from .support import small_problem


def test_reshapings_nest() -> None:
    detector = ReAct(then=DICE(percentile=20.0, then=MaxLogit()))
    assert detector.required_needs == {"features", "head", "logits"}
    assert set(detector.required_statistics) == {TrainSample, FeatureMean}
    train, head = small_problem(signed=False)
    fit([detector], [train], head)
    assert detector.then is not None
    assert detector.then.is_fitted
    assert detector.score(train).isfinite().all()


@pytest.mark.parametrize("then", [Mahalanobis(), KLMatching(), ViM(), RankFeat(), "KNN"])
def test_what_cannot_follow_a_reshaping(then: Detector | str) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"requires no fit and reads only logits and features, .*ASH\(\), got"
    ):
        ReAct(then=then)


@pytest.mark.parametrize("kind", [ReAct, ASH, RankFeat])
@pytest.mark.parametrize(("then", "hint"), [(MSP, r"; write MSP\(\)"), (3, "")])
def test_what_is_no_detector_cannot_follow(unchecked: None, kind: type[Detector], then: object, hint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{kind.__name__}: .*{re.escape(repr(then))}.*{hint}"):
        kind(then=then)


@pytest.mark.parametrize(
    ("build", "same"),
    [
        (lambda: ReAct(then="max_logit"), ReAct(then=MaxLogit())),
        (lambda: RankFeat("MSP"), RankFeat(MSP())),
        (lambda: SIRC("Entropy", "KNN"), SIRC(Entropy(), KNN())),
        (lambda: Combined(["Mahalanobis++", KNN(k=2)]), Combined([MahalanobisPlusPlus(), KNN(k=2)])),
        (lambda: construct(ReAct, {"then": "ash"}, Detector), ReAct(then=ASH())),
    ],
)
def test_names_of_detectors_are_accepted_as_parts(build: Callable[[], Detector], same: Detector) -> None:
    assert repr(build()) == repr(same)
    assert repr(from_config(detector_to_config(build()), Detector)) == repr(same)


def test_unknown_names_of_parts() -> None:
    for build in (lambda: ReAct(then="maxlogits"), lambda: SIRC("maxlogits"), lambda: Combined(["maxlogits"])):
        with pytest.raises(UnknownNameError, match=r"'maxlogits'; did you mean 'MaxLogit'|'maxlogits'.*max_logit"):
            build()
