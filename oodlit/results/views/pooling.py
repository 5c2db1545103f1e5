"""Join several OOD sets into one, counting shared images once."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import KNOWN_CLASSES, Role
from oodlit.base.text.warn import warn
from oodlit.metrics.settings import Settings
from oodlit.results.info import DatasetInfo
from oodlit.results.run_results import RunResults


class SharedImagesWarning(UserWarning):
    """Data sets that are pooled share images; each is counted once."""


def pool(results: RunResults, names: Sequence[str], name: str) -> tuple[pd.DataFrame, list[DatasetInfo], Settings]:
    """Scores, data sets and settings of the pooled run; see `Results.pooled`."""
    infos = [results.dataset(n) for n in names]
    if wrong := [f"{i.name} ({i.role})" for i in infos if i.role is not Role.OOD]:
        raise InvalidArgumentError(f"pooled: expected OOD sets, got {', '.join(wrong)}")
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise InvalidArgumentError(
            f"pooled: expected at least two OOD sets, each named once; got {', '.join(names) or 'none'}"
        )
    frame = results.scores
    rows = frame[frame["dataset"].isin(names)]
    for info in infos:  # a set restricted to some classes is pooled with these alone
        if chosen := results.settings.classes.get(info.name):
            groups = [index for index, class_name in enumerate(info.class_names) if class_name in chosen]
            rows = rows[(rows["dataset"] != info.name) | rows["group"].isin(groups)]
    shared = shared_rows(rows, results.detectors)
    if shared.any():
        warn(
            f"{', '.join(names)} share images. Left out, so that each counts once: {int(shared.sum())} of"
            f" {len(rows)} images (first: {', '.join(rows.loc[shared, 'key'][:3])})",
            SharedImagesWarning,
        )
    merged = rows[~shared].assign(dataset=name, group=-1)
    kept = [i for i in results.datasets if i.role in KNOWN_CLASSES]
    scores = pd.concat([frame[frame["dataset"].isin([i.name for i in kept])], merged], ignore_index=True)
    classes = {n: chosen for n, chosen in results.settings.classes.items() if n in {i.name for i in kept}}
    return scores, [*kept, DatasetInfo(name, Role.OOD)], replace(results.settings, classes=classes, aggregates={})


def shared_rows(rows: pd.DataFrame, detectors: Sequence[str], *, rtol: float = 1e-4) -> pd.Series:
    """True for every row whose image occurred before in another data set.

    Equal file names are not sufficient, as many sets number their files: the prediction and all scores must agree, too.
    Scores may differ by `rtol`, as their last digits depend on the batch.
    """
    tails = rows["key"].str.split("/", n=1).str[-1].to_numpy()
    datasets, predictions = rows["dataset"].to_numpy(), rows["prediction"].to_numpy()
    values = rows[list(detectors)].to_numpy()
    shared = np.zeros(len(rows), dtype=bool)
    seen: dict[str, list[int]] = {}
    for index, tail in enumerate(tails):
        kept = seen.setdefault(tail, [])
        shared[index] = any(
            datasets[other] != datasets[index]
            and predictions[other] == predictions[index]
            and np.allclose(values[other], values[index], rtol=rtol, atol=0)
            for other in kept
        )
        if not shared[index]:
            kept.append(index)
    return pd.Series(shared, index=rows.index)
