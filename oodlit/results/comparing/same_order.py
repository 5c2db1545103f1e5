"""Detectors that rank all images in the same order, so that all their metrics agree."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from oodlit.base.roles import Role
from oodlit.results.run_results import RunResults

ALMOST = 0.9999
"""Smallest rank correlation at which two orders count as nearly the same."""


class SameOrder(NamedTuple):
    """Two detectors whose scores order the images alike.

    Args:
        detector: The detector that comes first in the results.
        other: The other detector.
        rank_correlation: Spearman's, over all images; exactly 1 if and only if the orders, with their ties, are equal.
        n: Number of images.
    """

    detector: str
    other: str
    rank_correlation: float
    n: int


def same_order(results: RunResults) -> list[SameOrder]:
    """Find detectors that coincide with an earlier one, over all images except training images.

    Scores that differ only by rounding can swap neighbors, so orders that are almost the same (rank correlation of at
    least .9999) count as well, provided that no single data set departs by more than that: a small data set that has
    moved as a whole does not show in the correlation over all images, but has other metrics. Every detector is named
    once, with the first detector that it coincides with. Constant scores have no order.

    Example:
        >>> import pandas as pd
        >>> from oodlit.results import DatasetInfo, Results
        >>> frame = pd.DataFrame({"key": ["a", "b", "c"], "dataset": ["val", "val", "near"], "group": -1,
        ...     "label": [0, 1, -1], "prediction": 0, "msp": [0.9, 0.5, 0.7], "entropy": [-0.1, -0.9, -0.4],
        ...     "knn": [0.1, 0.2, 0.3]})
        >>> infos = [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD)]
        >>> same_order(Results.from_scores(frame, infos, ["msp", "entropy", "knn"], bootstrap=0))
        [SameOrder(detector='msp', other='entropy', rank_correlation=1.0, n=3)]
    """
    trained = [info.name for info in results.datasets if info.role is Role.TRAIN]
    rows = results.scores[~results.scores["dataset"].isin(trained)]
    sets = pd.factorize(rows["dataset"])[0]
    firsts: dict[str, np.ndarray] = {}
    found = []
    for name in results.detectors:
        ranks = rankdata(rows[name].to_numpy()) if len(rows) else np.zeros(0)
        if not len(rows) or ranks.min() == ranks.max():
            continue
        centred = ranks - ranks.mean()
        for first, other in firsts.items():
            if np.array_equal(centred, other):
                found.append(SameOrder(first, name, 1.0, len(rows)))
                break
            correlation = float(centred @ other / np.sqrt((centred @ centred) * (other @ other)))
            moved = np.bincount(sets, np.square(centred - other)) / np.bincount(sets)
            # The correlation is 1 less the mean of these over all images by twice the variance of the ranks.
            if correlation >= ALMOST and moved.max() <= (1 - ALMOST) * 2 * np.mean(np.square(other)):
                found.append(SameOrder(first, name, min(correlation, float(np.nextafter(1, 0))), len(rows)))
                break
        else:
            firsts[name] = centred
    return found
