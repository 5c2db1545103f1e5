"""Finished streams of a run that is not complete, in its subfolder `unfinished`.

`run.json` has the record of the run. Every process writes its rows of each finished stream to one file, so that an
interrupted run loses only its unfinished streams. A complete run removes the folder.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import pandas as pd

from oodlit.base.atomic import is_locked, write_bytes, write_text
from oodlit.base.errors import DataError
from oodlit.base.json_files import read_json, to_json
from oodlit.base.roles import Role
from oodlit.results.files.class_sums import estimates
from oodlit.results.files.storage import LOCK, read_parquet
from oodlit.results.info import DatasetInfo
from oodlit.results.run_record import ImageRunRecord, RunRecord

RUN, SCORES, SUMS = "run.json", "scores", "-sums"
_STATES = {False: "was interrupted", True: "is still running"}
R = TypeVar("R", bound=RunRecord)


class UnfinishedRunWarning(UserWarning):
    """The results do not cover the last run, or not all its data sets."""


class FinishedStreams(NamedTuple):
    """The finished streams of an interrupted run.

    Args:
        scores: Rows of all finished streams.
        datasets: These streams.
        detectors: Detectors with scores of all of them, except for training streams, which not every detector scores.
        left_out: By other detector of the record, why it is missing.
        missing: Names of the unfinished streams.
        run: The record of the run.
        estimates: Severities of the classes of finished pools; None without a pool.
    """

    scores: pd.DataFrame
    datasets: list[DatasetInfo]
    detectors: list[str]
    left_out: dict[str, str]
    missing: list[str]
    run: ImageRunRecord
    estimates: pd.DataFrame | None


def begin(folder: Path, run: RunRecord) -> None:
    """Write the record of a fitted run, with `datasets`, `detectors`, `settings` and `processes`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / RUN, to_json(run.entries()))


def write_part(folder: Path, number: int, process: int, rows: pd.DataFrame, kind: str = "") -> None:
    """Write the rows of one process of a stream.

    Args:
        folder: The folder `unfinished` of the run.
        number: Position of the stream in `datasets` of the record.
        process: Rank of the process.
        rows: Scores of images; or the sums over the estimation images of a pool, see `ClassSums.frame`.
        kind: `SUMS` for sums.
    """
    (folder / SCORES).mkdir(parents=True, exist_ok=True)
    write_bytes(_part(folder, number, process, kind), rows.to_parquet(index=False, write_page_checksum=True))


def read(directory: str | os.PathLike[str]) -> FinishedStreams | None:
    """Read the finished streams of an interrupted run; None if the folder has none.

    Raises:
        DataError: A file is damaged, or no stream was finished.
    """
    folder = Path(directory)
    if not (folder / RUN).is_file():
        return None
    run = read_record(folder, ImageRunRecord)
    if run.kind != "images":
        fix = "resume it, then read it with oodlit.objects.ObjectResults.load"
        raise DataError(f"{folder}: expected a run of images, got an unfinished run of boxes; {fix}")
    processes = range(run.processes)
    frames = {
        info: [read_parquet(_part(folder, number, process)) for process in processes]
        for number, info in enumerate(run.datasets)
        if _is_finished(folder, number, processes)
    }
    finished, missing = list(frames), [info.name for info in run.datasets if info not in frames]
    if not finished:
        raise DataError(
            f"{folder}: the run has not finished any data set yet. Wait for it, or rerun the command to resume it. If"
            f" the fit was complete, the fitted detectors are in {folder / 'fitted'}; reuse them with"
            " OODDetection(fitted=...) or --fitted"
        )
    left_out = _left_out(run.detectors, frames)
    detectors = [name for name in run.detectors if name not in left_out]
    severities = []
    for number, info in enumerate(run.datasets):
        if info.role is Role.POOL and info in frames:
            of_processes = [read_parquet(_part(folder, number, process, SUMS)) for process in processes]
            severities.append(estimates(of_processes, info, detectors, run.confidences))
    joined = pd.concat(severities, ignore_index=True) if severities else None
    # A detector that does not score training images has NaN for them, as in complete results.
    scores = pd.concat([part for parts in frames.values() for part in parts], ignore_index=True)
    return FinishedStreams(scores, finished, detectors, left_out, missing, run, joined)


def read_record(folder: Path, kind: type[R]) -> R:
    """The record of a run that is not complete.

    Args:
        folder: The folder `unfinished` of a run.
        kind: Type of the record; `RunRecord` reads the fields of every kind of run.

    Raises:
        FileNotFoundError: There is none.
        DataError: It is damaged, or it is the record of a complete run.
    """
    run = kind.of(read_json(folder / RUN, dict), where=str(folder / RUN))
    if not run.processes:
        raise DataError(f"{folder}: {RUN} describes a complete run, but table.csv is missing; repeat the run")
    return run


def extent(directory: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Number of finished streams of an interrupted run, and of all its streams.

    Returns:
        Both numbers; None if the folder has no such run, or its record is not readable.
    """
    folder = Path(directory)
    try:
        run = read_record(folder, RunRecord)
    except (FileNotFoundError, DataError):
        return None
    number, processes = len(run.datasets), range(run.processes)
    return sum(_is_finished(folder, place, processes) for place in range(number)), number


def interruption(run: RunRecord) -> str:
    """A remark about an interrupted or running run; empty for a complete one.

    Example:
        >>> from oodlit.results.record_parts import Unfinished
        >>> interruption(RunRecord(unfinished=Unfinished(["far", "unit_tests"])))
        'the run was interrupted; missing data sets: far, unit_tests'
    """
    if run.unfinished is None:
        return ""
    missing = ", ".join(run.unfinished.missing) or "none, but not all results were written"
    return f"the run {_STATES[run.unfinished.is_running]}; missing data sets: {missing}"


def is_running(folder: Path) -> bool:
    """Whether a run is writing to a folder of results."""
    return is_locked(folder / LOCK)


def state(folder: Path) -> str:
    """What happened to the run in a folder of results that is not complete: part of a sentence."""
    return _STATES[is_running(folder)]


def _left_out(detectors: Sequence[str], frames: Mapping[DatasetInfo, Sequence[pd.DataFrame]]) -> dict[str, str]:
    """Detectors without scores of a test stream, with the reason."""
    tested = {info.name: parts for info, parts in frames.items() if info.role is not Role.TRAIN}
    found = {}
    for name in detectors:
        if without := [dataset for dataset, parts in tested.items() if not all(name in part for part in parts)]:
            found[name] = f"has no scores of {', '.join(without)}; the run ended before the reason was recorded"
    return found


def _is_finished(folder: Path, number: int, processes: range) -> bool:
    return all(_part(folder, number, process).is_file() for process in processes)


def _part(folder: Path, number: int, process: int, kind: str = "") -> Path:
    return folder / SCORES / f"{number:04d}-{process:04d}{kind}.parquet"
