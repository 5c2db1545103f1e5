"""Values of the table as exact fractions, for comparisons with limits."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from oodlit.base.fractions import exact_number
from oodlit.results.glossary import MEAN, entry_of
from oodlit.results.run_results import RunResults


def exact_value(results: RunResults, row: Mapping[str, Any]) -> Fraction | float:
    """A value of the table as an exact fraction, if it is a share of counts or a mean of such shares."""
    entry = entry_of(row["metric"])
    if entry is None or entry.is_count or not row["metric"].startswith(MEAN) or row["ood_class"]:
        return _share(row)
    table = results.table
    same = (table["detector"] == row["detector"]) & (table["dataset"] == row["dataset"])
    same &= (table["ood_class"] != "") & (table["n_ood"] > 0)  # a mean is over classes with images
    classes = table[same & (table["metric"] == row["metric"].removeprefix(MEAN))].to_dict("records")
    shares = [_share(one) for one in classes]
    exact = [share for share in shares if isinstance(share, Fraction)]
    mean = sum(exact, Fraction(0)) / len(exact) if exact and len(exact) == len(shares) else Fraction(-1)
    return mean if math.isclose(mean, row["value"], rel_tol=1e-9, abs_tol=1e-12) else as_exact(row["value"])


def _share(row: Mapping[Any, Any]) -> Fraction | float:
    """A value as an exact ratio of counts, if it is a ratio of counts."""
    value, n_id, n_ood = row["value"], int(row["n_id"]), int(row["n_ood"])
    entry = entry_of(row["metric"])
    kind = "" if entry is None else entry.mean_interval
    total = 2 * n_id * n_ood if kind == "auroc" else n_ood if kind else 0
    if total and math.isfinite(value) and abs(value * total - round(value * total)) <= 1e-9 * max(total, 1):
        return Fraction(round(value * total), total)
    return as_exact(value)


def as_exact(value: float) -> Fraction | float:
    """Return a number as an exact fraction, or unchanged if it is not finite."""
    number = exact_number(value)
    return value if number is None else number
