"""Paired comparison of runs over the same OOD classes or the same images."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from oodlit.base.checks import check_names
from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.base.roles import Role
from oodlit.base.text.resolve import resolve
from oodlit.metrics.uncertainty.paired import ImageParts, auroc_parts, below_the_best, fpr_parts
from oodlit.results.comparing.best import class_weights
from oodlit.results.comparing.detectors import check_test, holm, sign_patterns, sign_test, undecidable
from oodlit.results.comparing.several_runs import RunColumn, check_runs, run_columns
from oodlit.results.display_names import display_names
from oodlit.results.glossary import MEAN, better_of
from oodlit.results.run_results import RunResults

_DRAWS = 10_000


class _Place(NamedTuple):
    """What one row compares."""

    detector: str
    run: str
    baseline: str


class _Test(NamedTuple):
    """How differences over classes are tested."""

    test: str
    confidence: float
    draws: int
    patterns: int
    seed: int


def compare_runs(
    runs: Mapping[str, RunResults],
    *,
    baseline: str | None = None,
    detectors: Sequence[str] | None = None,
    dataset: str | None = None,
    metric: str | None = None,
    over: str = "auto",
    test: str = "permutation",
    confidence: float = 0.95,
    repetitions: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare runs with one of them, detector by detector, on the same data.

    Paired over classes as in `compare`, the differences `run - baseline` show whether the order would hold for other
    classes of this kind. Paired over images as in `group_of_best`, they show whether it would hold for other images of
    the same classes. P-values are two-sided and corrected over all rows by Holm's method.

    Args:
        runs: Results by name, at least two.
        baseline: The run that the others are compared with; None = the first.
        detectors: Names of detectors; None = those that all runs have.
        dataset: One OOD set; None = all sets that are the same in all runs.
        metric: "auroc" or the FPR of the runs; None = the FPR.
        over: "classes", for sets with at least two, or "images"; "auto" (default) = classes if there are enough of them
            to decide, else images.
        test: For classes "permutation" or "sign", see `compare`.
        confidence: Nominal coverage of the intervals, and the level of `better`.
        repetitions: Number of bootstrap draws and, with more than 14 classes, of sign patterns; None = 10,000, and
            at least 100 patterns per comparison: with fewer, no difference would remain after the correction.
        seed: Seed of the random numbers.

    Returns:
        One row per data set, detector and run: `dataset, metric, detector, run, baseline, over, n, mean, mean_baseline,
        difference, ci_low, ci_high, wins, losses, ties, p_value, p_corrected, better, reason`. `over` is "classes" or
        "images", `n` their number; comparisons over images have no interval, wins and losses. `better` is the run that
        is better at the corrected level 1 - confidence, or "". If a value is undefined, so is the row. If there are
        too few classes for that level, `p_corrected` is NaN and `reason` states how many are required, as in `compare`;
        with "auto", this does not happen.
        `attrs["left_out"]` has the reason for each data set that was left out.

    Raises:
        UnknownNameError: The run, detector, data set or metric is unknown.
        InvalidArgumentError: There are fewer than two runs, nothing can be compared, or a setting is out of
            range.
    """
    check_test("compare_runs", test, confidence, repetitions)
    check_names("compare_runs", "detectors", detectors)
    check_runs(runs)
    if len(runs) < 2:
        raise InvalidArgumentError(f"compare_runs: expected at least two runs, got {len(runs)}")
    baseline = baseline or next(iter(runs))
    UnknownNameError.check("run", baseline, runs)
    wanted, left_out = _columns(runs, dataset, metric)
    names = _detectors(runs, detectors)
    places = [_Place(detector, run, baseline) for detector in names for run in runs if run != baseline]
    patterns = repetitions or max(_DRAWS, 100 * len(wanted) * len(places))
    settings = _Test(test, confidence, repetitions or _DRAWS, patterns, seed)
    of_classes = _paired_over_classes(runs[baseline], wanted, len(places), over, 1 - confidence)
    rows: list[dict[str, object]] = []
    for column in wanted:
        if column.dataset in of_classes:
            values = _over_classes(runs, places, column, settings)
        else:
            values = _over_images(runs, names, places, column)
        head = {"dataset": column.dataset, "metric": column.metric}
        rows += [head | place._asdict() | value for place, value in zip(places, values, strict=True)]
    table = pd.DataFrame(rows)
    known = table["p_value"].notna().to_numpy()
    numbers = [n if over == "classes" else None for n, over in zip(table["n"], table["over"], strict=True)]
    reasons = np.full(len(table), "a value is undefined", dtype=object)
    reasons[known] = undecidable([n for n, is_known in zip(numbers, known, strict=True) if is_known], 1 - confidence)
    table["p_corrected"] = holm(table["p_value"].where(reasons == "").to_numpy())
    gain = -table["difference"] if "fpr" in wanted[0].metric else table["difference"]
    if test == "sign":  # the direction must be that of the test
        gain = gain.where(table["over"] == "images", table["wins"] - table["losses"])
    significant = table["p_corrected"] <= 1 - confidence
    table["better"] = np.where(significant, np.where(gain > 0, table["run"], table["baseline"]), "")
    table["reason"] = reasons
    table.attrs["left_out"] = left_out
    return table


def _paired_over_classes(
    results: RunResults, columns: Sequence[RunColumn], pairs: int, over: str, alpha: float
) -> set[str]:
    """Data sets that are paired over classes; the choice depends on numbers of classes and comparisons alone."""
    UnknownNameError.check("value of over", over, ("auto", "classes", "images"))
    infos = [results.dataset(column.dataset) for column in columns]
    table = results.table[(results.table["ood_class"] != "") & (results.table["n_ood"] > 0)]
    present: Any = table.groupby("dataset")["ood_class"].nunique() if len(table) else {}
    numbers = {info.name: int(present.get(info.name, len(info.class_names))) for info in infos}
    several = {name: number for name, number in numbers.items() if number >= 2}
    if over == "classes" and not several:
        fix = "pass over='images' to compare over images"
        raise InvalidArgumentError(f"compare_runs: over='classes' requires an OOD set with two or more classes; {fix}")
    if over != "auto":
        return set(several) if over == "classes" else set()
    reasons = undecidable([several.get(name) for name in numbers for _ in range(pairs)], alpha)
    return {name for place, name in enumerate(numbers) if name in several and not reasons[place * pairs]}


def _columns(
    runs: Mapping[str, RunResults], dataset: str | None, metric: str | None
) -> tuple[list[RunColumn], dict[str, str]]:
    """Which OOD sets are compared, and why others are not."""
    first = next(iter(runs.values()))
    plain = (metric or first.settings.fpr_name).removeprefix(MEAN)
    UnknownNameError.check("metric of runs", plain, [first.settings.fpr_name, "auroc"])
    sets = {info.name for results in runs.values() for info in results.datasets if info.role is Role.OOD}
    columns = [c for c in run_columns(runs) if c.dataset in sets and c.metric.removeprefix(MEAN) == plain]
    if dataset is not None:
        UnknownNameError.check("OOD set", dataset, sets)
        columns = [column for column in columns if column.dataset == dataset]
    left_out = {column.dataset: column.reason for column in columns if column.reason}
    like = [column for column in columns if not column.reason]
    if not like:
        reasons = "; ".join(dict.fromkeys(left_out.values())) or "no OOD set was found"
        raise InvalidArgumentError(f"compare_runs: no data set can be compared, because {reasons}")
    return like, left_out


def _detectors(runs: Mapping[str, RunResults], detectors: Sequence[str] | None) -> list[str]:
    first = display_names(next(iter(runs.values())).run)
    common = {name: shown for name, shown in first.items() if all(name in r.detectors for r in runs.values())}
    wanted = common if detectors is None else detectors
    names = list(dict.fromkeys(resolve("detector in at least one of the runs", name, common) for name in wanted))
    if not names:
        found = "none; evaluate the runs with a common detector" if detectors is None else "detectors=[]"
        raise InvalidArgumentError(f"compare_runs: expected at least one detector that all runs have, got {found}")
    return names


def _over_classes(
    runs: Mapping[str, RunResults], places: Sequence[_Place], column: RunColumn, settings: _Test
) -> list[dict[str, object]]:
    plain = column.metric.removeprefix(MEAN)
    of = {name: _per_class(results, column.dataset, plain) for name, results in runs.items()}
    first = np.stack([of[place.run][place.detector].to_numpy() for place in places], axis=1)
    second = np.stack([of[place.baseline][place.detector].to_numpy() for place in places], axis=1)
    differences = first - second  # (classes, places)
    n, sums = len(differences), differences.sum(axis=0)
    low, high = _interval(differences, settings)
    signs, extra = sign_patterns(n, repetitions=settings.patterns, seed=settings.seed)
    # Sums that are equal in exact arithmetic must count as equal: compare with a relative tolerance.
    limit = np.abs(sums) - 1e-12 * np.abs(differences).sum(axis=0)
    parts = np.array_split(signs, -(-len(signs) // _DRAWS))  # in parts, for the memory of the products
    extreme = sum((np.abs(part @ differences) >= limit).sum(axis=0) for part in parts)
    p_values = (extreme + extra) / (len(signs) + extra)
    better = -1 if better_of(plain) == "lower" else 1
    rows = []
    for index in range(len(places)):
        own = better * differences[:, index]
        wins, losses = int((own > 0).sum()), int((own < 0).sum())
        row = {
            "over": "classes",
            "n": n,
            "mean": first[:, index].mean(),
            "mean_baseline": second[:, index].mean(),
            "difference": differences[:, index].mean(),
            "ci_low": low[index],
            "ci_high": high[index],
            "wins": wins,
            "losses": losses,
            "ties": n - wins - losses,
            "p_value": sign_test(wins, losses) if settings.test == "sign" else float(p_values[index]),
        }
        unknown = ("wins", "losses", "ties", "p_value") if np.isnan(own).any() else ()
        rows.append(row | dict.fromkeys(unknown, np.nan))
    return rows


def _interval(differences: np.ndarray, settings: _Test) -> np.ndarray:
    """Interval of the mean of every column, from a bootstrap over the rows; shape (2, columns)."""
    n, outside = len(differences), 1 - settings.confidence
    draws = np.random.default_rng(settings.seed).integers(0, n, (settings.draws, n))
    times = np.zeros((settings.draws, n))
    np.add.at(times, (np.arange(settings.draws)[:, None], draws), 1.0)
    return np.asarray(np.quantile(times @ differences / n, [outside / 2, 1 - outside / 2], axis=0))


def _per_class(results: RunResults, dataset: str, metric: str) -> pd.DataFrame:
    table = results.table
    rows = table[(table["dataset"] == dataset) & (table["metric"] == metric) & (table["ood_class"] != "")]
    present = rows["n_ood"] > 0  # in a trial, classes may have no images
    rows = rows[present] if present.any() else rows
    return rows.pivot(index="ood_class", columns="detector", values="value").sort_index()


def _over_images(
    runs: Mapping[str, RunResults], detectors: Sequence[str], places: Sequence[_Place], column: RunColumn
) -> list[dict[str, object]]:
    plain = column.metric.removeprefix(MEAN)
    lower = better_of(plain) == "lower"
    of = {name: _parts(results, column.dataset, plain, detectors) for name, results in runs.items()}
    rows = []
    for place in places:
        pair, index = (of[place.run], of[place.baseline]), detectors.index(place.detector)
        of_id, of_ood = np.stack([part.of_id[index] for part in pair]), np.stack([part.of_ood[index] for part in pair])
        both = ImageParts(of_id, of_ood, pair[0].weights, pair[0].classes)
        values = both.values
        best = int(np.argmin(values) if lower else np.argmax(values))
        p_value = float(min(1.0, 2 * below_the_best(both, best, is_lower_better=lower)[1 - best]))
        row = {
            "over": "images",
            "n": both.of_ood.shape[1],
            "mean": values[0],
            "mean_baseline": values[1],
            "difference": values[0] - values[1],
            **dict.fromkeys(("ci_low", "ci_high", "wins", "losses", "ties"), np.nan),
            "p_value": np.nan if np.isnan(values).any() else p_value,
        }
        rows.append(row)
    return rows


def _parts(results: RunResults, dataset: str, metric: str, detectors: Sequence[str]) -> ImageParts:
    inside = results.images(results.id_dataset.name)[list(detectors)].to_numpy().T
    ood = results.images(dataset)[list(detectors)].to_numpy().T
    m, info = ood.shape[1], results.dataset(dataset)
    if not m or not inside.shape[1]:
        empty = np.full((len(detectors), max(m, 1)), np.nan)
        return ImageParts(empty, empty, np.full(max(m, 1), 1.0), np.zeros(max(m, 1), dtype=np.int64))
    places = class_weights(results.images(dataset), is_grouped=bool(info.class_names))
    if metric == "auroc":
        return auroc_parts(inside, ood, *places)
    return fpr_parts(inside, ood, *places, np.array([results.threshold(name) for name in detectors]))
