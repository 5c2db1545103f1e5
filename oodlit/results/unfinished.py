"""What a run has finished while it goes on, in a folder of its own: its record, its fit, the scores of each stream.

Every process writes the scores of its share of a stream when the stream ends; a stream is finished when all of them
have. Results are made of the finished streams, and a run that comes to its end removes the folder.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from oodlit.atomic import write_bytes, write_text
from oodlit.errors import DataError
from oodlit.results.class_sums import estimates
from oodlit.results.info import DatasetInfo
from oodlit.results.plain import to_json
from oodlit.roles import Role

RUN, SCORES = "run.json", "scores"


class FinishedStreams(NamedTuple):
    """What a broken run left.

    Args:
        scores: Rows of all finished streams.
        datasets: These streams.
        detectors: Those that scored all of them.
        missing: Names of the streams that were not finished.
        run: The record of the run.
        estimates: Severities of the classes of finished pools; None without one.
    """

    scores: pd.DataFrame
    datasets: list[DatasetInfo]
    detectors: list[str]
    missing: list[str]
    run: dict[str, Any]
    estimates: pd.DataFrame | None


def begin(folder: Path, run: Mapping[str, Any]) -> None:
    """Write the record: `datasets`, `detectors`, `settings` and `processes`, with what else is known."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / RUN, to_json(run))


def write_part(folder: Path, number: int, process: int, scores: pd.DataFrame) -> None:
    """Write the share of one process of stream `number`, a position in the record's `datasets`."""
    (folder / SCORES).mkdir(parents=True, exist_ok=True)
    write_bytes(_part(folder, number, process), scores.to_parquet(index=False))


def write_sums(folder: Path, number: int, process: int, sums: pd.DataFrame) -> None:
    """Write what the estimation images of a pool left on one process, see `ClassSums.frame`."""
    (folder / SCORES).mkdir(parents=True, exist_ok=True)
    write_bytes(_sums(folder, number, process), sums.to_parquet(index=False))


def read(directory: str | os.PathLike[str]) -> FinishedStreams | None:
    """What a broken run has finished; None if there is nothing of the kind.

    Raises:
        DataError: A file is damaged, or no stream was finished.
    """
    folder = Path(directory)
    if not (folder / RUN).is_file():
        return None
    try:
        run = json.loads((folder / RUN).read_text(encoding="utf-8"))
        datasets = [DatasetInfo.from_json(entry) for entry in run.pop("datasets")]
        detectors, processes = list(run.pop("detectors")), range(run.pop("processes"))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / RUN}: not the record of a run that is going on ({error})") from error
    frames, finished = [], []
    for number, info in enumerate(datasets):
        parts = [_part(folder, number, process) for process in processes]
        if all(part.is_file() for part in parts):
            frames += [_frame(part) for part in parts]
            finished.append(info)
    missing = [info.name for info in datasets if info not in finished]
    if not finished:
        raise DataError(
            f"{folder}: the run broke off before it had finished a stream; its fitted detectors, if it came so far, are"
            f" in {folder / 'fitted'} (evaluate again with fitted=...)"
        )
    detectors = [name for name in detectors if all(name in frame for frame in frames)]
    severities = []
    for number, info in enumerate(datasets):
        if info.role is Role.POOL and info in finished:
            of_processes = [_frame(_sums(folder, number, process)) for process in processes]
            severities.append(estimates(of_processes, info, detectors, run["confidences"]))
    joined = pd.concat(severities, ignore_index=True) if severities else None
    return FinishedStreams(pd.concat(frames, ignore_index=True), finished, detectors, missing, run, joined)


def _part(folder: Path, number: int, process: int) -> Path:
    return folder / SCORES / f"{number:04d}-{process:04d}.parquet"


def _sums(folder: Path, number: int, process: int) -> Path:
    return folder / SCORES / f"{number:04d}-{process:04d}-sums.parquet"


def _frame(part: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(part)
    except (ValueError, OSError) as error:
        raise DataError(f"{part}: not readable as Parquet ({error})") from error
