"""Views of pools: classes by severity, levels, and checks that several results have the same pool."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from msgspec import structs

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.metrics.numerics.ranking import as_sorted
from oodlit.results.evaluation.pool_levels import LEVEL_NAMES, PoolLevels, pool_levels
from oodlit.results.evaluation.scored_sets import ScoredSets
from oodlit.results.glossary import MEAN
from oodlit.results.info import DatasetInfo
from oodlit.results.run_results import RunResults

IDENTIFIES = {
    "id_images": "ID images",
    "id_classes": "classes that the classifier knows",
    "classes": "OOD classes",
    "estimation": "estimation images",
    "test": "test images",
    "fingerprint": "images and their split",
}
"""What must agree to compare levels: the number of ID images, and fields of `run.pools`."""


def severities(results: RunResults, dataset: str, detector: str | None = None) -> pd.DataFrame:
    """See `Results.severities`."""
    info = _pool(results, dataset)
    names = results.resolve_detectors(*results.detectors if detector is None else (detector,))
    sets, fpr = ScoredSets(results.scores, results.datasets, results.settings), results.settings.fpr_name
    frames = []
    for name in names:
        found = _levels(results, sets, info, name)
        levels, order = found.levels, found.levels.order.numpy()
        computed = {
            "auroc": levels.classes.auroc.numpy()[order],
            fpr: levels.classes.fpr.numpy()[order],
            "n_test": levels.classes.sizes.numpy()[order],
            "levels": _level_names(levels.starts.tolist(), levels.width, len(order)),
        }
        frames.append(found.estimates.iloc[order].assign(**computed))
    columns = ["detector", "ood_class", "severity", "standard_error", "auroc", fpr, "n_estimation", "n_test", "levels"]
    return pd.concat(frames, ignore_index=True)[[*columns, "confidence"]]


def hardest_classes(results: RunResults, info: DatasetInfo, detector: str, limit: int = 12) -> pd.DataFrame:
    """Return the hardest classes of a pool, the hardest first, each with its test image of the highest score.

    Returns:
        Columns of `Results.severities`, with `key` and `prediction` of the image. Empty if levels are undefined.
    """
    try:
        rows = severities(results, info.name, detector).iloc[::-1].head(limit)
    except InvalidArgumentError:  # the table and `undefined` state why
        return pd.DataFrame()
    places = {info.class_names.index(name): name for name in rows["ood_class"]}
    own = results.scores[(results.scores["dataset"] == info.name) & results.scores["group"].isin(list(places))]
    own = own.assign(ood_class=own["group"].map(places)).sort_values([detector, "key"], ascending=[False, True])
    return rows.merge(own.drop_duplicates("ood_class")[["ood_class", "key", "prediction"]], on="ood_class", how="left")


def levels(results: RunResults, dataset: str) -> pd.DataFrame:
    """See `Results.levels`."""
    info = _pool(results, dataset)
    sets, fpr = ScoredSets(results.scores, results.datasets, results.settings), results.settings.fpr_name
    rows, id_confidence = [], {}
    table = results.table[results.table["dataset"] == dataset].set_index(["detector", "ood_class", "metric"])
    kinds = dict(zip(_estimates(results)["detector"], _estimates(results)["confidence"], strict=True))
    for name in results.detectors:
        scores = sets.values(name, sets.id).double()
        id_confidence[name] = float((scores.exp() if kinds[name] == "exp(score)" else scores).mean())
        try:
            found = _levels(results, sets, info, name)
            severity = found.estimates["severity"].to_numpy()
            means = [float(severity[found.levels.members(i).numpy()].mean()) for i in range(len(LEVEL_NAMES))]
        except InvalidArgumentError:  # the table has NaN and the reason
            means = [float("nan")] * len(LEVEL_NAMES)
        for level, mean in zip(LEVEL_NAMES, means, strict=True):
            row: dict[str, object] = {"detector": name, "level": level}
            for metric in ("auroc", fpr):
                value = table.xs((name, level, metric))
                row |= {metric: value["value"], f"{metric}_low": value["ci_low"], f"{metric}_high": value["ci_high"]}
                row["n_test"] = value["n_ood"]
            rows.append(row | {"severity": mean, "n_classes": info.id_classes})
    metrics = [f"{metric}{end}" for metric in ("auroc", fpr) for end in ("", "_low", "_high")]
    frame = pd.DataFrame(rows, columns=["detector", "level", *metrics, "severity", "n_classes", "n_test"])
    frame.attrs["id_confidence"] = id_confidence
    return frame


def check_same_pool(runs: Mapping[str, RunResults], dataset: str) -> None:
    """Reject results whose levels are not comparable: other classes, images, split, or ID images.

    Args:
        runs: Results by name.
        dataset: Name of the pool in all of them.

    Raises:
        InvalidArgumentError: Two of them differ, or there are none.
        UnknownNameError: A run has no such data set.
    """
    entries = {}
    for name, results in runs.items():
        info = _pool(results, dataset)
        id_images = results.run.counts[results.id_dataset.name]
        entries[name] = {"id_images": id_images, **structs.asdict(results.run.pools[info.name])}
    if not entries:
        raise InvalidArgumentError(f"expected at least one run to compare on {dataset!r}, got none")
    first, *others = entries
    for other in others:
        if differing := [k for k in IDENTIFIES if entries[first][k] != entries[other][k]]:
            both = {k: f": {entries[first][k]} and {entries[other][k]}" for k in differing} | {"fingerprint": ""}
            shown = "; ".join(f"{IDENTIFIES[k]}{both[k]}" for k in differing)
            raise InvalidArgumentError(
                f"pool {dataset!r} differs between the runs {first!r} and {other!r} ({shown}); evaluate both runs on"
                " the same ID images, classes and split. If only the OOD classes differ, restrict both runs to the"
                " classes in common with results.recompute(classes=...)"
            )


def levels_of_runs(runs: Mapping[str, RunResults], dataset: str, metric: str = "auroc") -> pd.DataFrame:
    """A table of the levels of several results of one pool.

    Args:
        runs: Results by name, such as that of the model.
        dataset: Name of the pool in all of them.
        metric: "auroc" or the name of the FPR.

    Returns:
        One row per (run, detector), columns s0, s1, ... and `mean`.

    Raises:
        InvalidArgumentError: The pools differ, a data set is not a pool, or there are no results.
        UnknownNameError: A run has no such data set.
    """
    check_same_pool(runs, dataset)
    rows = {
        (name, detector): [
            *(results.value(metric, dataset=dataset, detector=detector, ood_class=level) for level in LEVEL_NAMES),
            results.value(MEAN + metric, dataset=dataset, detector=detector),
        ]
        for name, results in runs.items()
        for detector in results.detectors
    }
    index = pd.MultiIndex.from_tuples(list(rows), names=["run", "detector"])
    return pd.DataFrame(list(rows.values()), index=index, columns=[*LEVEL_NAMES, "mean"])


def _pool(results: RunResults, dataset: str) -> DatasetInfo:
    info = results.dataset(dataset)
    if info.role is not Role.POOL or results.estimates is None:
        raise InvalidArgumentError(
            f"{dataset!r} has role {info.role}{' but no severities' if info.role is Role.POOL else ''}; severity levels"
            " require a pool with severities, see oodlit.datamodules.severity_pool"
        )
    return info


def _estimates(results: RunResults) -> pd.DataFrame:
    assert results.estimates is not None  # checked by `_pool`
    return results.estimates


def _levels(results: RunResults, sets: ScoredSets, info: DatasetInfo, detector: str) -> PoolLevels:
    id_scores = as_sorted(sets.values(detector, sets.id))
    return pool_levels(sets, sets.sets[info.name], detector, _estimates(results), id_scores)


def _level_names(starts: list[int], width: int, num_classes: int) -> list[str]:
    """Names of the levels that each place in the order belongs to."""
    member = np.zeros((len(starts), num_classes), dtype=bool)
    for level, start in enumerate(starts):
        member[level, start : start + width] = True
    return [" ".join(np.array(LEVEL_NAMES)[column].tolist()) for column in member.T]
