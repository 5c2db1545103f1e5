"""Spearman's correlation between the levels of a pool: do models keep their order across severities?"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float64
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from oodlit.base.checks import check_names
from oodlit.base.errors import InvalidArgumentError
from oodlit.results.evaluation.pool_levels import LEVEL_NAMES
from oodlit.results.run_results import RunResults
from oodlit.results.views.pools import levels_of_runs


def rank_correlation(values: ArrayLike) -> Float64[np.ndarray, "levels levels"]:
    """Spearman's rank correlation between the columns of a table.

    The correlation of the ranks of two columns over the rows; equal values share the mean of their ranks.

    Args:
        values: Shape (models, levels), a row per model, finite; at least two models.

    Returns:
        Symmetric; 1 on the diagonal. NaN where a column has the same value in all rows: nothing is ranked there.

    Raises:
        InvalidArgumentError: The shape differs, there are fewer than two models, or a value is not finite.

    Example:
        >>> rank_correlation([[0.9, 0.6, 0.3], [0.8, 0.5, 0.4], [0.7, 0.4, 0.5]])
        array([[ 1.,  1., -1.],
               [ 1.,  1., -1.],
               [-1., -1.,  1.]])
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or len(table) < 2 or table.shape[1] < 1:
        raise InvalidArgumentError(
            f"rank_correlation: expected shape (models, levels) with at least two models, got {table.shape}"
        )
    if not np.isfinite(table).all():
        model, level = np.argwhere(~np.isfinite(table))[0]
        raise InvalidArgumentError(
            f"rank_correlation: expected finite values, got {table[model, level]} in row {model}, column {level}; leave"
            " out this row (a model or a detector)"
        )
    # Twice the ranks are whole numbers, and so are their sums of products: nothing is rounded before the last division.
    ranks = (2 * rankdata(table, axis=0)).astype(np.int64) - (len(table) + 1)
    products = ranks.T @ ranks
    own = np.diag(products).astype(np.float64)
    with np.errstate(invalid="ignore"):  # 0 / 0 is the documented NaN
        return np.asarray(products / np.sqrt(np.outer(own, own)))


def level_correlation(
    runs: Mapping[str, RunResults], dataset: str, detectors: Sequence[str], *, metric: str = "auroc"
) -> pd.DataFrame:
    """Spearman's correlation between the levels of a pool, over models and detectors.

    With one detector and several runs, the correlation shows whether models keep their order from level to level; with
    several detectors of one run, whether detectors do.

    Args:
        runs: Results by name, one per model, of the same pool.
        dataset: Name of the pool in all of them.
        detectors: Detectors of all of them.
        metric: "auroc" or the name of the FPR.

    Returns:
        Rows and columns s0, s1, ...; NaN where all have the same value.

    Raises:
        InvalidArgumentError: There are fewer than two curves, the runs are of different pools, or a level is undefined.
        UnknownNameError: A run has no such data set or detector.
    """
    check_names("level_correlation", "detectors", detectors)
    for results in runs.values():
        detectors = results.resolve_detectors(*detectors)
    if len(runs) * len(detectors) < 2:
        raise InvalidArgumentError(
            f"level_correlation: expected at least two runs or two detectors, got {len(runs)} and {len(detectors)}"
        )
    table = levels_of_runs(runs, dataset, metric)
    own = table[table.index.get_level_values("detector").isin(detectors)]
    found = rank_correlation(own[list(LEVEL_NAMES)].to_numpy())
    return pd.DataFrame(found, index=list(LEVEL_NAMES), columns=list(LEVEL_NAMES))
