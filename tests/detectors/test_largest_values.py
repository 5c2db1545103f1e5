"""Values near the end of float32 are scored; values that leave float64 when they are squared are refused, by all."""

import re
from dataclasses import replace

import pytest
import torch

from oodlit.base.checks import LARGEST
from oodlit.detectors import Detector, detectors, fit
from oodlit.detectors.contract.every import every_detector
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs
from oodlit.testing.problems import separated_problem

from .support import NEGATIVE_WORDS

SETTINGS = {"knn": {"k": 5}, "nn_guide": {"k": 5}, "mc_dropout": {"passes": 2}}
SETTINGS |= dict.fromkeys(("neg_label", "csp"), NEGATIVE_WORDS)
FLOAT32, FLOAT64 = torch.float32, torch.float64
END_OF_FLOAT64 = torch.finfo(FLOAT64).max
FIELDS = ("logits", "features", "hidden")
ASKS_THE_NETWORK = {"rank_feat"}
"""Gives its map to a network in float32 once more."""


@pytest.fixture(scope="module")
def every() -> dict[str, Detector]:
    made, problem = every_detector(SETTINGS)[0], separated_problem()
    fit([*made.values()], [problem.train], problem.head)
    return made


def grown(outputs: Outputs, dtype: torch.dtype, value: float, fields: tuple[str, ...], row: int = 1) -> Outputs:
    """The outputs with one image whose largest value is `value`, in some fields."""

    def grow(name: str, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.to(dtype, copy=True)
        if name in fields:
            tensor[row] = tensor[row] / tensor[row].abs().max() * value
        return tensor

    hidden = {name: grow("hidden", layer) for name, layer in (outputs.hidden or {}).items()}
    flat = {name: grow(name, outputs.require(name)) for name in ("logits", "features")}
    return replace(outputs, hidden=hidden, **flat)


def read_by(detector: Detector) -> set[str]:
    return set(detector.required_needs) & set(FIELDS)


@pytest.mark.parametrize("fields", [("logits",), ("features", "hidden"), FIELDS])
@pytest.mark.parametrize(("dtype", "value"), [(FLOAT32, 3.4e38), (FLOAT64, LARGEST)])
def test_the_largest_values_have_finite_scores(every, dtype, value, fields) -> None:
    outputs = grown(separated_problem().tests.select(slice(0, 3)), dtype, value, fields)
    assert len(every) == len(detectors())
    for name, detector in every.items():
        if dtype == FLOAT64 and name in ASKS_THE_NETWORK:
            continue
        assert detector.score(replace(outputs)).isfinite().all(), name


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [1.01 * LARGEST, 1e200, END_OF_FLOAT64])
def test_larger_ones_are_refused_by_whoever_reads_them(every, value, field) -> None:
    outputs = grown(separated_problem().tests.select(slice(0, 3)), FLOAT64, value, (field,))
    where = rf"{field}.* \({re.escape('first: ood/0000')}\)"
    refused = 0
    for name, detector in every.items():
        if field not in read_by(detector):
            assert detector.score(replace(outputs)).isfinite().all(), name
            continue
        with pytest.raises(InvalidArgumentError, match=rf"found values beyond 1e\+100 in {where}; scale"):
            detector.score(replace(outputs))
        refused += 1
    assert refused >= {"logits": 20, "features": 25, "hidden": 2}[field]


@pytest.mark.parametrize("value", [1.01 * LARGEST, 1e200, END_OF_FLOAT64])
def test_a_fit_refuses_them_as_well(value) -> None:
    problem = separated_problem()
    train = grown(problem.train, FLOAT64, value, FIELDS, row=3)
    refused = 0
    for name, detector in every_detector(SETTINGS)[0].items():
        if any(kind.needs & set(FIELDS) for kind in detector.required_statistics):
            with pytest.raises(InvalidArgumentError, match=r"values beyond 1e\+100 in .*\(first: train/0003\)"):
                fit([detector], [train], problem.head)
            refused += 1
        elif not detector.required_statistics:
            fit([detector], [train], problem.head)
            assert detector.score(problem.tests).isfinite().all(), name
    assert refused >= 30


def test_a_fit_on_values_at_the_end_of_float32(every) -> None:
    problem = separated_problem()
    train = grown(problem.train, FLOAT32, 3.4e38, FIELDS, row=3)
    for name, detector in every_detector(SETTINGS)[0].items():
        fit([detector], [train], problem.head)
        assert detector.score(problem.tests).isfinite().all(), name


@pytest.mark.parametrize("mask", [-END_OF_FLOAT64, -torch.inf])
def test_classes_are_masked_by_any_value(every, mask) -> None:
    tests = separated_problem().tests.select(slice(0, 3)).to(dtype=FLOAT64)
    logits = tests.require("logits").clone()
    logits[:, logits[1].argmin()] = mask
    outputs = replace(tests, logits=logits)
    for name, detector in every.items():
        assert detector.score(replace(outputs)).isfinite().all(), name
