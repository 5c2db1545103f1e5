"""Join the rows of all processes at the end of a run."""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from oodlit.base.processes.distributed import Group, gather_objects
from oodlit.results import DatasetInfo, Finding
from oodlit.results.files.class_sums import estimates
from oodlit.runs.images.pool_rows import PoolRows
from oodlit.runs.images.rows import ImageRows, gather
from oodlit.scoring.scoring import Scoring


def join_scores(rows: Iterable[ImageRows], scoring: Scoring, group: Group) -> pd.DataFrame:
    """Join the scores of all processes."""
    active = scoring.active
    wide = gather_objects(group, scoring.float64)
    float32 = set(active).difference(*wide)
    tables = [gather(part, group, detectors=active, float32=float32) for part in rows]
    return pd.concat(tables, ignore_index=True)


def join_estimates(
    pools: Sequence[PoolRows],
    datasets: Iterable[DatasetInfo],
    detectors: Sequence[str],
    confidences: Mapping[str, str],
    group: Group,
) -> pd.DataFrame | None:
    """Compute the severities of the classes of all pools from the sums of all processes; None without a pool."""
    infos, found = {info.name: info for info in datasets}, []
    for rows in pools:
        rows.check_once(group)
        parts = gather_objects(group, rows.sums.frame(detectors=detectors))
        found.append(estimates(parts, infos[rows.dataset], detectors, confidences))
    return pd.concat(found, ignore_index=True) if found else None


def unlisted(pools: Sequence[PoolRows], group: Group) -> list[Finding]:
    """Findings about pools whose images differ from the images listed in the split."""
    findings = []
    for rows in pools:
        parts = gather_objects(group, (rows.num_unused, rows.first_unused, rows.num_used))
        unused = sum(number for number, _, _ in parts)
        first = min((key for _, key, _ in parts if key), default="")
        assert rows.stream is not None
        lacking = getattr(rows.stream.split, "num_listed", 0) - sum(used for _, _, used in parts)
        texts = {
            f"{unused} images of {rows.dataset!r} are not listed in the split and were not used, first"
            f" {first!r}": unused > 0,
            f"{lacking} images listed in the split of {rows.dataset!r} were not found": lacking > 0,
        }
        findings += [Finding("split", text) for text, holds in texts.items() if holds]
    return findings


def masked_accuracy(rows: Mapping[str, ImageRows], scores: pd.DataFrame, group: Group) -> dict[str, tuple[int, int]]:
    """Numbers of correct predictions and of labeled images, for sets that contain only some of the ID classes."""
    masked = {name: part.masked_correct for name, part in rows.items() if part.subset is not None}
    labelled = scores[scores["label"] >= 0]
    parts = gather_objects(group, masked)
    return {n: (sum(part[n] for part in parts), int((labelled["dataset"] == n).sum())) for n in masked}
