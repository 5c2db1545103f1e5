"""Settings that mean nothing are refused in one line, for every detector and every setting that is a number."""

import math
from collections.abc import Iterator

import jaxtyping
import pytest

from oodlit.detectors import NECO, PRO, AdaSCALE, CoRP, Detector, WeiPer, detectors
from oodlit.detectors.contract.class_paths import signature
from oodlit.errors import InvalidArgumentError, UnknownNameError

NUMBERS = [
    (kind, name)
    for kind in detectors().values()
    for name, parameter in signature(kind).parameters.items()
    if parameter.default is None or type(parameter.default) in (int, float)
]
SEEDS = [kind for kind, name in NUMBERS if name == "seed"]


@pytest.fixture(autouse=True)
def _messages_as_users_see_them() -> Iterator[None]:
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda value: getattr(value, "__name__", value))
def test_what_is_no_number_is_refused(kind: type[Detector], name: str) -> None:
    """As text from a shell or a configuration may come."""
    for value in ("1", [1], True, math.nan):
        with pytest.raises((InvalidArgumentError, UnknownNameError), match=kind.__name__):
            kind(**{name: value})
    if signature(kind).parameters[name].default is not None:
        with pytest.raises(InvalidArgumentError, match="None"):
            kind(**{name: None})


def test_there_are_many_numbers() -> None:
    assert len(NUMBERS) > 60
    assert len(SEEDS) == 6


@pytest.mark.parametrize("kind", SEEDS)
def test_seeds_that_no_generator_takes_are_refused_before_the_fit(kind: type[Detector]) -> None:
    assert kind(seed=2**32 - 1).settings["seed"] == 2**32 - 1
    for seed in (-1, 2**32, 2**70):
        with pytest.raises(InvalidArgumentError, match=rf"{kind.__name__}: expected seed to be .*{seed}"):
            kind(seed=seed)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (NECO, {"max_logit": "no"}, "NECO: expected max_logit to be True or False, got 'no'"),
        (NECO, {"max_logit": None}, "NECO: expected max_logit to be True or False, got None"),
        (PRO, {"measure": ["gen"]}, r"PRO: expected measure to be 'gen', 'entropy' or 'msp', got \['gen'\]"),
        (AdaSCALE, {"pixels": 0}, "AdaSCALE: expected pixels to be a positive, finite number, got 0"),
        (AdaSCALE, {"active": 0.0}, "AdaSCALE: expected active to be a positive, finite number, got 0.0"),
        (CoRP, {"gamma": "3"}, "CoRP: expected gamma to be a positive, finite number, got '3'"),
        (WeiPer, {"strength": -1.0}, "WeiPer: expected strength to be a finite number >= 0, got -1.0"),
    ],
)
def test_messages(kind: type[Detector], settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        kind(**settings)
