"""Paired comparison of detectors over OOD classes."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.base.roles import Role
from oodlit.metrics.uncertainty.intervals import check_confidence
from oodlit.results.glossary import better_of
from oodlit.results.run_results import RunResults

_EXACT_UP_TO = 14
"""With this many classes, 2 ** 14 sign patterns are enumerated; beyond it they are drawn."""


def compare(
    results: RunResults,
    detector: str,
    *others: str,
    metric: str | None = None,
    dataset: str | None = None,
    test: str = "permutation",
    confidence: float = 0.95,
    repetitions: int = 10_000,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare one detector with others, paired over the OOD classes of every data set.

    For each class, the difference `detector - other` of `metric` is computed. The mean difference has a bootstrap
    interval over classes and a two-sided p-value; p-values are corrected over all rows by Holm's method. The classes
    are the sampling unit, so the test answers whether the order would hold for other classes of this kind. A few
    classes cannot answer this, whatever their differences; see `undecidable`.

    Args:
        results: The results that hold both detectors.
        detector: Name of detector A.
        others: Names of the detectors B; none = all others.
        metric: A metric with values per class; None = the FPR of the results.
        dataset: One data set; None = all OOD sets with at least two classes.
        test: "permutation" (sign flips of the differences, exact up to 14 classes) or "sign" (exact binomial test of
            the signs, ties left out).
        confidence: Nominal coverage of the interval.
        repetitions: Number of bootstrap draws and, with more than 14 classes, of sign patterns.
        seed: Seed of the random numbers.

    Returns:
        One row per data set and other detector: `dataset, metric, detector, other, over, n_classes, mean, mean_other,
        difference, ci_low, ci_high, wins, losses, ties, p_value, p_corrected, better, reason`. `over` is "classes",
        the paired unit. `better` is the detector that is better at the corrected level 1 - confidence, or "": by
        the mean difference, or by wins for the sign test. For a metric without a better direction, wins are the larger
        values and `better` is empty. If there are too few classes for that level, `p_corrected` is NaN and `reason`
        states how many are required; such a row does not count in the correction of the others.

    Raises:
        UnknownNameError: The results have no such detector, data set or metric.
        InvalidArgumentError: `test` is unknown, `repetitions` is below 1, a detector is compared with itself, or there
            is nothing to pair.
    """
    check_test("compare", test, confidence, repetitions)
    how = _Pairing(metric or results.settings.fpr_name, test, confidence, repetitions, seed)
    (detector,), named = results.resolve_detectors(detector), results.resolve_detectors(*others)
    names = tuple(dict.fromkeys(named)) or tuple(name for name in results.detectors if name != detector)
    if detector in names or not names:
        shown = ", ".join(names) or "none"
        raise InvalidArgumentError(f"compare: expected only detectors other than {detector!r}, got {shown}")
    blocks = _rows_of_classes(results, how.metric, dataset).groupby("dataset", sort=False)
    table = pd.DataFrame([how.row(block, name, detector, other) for name, block in blocks for other in names])
    reasons = undecidable(table["n_classes"].tolist(), 1 - confidence)
    table["p_corrected"] = holm(table["p_value"].where(np.array(reasons) == "").to_numpy())
    # The direction must be that of the test: a detector can win most classes and lose the mean.
    direction = _direction(how.metric)
    gain = table["wins"] - table["losses"] if test == "sign" else direction * table["difference"]
    significant = (table["p_corrected"] <= 1 - confidence) & (direction != 0)
    table["better"] = np.where(significant, np.where(gain > 0, table["detector"], table["other"]), "")
    table["reason"] = [f"{reason}; use group_of_best, which pairs over images" if reason else "" for reason in reasons]
    return table


def _rows_of_classes(results: RunResults, metric: str, dataset: str | None) -> pd.DataFrame:
    """The values of the classes of all OOD sets with at least two."""
    if dataset is not None and results.dataset(dataset).role is Role.POOL:
        raise InvalidArgumentError(
            f"compare: {dataset!r} is a pool. Its levels contain different classes for each detector, so detectors"
            " cannot be paired over classes; see results.levels and results.severities"
        )
    sets = [info.name for info in results.datasets if info.role is Role.OOD and dataset in (None, info.name)]
    rows = results.table[(results.table["ood_class"] != "") & results.table["dataset"].isin(sets)]
    rows = rows[rows["n_ood"] > 0]  # classes without images, as in a trial
    rows = rows[rows.groupby("dataset")["ood_class"].transform("nunique") >= 2]
    if rows.empty:
        raise InvalidArgumentError(
            f"compare: {'no OOD set has' if dataset is None else f'{dataset!r} does not have'} two or more OOD classes"
            " with images, so there is nothing to pair; use group_of_best, which pairs over images"
        )
    UnknownNameError.check("metric of OOD classes", metric, set(rows["metric"]))
    return rows[rows["metric"] == metric]


def check_test(function: str, test: str, confidence: float, repetitions: int | None) -> None:
    """Check the options of a comparison over classes; `function` names it in messages."""
    check_confidence(confidence)
    if test not in ("permutation", "sign"):
        raise InvalidArgumentError(f"{function}: expected test to be 'permutation' or 'sign', got {test!r}")
    if repetitions is not None and repetitions < 1:
        raise InvalidArgumentError(f"{function}: expected repetitions to be at least 1, got {repetitions}")


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p-value of the exact binomial test of wins and losses; 1 without wins and losses.

    Example:
        >>> sign_test(4, 0)
        0.125
    """
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def sign_flip_test(differences: np.ndarray, *, repetitions: int = 10_000, seed: int = 0) -> float:
    """Two-sided p-value of the mean of paired differences under random signs.

    Exact (all sign patterns) for up to 14 differences; else drawn, with the observed pattern counted in, so that the
    p-value is never 0.

    Example:
        >>> sign_flip_test(np.array([0.1, 0.2, 0.3, 0.1]))
        0.125
    """
    n = len(differences)
    signs, extra = sign_patterns(n, repetitions=repetitions, seed=seed)
    # Sums that are equal in exact arithmetic must count as equal: compare with a relative tolerance.
    scale = float(np.abs(differences).sum())
    extreme = int((np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12 * scale).sum())
    return (extreme + extra) / (len(signs) + extra)


def sign_patterns(n: int, *, repetitions: int = 10_000, seed: int = 0) -> tuple[np.ndarray, int]:
    """Patterns of n signs, shape (patterns, n): all of them for up to 14, else drawn.

    Returns:
        The patterns, and how many more count: 1 for the observed pattern where they are drawn, else 0.

    Example:
        >>> sign_patterns(1)[0].tolist(), sign_patterns(15, repetitions=3)[0].shape
        ([[1], [-1]], (3, 15))
    """
    if n <= _EXACT_UP_TO:
        return 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1), 0
    return 1 - 2 * np.random.default_rng(seed).integers(0, 2, (repetitions, n), dtype=np.int8), 1


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's step-down correction, which controls the chance of any false claim; NaN stays NaN.

    Example:
        >>> holm(np.array([0.01, 0.04, np.nan, 0.03])).round(3).tolist()
        [0.03, 0.06, nan, 0.06]
    """
    order = np.argsort(p_values, kind="stable")[: int((~np.isnan(p_values)).sum())]  # NaN comes last
    factors = np.arange(len(order), 0, -1)
    corrected = np.full(len(p_values), np.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return corrected


def undecidable(n_classes: Sequence[int | None], alpha: float) -> list[str]:
    """Reasons why comparisons over classes cannot be significant after the correction; "" = they can.

    Two of the 2^k patterns of k signs are as extreme as the most extreme one, so no p-value is below 2^(1-k). A
    comparison that cannot reach the level makes no false claim, so only the others need a correction. Which comparisons
    these are depends on the numbers of classes alone, not on any score: by Tarone's rule those with
    2^(1-k) <= alpha / K, for the smallest K that is not below their number.

    Args:
        n_classes: Number of classes k of each comparison; None = it is paired over images, which has no such bound.
        alpha: The level, 1 - confidence.

    Example:
        >>> undecidable([2, 6], 0.05)
        ['a significant difference at level 0.05 among 2 comparisons requires at least 7 classes, got 2', '']

    References:
        Tarone: A Modified Bonferroni Method for Discrete Data. Biometrics 1990.
    """
    least = np.array([0.0 if k is None else 2.0 ** (1 - k) for k in n_classes])
    total = len(least)
    can = next((able for count in range(1, total + 1) if (able := least * count <= alpha).sum() <= count), least >= 0)
    needed = next(k for k in itertools.count(1) if 2.0 ** (1 - k) * total <= alpha)
    among = f" among {total} comparisons" if total > 1 else ""
    return [
        ""
        if able
        else f"a significant difference at level {alpha:.2g}{among} requires at least {needed} classes, got {k}"
        for k, able in zip(n_classes, can, strict=True)
    ]


def _direction(metric: str) -> int:
    """Sign of an improvement; 0 if no direction is better."""
    return {"lower": -1, "higher": 1, "": 0}[better_of(metric)]


@dataclass(frozen=True)
class _Pairing:
    """How two detectors are compared; see `compare`."""

    metric: str
    test: str
    confidence: float
    repetitions: int
    seed: int

    def row(self, block: pd.DataFrame, dataset: object, detector: str, other: str) -> dict[str, object]:
        """One row of the comparison, of one data set."""
        pair = block.pivot(index="ood_class", columns="detector", values="value")[[detector, other]]
        if without := list(pair.index[pair.isna().any(axis=1)]):
            raise InvalidArgumentError(
                f"compare: {len(without)} classes of {dataset!r} have no {self.metric} (first: {without[0]});"
                f" keep only the other classes: results.recompute(classes={{{dataset!r}: [...]}})"
            )
        differences = (pair[detector] - pair[other]).to_numpy()
        wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
        if self.test == "sign":
            p_value = sign_test(wins, losses)
        else:
            p_value = sign_flip_test(differences, repetitions=self.repetitions, seed=self.seed)
        shape = (self.repetitions, len(differences))
        draws = np.random.default_rng(self.seed).integers(0, len(differences), shape)
        ends = (1 - self.confidence) / 2, (1 + self.confidence) / 2
        low, high = np.quantile(differences[draws].mean(axis=1), ends)
        lower = _direction(self.metric) < 0
        return {
            "dataset": dataset,
            "metric": self.metric,
            "detector": detector,
            "other": other,
            "over": "classes",
            "n_classes": len(differences),
            "mean": pair[detector].mean(),
            "mean_other": pair[other].mean(),
            "difference": differences.mean(),
            "ci_low": low,
            "ci_high": high,
            "wins": losses if lower else wins,
            "losses": wins if lower else losses,
            "ties": len(differences) - wins - losses,
            "p_value": p_value,
        }
