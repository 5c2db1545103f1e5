"""Mean corruption error: against a plain loop, its invariances, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.datamodules import CORRUPTIONS
from oodlit.errors import InvalidArgumentError
from oodlit.metrics import mean_corruption_error

GROUPS = [f"{kind}/{severity}" for kind in CORRUPTIONS[:15] for severity in range(1, 6)]
tables = st.lists(st.floats(0.01, 1), min_size=75, max_size=75).map(
    lambda values: dict(zip(GROUPS, values, strict=True))
)


@given(tables, tables)
def test_it_is_the_mean_of_the_ratios_of_sums(errors: dict[str, float], baseline: dict[str, float]) -> None:
    ours, theirs = (np.array(list(table.values())).reshape(15, 5).sum(1) for table in (errors, baseline))
    assert mean_corruption_error(errors, baseline) == pytest.approx(np.mean(ours / theirs), rel=1e-12)
    backwards = dict(reversed(errors.items()))
    assert mean_corruption_error(backwards, baseline) == mean_corruption_error(errors, baseline)


@given(tables)
def test_the_baseline_itself_has_one(errors: dict[str, float]) -> None:
    assert mean_corruption_error(errors, errors) == pytest.approx(1)


def test_it_is_not_the_mean_error() -> None:
    errors = dict.fromkeys(GROUPS, 0.5)
    baseline = {group: 1.0 if group.startswith("fog") else 0.5 for group in GROUPS}
    assert mean_corruption_error(errors, baseline) == pytest.approx((14 + 0.5) / 15)


def test_relative_to_clean_images() -> None:
    value = mean_corruption_error({"fog/1": 0.5}, {"fog/1": 0.9}, clean=(0.2, 0.4), kinds=["fog"], severities=[1])
    assert value == pytest.approx(0.3 / 0.5)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"fog/3": None}, {}, "errors has no value for 'fog/3'; expected one for each severity of each kind"),
        ({"fog/3": 1.5}, {}, r"errors\['fog/3'\] to be an error from 0 to 1, got 1\.5"),
        ({"fog/3": float("nan")}, {}, r"errors\['fog/3'\] to be an error from 0 to 1, got nan"),
        ({}, {"clean": (0.1, 0.5)}, r"errors for 'gaussian_noise', each minus its clean error, got 0"),
        ({}, {"kinds": ("fog", "fog")}, "at least one kind and one severity, and none twice"),
        ({}, {"severities": ()}, "at least one kind and one severity, and none twice"),
    ],
)
def test_undefined_values_are_errors(change: dict[str, float | None], options: dict[str, object], message: str) -> None:
    errors = {group: value for group, value in (dict.fromkeys(GROUPS, 0.5) | change).items() if value is not None}
    with pytest.raises(InvalidArgumentError, match=message):
        mean_corruption_error(errors, dict.fromkeys(GROUPS, 0.5), **options)


def test_without_clean_errors_the_message_does_not_mention_them() -> None:
    with pytest.raises(InvalidArgumentError, match=r"errors for 'fog', got 0$"):
        mean_corruption_error({"fog/1": 0.5}, {"fog/1": 0.0}, kinds=["fog"], severities=[1])
