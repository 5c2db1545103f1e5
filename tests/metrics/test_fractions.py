"""Shares that come from arithmetic, other types and text are those that were meant."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import oodlit.metrics as m
from oodlit.base.fractions import exact_number
from oodlit.detectors import ASH, DICE, SCALE, VRA, ReAct
from oodlit.detectors.formulas.percentile import percentile
from oodlit.detectors.formulas.shaping import num_kept
from oodlit.errors import InvalidArgumentError
from oodlit.metrics.numerics.ranking import exact_share, smallest_count
from oodlit.metrics.settings import Settings, percent
from oodlit.metrics.uncertainty.bootstrap import percentile_interval, stratified_bootstrap
from oodlit.metrics.uncertainty.intervals import wilson_interval

NINETY_FIVE = [
    0.95,
    1 - 0.05,
    0.1 * 9.5,
    19 * 0.05,
    sum([0.05] * 19),
    sum([0.001] * 950),
    0.7 + 0.25,
    95 / 100,
    np.arange(0, 1, 0.05)[19],
    np.linspace(0, 1, 21)[19],
    np.float64(0.95),
    np.float32(0.95),
    np.float16(0.95),
    np.array(0.95, dtype=np.float32),
    float(np.float32(0.95)),
    np.float32(1) - np.float32(0.05),
    torch.tensor(0.95),
    torch.tensor(0.95, dtype=torch.float64),
    torch.tensor(0.95).item(),
    1 - torch.tensor(0.05),
    float(1 - np.float32(0.05)),
    float(np.nextafter(np.float32(0.95), np.float32(1))),
    float(np.nextafter(np.float32(0.95), np.float32(0))),
    float(np.float32(0.1) * np.float32(9.5)),
    sum([torch.tensor(0.05)] * 19).item(),
    0.95 * 1281167 / 1281167,
    Fraction(19, 20),
    Decimal("0.95"),
    1 - Decimal("0.05"),
    "0.95",
    " 95/100 ",
]


@pytest.mark.parametrize("share", NINETY_FIVE, ids=repr)
def test_a_fraction_is_the_number_that_was_meant(share):
    """0.95 in many spellings, types and results of arithmetic."""
    assert exact_share(share) == Fraction(19, 20)
    assert smallest_count(share, 20) == 19
    assert m.acceptance_threshold(range(20), tpr=share) == 1.0
    assert m.fpr_at_tpr(range(20), [0.5, 1.0], tpr=share) == 0.5
    settings = object.__new__(Settings)  # past the run-time check of annotations
    for name, value in {**vars(Settings()), "tpr": share, "confidence": share, "der": (share,)}.items():
        object.__setattr__(settings, name, value)
    settings.__post_init__()
    assert (settings.fpr_name, settings.accepted_name, settings.der_names) == ("fpr95", "accepted95", ["der95"])
    assert settings == Settings(der=(0.95,))
    assert wilson_interval(3, 31, confidence=share) == wilson_interval(3, 31)
    replicates = np.arange(101.0)
    assert percentile_interval(replicates, confidence=share) == percentile_interval(replicates)


@pytest.mark.parametrize(
    ("share", "meant"),
    [
        (1 - 0.9, Fraction(1, 10)),
        (0.7 + 0.2, Fraction(9, 10)),
        (sum([0.1] * 10), Fraction(1)),
        (1.0000000000000002, Fraction(1)),
        (5 / 6, Fraction(5, 6)),
        (1 - 1 / 6, Fraction(5, 6)),
        (47_499 / 50_001, Fraction(47_499, 50_001)),
        (0.9500001, Fraction(9_500_001, 10_000_000)),
        (0.999999999, 1 - Fraction(1, 10**9)),
        (np.float32(0.950001), Fraction(950_001, 1_000_000)),
        (1 - 2**-15, 1 - Fraction(1, 2**15)),
        (1e-300, Fraction(1, 10**300)),
        (float(1 - np.float32(0.9)), Fraction(1, 10)),
        (float(1 - np.float32(0.99)), Fraction(1, 100)),
        (float(np.float32(0.7) + np.float32(0.2)), Fraction(9, 10)),
        ((1 - torch.tensor(0.995)).item(), Fraction(5, 1000)),
        (7782 / 8192, Fraction(7782, 8192)),
        (498_074 / 2**19, Fraction(498_074, 2**19)),
        (1_217_109 / 1_281_167, Fraction(1_217_109, 1_281_167)),
        (1 - 64_058 / 1_281_167, Fraction(1_217_109, 1_281_167)),
        (Fraction(1_217_109, 1_281_167), Fraction(1_217_109, 1_281_167)),
        (float(Fraction(1_217_109, 1_281_167)), Fraction(1_217_109, 1_281_167)),
        (13_487_266 / 14_197_122, Fraction(13_487_266, 14_197_122)),
        (1_281_166 / 1_281_167, Fraction(1_281_166, 1_281_167)),
        (1 / 1_281_167, Fraction(1, 1_281_167)),
    ],
)
def test_exact_fractions_are_preserved(share, meant):
    assert exact_share(share) == meant


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_ratios_of_counts_are_exact(a, b):
    count, total = min(a, b), max(a, b)
    assert smallest_count(count / total, total) == count
    assert smallest_count(1 - (total - count) / total, total) == count


@given(st.integers(1, 1_281_167), st.sampled_from([1_281_167, 1_281_168, 2_000_003, 9_999_991, 14_197_122]))
def test_ratios_of_counts_of_large_training_sets_are_exact(count, total):
    """But for one in ten thousand, which is as near to a decimal of nine places as rounding allows."""
    assume(count == total or abs(round(count / total, 9) - count / total) > 1e-13)
    assert smallest_count(count / total, total) == count
    assert smallest_count(1 - (total - count) / total, total) == count
    assert Settings(tpr=count / total).tpr == count / total


@given(st.integers(1, 999))
def test_decimals_survive_arithmetic_in_single_precision(thousandths):
    share, one = Fraction(thousandths, 1000), np.float32(1)
    written = np.float32(float(share))
    for found in (written, one - (one - written), (written + one) - one, written / np.float32(3) * np.float32(3)):
        assert exact_number(found) == share
        if Fraction(float(found)).denominator > 10**6:  # others may be counts over a power of two
            assert exact_number(float(found)) == share


@given(st.integers(1, 10**6 - 1), st.sampled_from([10**k for k in range(1, 7)]))
def test_decimals_survive_arithmetic(numerator, scale):
    share = Fraction(numerator % scale or 1, scale)
    written = float(share)
    for found in (written, 1 - (1 - written), written / 100 * 100, (written + 0.3) - 0.3, np.float64(written)):
        assert exact_number(found) == share


def test_unit_test_limits_are_exact():
    accepted_one_of_ten = [[0] * 9 + [50]]
    for limit in (0.1, 1 - 0.9, np.float32(0.1), "0.1", 0.3 - 0.2):
        assert m.unit_test_failures(range(100), accepted_one_of_ten, limit=limit) == 0
    with_a_little_less = 0.0999999
    assert m.unit_test_failures(range(100), accepted_one_of_ten, limit=with_a_little_less) == 1


def test_the_bootstrap_uses_the_same_threshold():
    scores, groups = np.arange(20.0)[None], np.zeros(20, dtype=int)
    expected = stratified_bootstrap(scores, scores - 1, groups, tpr=0.9, repetitions=20)
    found = stratified_bootstrap(scores, scores - 1, groups, tpr=0.7 + 0.2, repetitions=20)
    assert np.array_equal(found.fpr, expected.fpr)


def test_percentiles_are_the_numbers_that_were_meant():
    assert num_kept(100, 100 * 0.07) == num_kept(100, 7.0) == 93
    assert num_kept(1000, 0.15 * 100) == num_kept(1000, 15) == 850
    # A tie goes to the even number, as in the authors' code; 57.5 comes out as 57.49999999999999 in floats.
    assert [num_kept(1000, p) for p in (5.75, 100 * 0.0575)] == [942] * 2
    assert percentile(torch.arange(101.0), 100 * 0.07) == 7.0
    for make in (ASH, SCALE, DICE, ReAct):
        assert make(percentile=100 * (1 - 0.1)).percentile == 90.0
        assert repr(make(percentile=np.float64(60))) == f"{make.__name__}(percentile=60.0)"
    assert VRA(low=100 * 0.07).low == 7.0


def test_priors_within_rounding_of_one_keep_their_odds():
    assert 0 < m.aupr_error([1.0, 2.0], [1.5], prior=1 - 2**-53) < 1e-12
    assert m.aupr_success([1.0, 2.0], [1.5], prior=1 - 0.9) == m.aupr_success([1.0, 2.0], [1.5], prior=0.1)


@pytest.mark.parametrize("bad", ["x", "", "nan", "1/0", "inf", True, None, [0.95], 0, -0.1, 1.0000001, Decimal("NaN")])
def test_invalid_fractions_are_refused(bad):
    with pytest.raises(InvalidArgumentError, match=r"expected tpr to be in \(0, 1\]"):
        exact_share(bad)
    assert percent(0.95) == "95"
