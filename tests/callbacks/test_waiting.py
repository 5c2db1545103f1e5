"""Detectors queue their work on a device and do not wait for it in between; what is unusual is done again with care."""

import math
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oodlit.base.checks import check_usual, deferred_checks
from oodlit.detectors import MSP, SCALE, Detector, LaRD, Mahalanobis, detectors, fit
from oodlit.outputs import Outputs
from oodlit.runs.time_record import ms_per_image
from oodlit.scoring.scoring import MOST_UNUSUAL, Scoring
from oodlit.testing.problems import separated_problem
from tests.detectors.support import NEGATIVE_WORDS

SMALL = {"knn": {"k": 5}, "nn_guide": {"k": 5}} | dict.fromkeys(("neg_label", "csp"), NEGATIVE_WORDS)
WAITING = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "_unique2", "unique_dim", "masked_select"}
"""What gives a number, or a shape that depends on values, to Python."""


class WaitsError(Exception):
    """The device would be waited for."""


class NoWaiting(TorchDispatchMode):
    """Raises where it would be; a number that a detector keeps on the CPU, whatever its device, may be looked at."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        parts = [part for part in detector.modules() if isinstance(part, Detector)]
        buffers = [(part, name, b) for part in parts for name, b in part._buffers.items() if b is not None]
        self.numbers = {b.data_ptr() for part, name, b in buffers if name in part.host_buffers and not b.ndim}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        if name == "_local_scalar_dense" and args[0].data_ptr() in self.numbers:
            return func(*args, **(kwargs or {}))
        by_mask = name in ("index", "index_put_") and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in WAITING or by_mask:
            raise WaitsError(name)
        return func(*args, **(kwargs or {}))


def fitted() -> dict[str, Detector]:
    """Every detector that reads logits, features and head, fitted."""
    problem, made = separated_problem(), {}
    for name, kind in detectors().items():
        try:
            detector = kind(**SMALL.get(name, {}))
        except TypeError:  # it wants to be told something
            continue
        if detector.required_needs <= {"logits", "features", "head", "labels"}:
            made[name] = detector
    fit([*made.values()], [problem.train], problem.head)
    return made


@pytest.fixture(scope="module")
def every():
    return fitted()


def fresh(rows: slice = slice(None)) -> Outputs:
    tests = separated_problem().tests.select(rows)
    return Outputs(tests.logits, tests.features, keys=[f"far/{i}" for i in range(len(tests))])


def scoring(chosen, *, later: bool) -> Scoring:
    made = Scoring(chosen, strict=False)
    made.defers_on = frozenset({"cpu"} if later else ())
    return made


def test_no_detector_waits_for_the_device(every):
    assert len(every) >= 35
    waited = set()
    for name, detector in every.items():
        outputs = fresh()
        try:
            with torch.inference_mode(), deferred_checks(), NoWaiting(detector):
                detector.score(outputs)
        except WaitsError:
            waited.add(name)
    assert not waited


def test_the_search_among_hidden_means_does_not_wait():
    values = separated_problem().train.features
    outputs = Outputs(features=values, hidden={"feature_map": values})
    detector = LaRD(density="knn", k=5)
    fit([detector], [outputs])
    with torch.inference_mode(), deferred_checks(), NoWaiting(detector):
        assert len(detector.score(outputs)) == len(values)


def test_scores_are_the_same_whenever_one_looks(every):
    with torch.inference_mode():
        later, at_once = (scoring(every, later=choice).score(fresh(), "far") for choice in (True, False))
    assert later.keys() == at_once.keys() == every.keys()
    for name, values in later.items():
        assert torch.equal(values, at_once[name]), name


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_an_unusual_batch_fails_as_it_does_with_care(every, bad):
    chosen = {name: every[name] for name in ("msp", "mahalanobis", "react", "vim", "fdbd", "gen")}
    outputs = fresh(slice(0, 6))
    features = outputs.features.clone()
    features[2] = bad
    outputs = replace(outputs, features=features)
    later, with_care = scoring(chosen, later=True), scoring(chosen, later=False)
    one, other = later.score(outputs, "far"), with_care.score(replace(outputs), "far")
    assert later.failed == with_care.failed
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_masked_logits_and_negative_features_are_seen(every):
    chosen = {"fdbd": every["fdbd"], "msp": every["msp"], "scale": SCALE()}
    fit([chosen["scale"]], [separated_problem().train], separated_problem().head)
    outputs = fresh(slice(0, 5))
    logits, features = outputs.logits.clone(), outputs.features.clone()
    logits[:, 1], features[0, 0] = -math.inf, -1.0
    outputs = replace(outputs, logits=logits, features=features)
    later, with_care = scoring(chosen, later=True), scoring(chosen, later=False)
    one, other = later.score(outputs, "far"), with_care.score(replace(outputs), "far")
    assert later.failed == with_care.failed
    assert "scale" in later.failed
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_where_the_usual_is_unusual_nobody_takes_it_for_granted():
    class Doubting(MSP.__mro__[1]):  # as train-free as MSP, and never sure
        needs, reference = MSP.needs, MSP.reference
        passes = 0

        def _score(self, outputs):
            Doubting.passes += 1
            check_usual(torch.tensor(False))
            return outputs.max_logits

    chosen = scoring({"doubting": Doubting()}, later=True)
    chosen._foreign = set()
    for _ in range(MOST_UNUSUAL + 5):
        chosen.score(fresh(), "far")
    assert Doubting.passes == 2 * MOST_UNUSUAL + 5
    assert ms_per_image([chosen.clock.state(wait=True)]).keys() == {"doubting"}


def test_detectors_of_others_are_always_scored_with_care():
    class Mine(MSP.__mro__[1]):
        needs, reference = MSP.needs, MSP.reference

        def _score(self, outputs):
            assert check_usual(torch.tensor(False)) is False
            return outputs.max_logits

    assert scoring({"mine": Mine(), "msp": MSP()}, later=True).score(fresh(), "far").keys() == {"mine", "msp"}


def test_looking_later_ends_with_its_block():
    with deferred_checks() as granted:
        assert check_usual(torch.tensor(False))
    assert not check_usual(torch.tensor(False))
    assert len(granted) == 1


def test_a_row_in_doubt_is_refined_as_before():
    """Features at a class mean, of classes far apart: products alone give the distance without a digit."""
    problem = separated_problem()
    far = (
        problem.train.features.double()
        + 1e7 * torch.eye(6, problem.train.features.shape[1]).double()[problem.train.labels]
    )
    detector, train = Mahalanobis(), Outputs(features=far, labels=problem.train.labels)
    fit([detector], [train], None)
    outputs = Outputs(features=far[:8], keys=[str(i) for i in range(8)])
    one = scoring({"mahalanobis": detector}, later=True).score(outputs, "far")["mahalanobis"]
    assert torch.equal(one, detector.score(Outputs(features=far[:8])))
