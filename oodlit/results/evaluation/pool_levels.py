"""Compute the rows of a pool in the table: one per level and metric, and their means."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from oodlit.base.errors import InvalidArgumentError
from oodlit.metrics.entry import Value
from oodlit.metrics.numerics.ranking import SortedScores
from oodlit.metrics.severity.level_intervals import level_intervals
from oodlit.metrics.severity.levels import LEVELS, check_no_class_is_empty
from oodlit.metrics.severity.severity_curves import Levels, class_counts, levels_of
from oodlit.results.evaluation.scored_sets import ScoredSet, ScoredSets
from oodlit.results.evaluation.table_rows import Address, TableRows
from oodlit.results.glossary import MEAN
from oodlit.results.record_parts import PoolRecord

LEVEL_NAMES = tuple(f"s{level}" for level in range(LEVELS))
"""Names of the levels, from the easiest to the hardest, in the column `ood_class`."""


@dataclass(frozen=True, eq=False)
class PoolLevels:
    """One detector on one pool.

    Args:
        estimates: Its rows of the estimates, in the order of the pool's classes.
        levels: The levels, by position in `estimates`.
    """

    estimates: pd.DataFrame
    levels: Levels


def pool_levels(
    sets: ScoredSets, scored: ScoredSet, detector: str, estimates: pd.DataFrame, id_scores: SortedScores
) -> PoolLevels:
    """Levels of a pool for one detector.

    Args:
        sets: All sets.
        scored: The pool.
        detector: Name of the detector.
        estimates: Estimates of all pools and detectors.
        id_scores: ID scores of the detector.

    Raises:
        InvalidArgumentError: A class has no estimation or no test images, or there is no ID image.
        NonFiniteScoreError: The severity of a class is NaN.
    """
    info, settings = scored.info, sets.settings
    assert info.id_classes is not None  # checked by DatasetInfo
    own = estimates[(estimates["dataset"] == info.name) & (estimates["detector"] == detector)]
    chosen = set(settings.classes.get(info.name, info.class_names))
    places = {name: place for place, name in enumerate(n for n in info.class_names if n in chosen)}
    own = own[own["ood_class"].isin(places)].reset_index(drop=True)
    number = np.array([places.get(name, -1) for name in info.class_names])
    groups = number[sets.scores["group"].to_numpy()[scored.rows]]
    kept = np.flatnonzero(groups >= 0)
    counts = class_counts(
        id_scores,
        sets.values(detector, scored, kept),
        torch.from_numpy(groups[kept]),
        len(places),
        tpr=settings.tpr,
        rule=settings.rule,
    )
    names = tuple(places)
    check_no_class_is_empty(torch.tensor(own["n_estimation"].tolist()), "estimation", names)
    severities = own["severity"].to_numpy()
    if (undefined := np.isnan(severities)).any():
        first = names[int(undefined.argmax())]
        raise InvalidArgumentError(
            f"the mean confidence is undefined for {int(undefined.sum())} classes (first: {first!r}), because their"
            " confidences contain both inf and -inf"
        )
    return PoolLevels(own, levels_of(counts, severities, id_classes=info.id_classes, class_names=names))


def add_pool_rows(
    sets: ScoredSets,
    scored: ScoredSet,
    detector: str,
    estimates: pd.DataFrame,
    id_scores: SortedScores,
    rows: TableRows,
) -> None:
    """Append the rows of one detector: AUROC and FPR of every level, and their means."""
    settings, address = sets.settings, Address(detector, scored.info.name)
    kinds = {settings.fpr_name: settings.rule, "auroc": ""}
    n_id = len(id_scores)
    try:
        found = pool_levels(sets, scored, detector, estimates, id_scores).levels
    except InvalidArgumentError as error:
        value = Value(math.nan, reason=str(error))
        for metric, rule in kinds.items():
            for name in LEVEL_NAMES:
                rows.add(address._replace(ood_class=name), metric, value, n_id=n_id, n_ood=0, rule=rule)
            rows.add(address, MEAN + metric, value, n_id=n_id, n_ood=0, rule=rule)
        return
    starts = found.starts.tolist()
    sizes = [int(found.classes.sizes[found.members(level)].sum()) for level in range(len(starts))]
    covered = torch.cat([found.members(level) for level in range(len(starts))]).unique()  # type: ignore[no-untyped-call]
    total = int(found.classes.sizes[covered].sum())
    for metric, of_classes, of_levels in (
        (settings.fpr_name, found.classes.fpr, found.fpr),
        ("auroc", found.classes.auroc, found.auroc),
    ):
        ends, of_mean = level_intervals(
            of_classes, found.classes.sizes, found.order, starts, found.width, confidence=settings.confidence
        )
        values = of_levels.tolist()
        rule = kinds[metric]
        for name, value, interval, size in zip(LEVEL_NAMES, values, ends, sizes, strict=True):
            here = address._replace(ood_class=name)
            rows.add(here, metric, Value(value, interval), n_id=n_id, n_ood=size, rule=rule)
        mean = Value(math.fsum(values) / len(values), of_mean)
        rows.add(address, MEAN + metric, mean, n_id=n_id, n_ood=total, rule=rule)


def unequal_notes(pools: Mapping[str, PoolRecord]) -> list[str]:
    """One note per pool whose classes have different numbers of images."""
    return [
        f"pool {name!r}: the number of images differs between classes (estimation: {entry.fewest_per_class[0]} to"
        f" {entry.most_per_class[0]}, test: {entry.fewest_per_class[1]} to {entry.most_per_class[1]}). Each level"
        " weights its classes by their number of test images"
        for name, entry in pools.items()
        if entry.fewest_per_class != entry.most_per_class
    ]


def describe_pools(sets: ScoredSets, estimates: pd.DataFrame) -> Iterator[tuple[str, PoolRecord]]:
    """Describe what identifies each pool: results with different descriptions have different pools.

    Numbers per class are those of estimation and of test images. The fingerprint covers the names of the classes in
    use, their numbers of images, and the keys and parts of these images, regardless of order.
    """
    for scored in sets.pools:
        info = scored.info
        chosen = set(sets.settings.classes.get(info.name, info.class_names))
        own = estimates[estimates["dataset"] == info.name].drop_duplicates("ood_class")
        tested = np.bincount(sets.scores["group"].to_numpy()[scored.rows], minlength=len(info.class_names)).tolist()
        lines = [
            (name, int(n), int(test), int(digest))
            for name, n, test, digest in zip(own["ood_class"], own["n_estimation"], tested, own["digest"], strict=True)
            if name in chosen
        ]
        of_class = [(n, test) for _, n, test, _ in lines]
        yield (
            info.name,
            PoolRecord(
                classes=len(lines),
                id_classes=info.id_classes,
                split=info.split,
                estimation=sum(n for _, n, _, _ in lines),
                test=sum(test for _, _, test, _ in lines),
                fewest_per_class=[min(column) for column in zip(*of_class, strict=True)],
                most_per_class=[max(column) for column in zip(*of_class, strict=True)],
                fingerprint=hashlib.sha256(repr(sorted(lines)).encode()).hexdigest()[:16],
            ),
        )
