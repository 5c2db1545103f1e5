"""Spearman's correlation between levels, against scipy and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import spearmanr

from oodlit.errors import InvalidArgumentError
from oodlit.results import rank_correlation

TABLES = st.tuples(st.integers(2, 9), st.integers(3, 6)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.integers(0, 4).map(lambda i: i / 4))
)


@given(TABLES)
def test_equals_scipy_with_ties(table: np.ndarray) -> None:
    found = rank_correlation(table)
    constant = (table == table[0]).all(axis=0)
    assert np.isnan(found[constant]).all()
    assert np.isnan(found[:, constant]).all()
    rest = table[:, ~constant]
    if rest.shape[1] > 2:  # scipy returns a number for two columns, a matrix for more
        np.testing.assert_allclose(found[~constant][:, ~constant], spearmanr(rest).statistic, rtol=0, atol=1e-12)
    assert (np.diag(found)[~constant] == 1).all()


@given(TABLES, st.randoms(use_true_random=False))
def test_order_of_models_and_rising_maps_do_not_matter(table: np.ndarray, random) -> None:
    rows = list(range(len(table)))
    random.shuffle(rows)
    np.testing.assert_array_equal(rank_correlation(table), rank_correlation(np.exp(5 * table[rows]) - 7))
    np.testing.assert_array_equal(rank_correlation(table), rank_correlation(table).T)


def test_by_hand() -> None:
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5
    found = rank_correlation([[0.1, 1.0], [0.2, 2.0], [0.2, 3.0], [0.7, 4.0]])
    assert found[0, 1] == pytest.approx(4.5 / np.sqrt(4.5 * 5), abs=1e-15)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[0.5, 0.4]], "at least two models"),
        ([0.5, 0.4], r"got \(2,\)"),
        ([[0.5, 0.4], [0.5, float("nan")]], "got nan in row 1, column 1"),
    ],
)
def test_bad_tables(table: list, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        rank_correlation(table)
