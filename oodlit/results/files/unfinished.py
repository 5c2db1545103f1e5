"""What a run has finished while it goes on, in a folder of its own: its record, its fit, the scores of each stream.

Every process writes the scores of its share of a stream when the stream ends; a stream is finished when all of them
have. Results are made of the finished streams, and a run that comes to its end removes the folder.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from oodlit.base.atomic import write_bytes, write_text
from oodlit.base.json_files import read_json, to_json
from oodlit.errors import DataError
from oodlit.results.files.class_sums import estimates
from oodlit.results.info import DatasetInfo
from oodlit.results.run_record import ImageRunRecord, RunRecord
from oodlit.roles import Role

RUN, SCORES = "run.json", "scores"


class FinishedStreams(NamedTuple):
    """What a broken run left.

    Args:
        scores: Rows of all finished streams.
        datasets: These streams.
        detectors: Those that scored all of them, but for training streams, which not every detector scores.
        left_out: Why the other detectors of the record are not among these.
        missing: Names of the streams that were not finished.
        run: The record of the run.
        estimates: Severities of the classes of finished pools; None without one.
    """

    scores: pd.DataFrame
    datasets: list[DatasetInfo]
    detectors: list[str]
    left_out: dict[str, str]
    missing: list[str]
    run: ImageRunRecord
    estimates: pd.DataFrame | None


def begin(folder: Path, run: ImageRunRecord) -> None:
    """Write the record of a fitted run, with `datasets`, `detectors`, `settings` and `processes`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / RUN, to_json(run.entries()))


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
    run = read_record(folder)
    processes = range(run.processes)
    frames = {
        info: [_frame(_part(folder, number, process)) for process in processes]
        for number, info in enumerate(run.datasets)
        if _is_finished(folder, number, processes)
    }
    finished, missing = list(frames), [info.name for info in run.datasets if info not in frames]
    if not finished:
        raise DataError(
            f"{folder}: the run broke off before it had finished a stream; its fitted detectors, if it came so far, are"
            f" in {folder / 'fitted'} (evaluate again with fitted=...)"
        )
    left_out = _left_out(run.detectors, frames)
    detectors = [name for name in run.detectors if name not in left_out]
    severities = []
    for number, info in enumerate(run.datasets):
        if info.role is Role.POOL and info in frames:
            of_processes = [_frame(_sums(folder, number, process)) for process in processes]
            severities.append(estimates(of_processes, info, detectors, run.confidences))
    joined = pd.concat(severities, ignore_index=True) if severities else None
    # A detector that scores no training images has NaN for them, as in the results of a whole run.
    scores = pd.concat([part for parts in frames.values() for part in parts], ignore_index=True)
    return FinishedStreams(scores, finished, detectors, left_out, missing, run, joined)


def read_record(folder: Path) -> ImageRunRecord:
    """The record of a run that is not complete.

    Raises:
        FileNotFoundError: There is none.
        DataError: It is damaged, or it is the record of a complete run.
    """
    run = ImageRunRecord.of(read_json(folder / RUN, dict), where=str(folder / RUN))
    if not run.processes:
        raise DataError(f"{folder / RUN}: not the record of an unfinished run, `processes` is missing")
    return run


def extent(directory: str | os.PathLike[str]) -> tuple[int, int] | None:
    """How many streams a run that did not come to its end has finished, and of how many; no scores are read.

    Returns:
        Both numbers; None where no such run lies, or its record cannot be read.
    """
    folder = Path(directory)
    try:
        run = read_record(folder)
    except (FileNotFoundError, DataError):
        return None
    number, processes = len(run.datasets), range(run.processes)
    return sum(_is_finished(folder, place, processes) for place in range(number)), number


def broke_off(run: RunRecord) -> str:
    """What the record of a run says of its end, where it broke off; empty for a whole run.

    Example:
        >>> broke_off(RunRecord(unfinished=Unfinished(["far", "unit_tests"])))
        'the run broke off, and of its sets are missing: far, unit_tests'
    """
    if run.unfinished is None:
        return ""
    missing = ", ".join(run.unfinished.missing)
    return "the run broke off, " + (f"and of its sets are missing: {missing}" if missing else "when all sets were done")


def _left_out(detectors: Sequence[str], frames: Mapping[DatasetInfo, Sequence[pd.DataFrame]]) -> dict[str, str]:
    """Detectors without scores of a test stream, which have failed there or before, with the reason."""
    found = {}
    for name in detectors:
        without = [
            info.name
            for info, parts in frames.items()
            if info.role is not Role.TRAIN and not all(name in part for part in parts)
        ]
        if without:
            found[name] = f"has no scores of {', '.join(without)}; the run broke off before it recorded why"
    return found


def _is_finished(folder: Path, number: int, processes: range) -> bool:
    return all(_part(folder, number, process).is_file() for process in processes)


def _part(folder: Path, number: int, process: int) -> Path:
    return folder / SCORES / f"{number:04d}-{process:04d}.parquet"


def _sums(folder: Path, number: int, process: int) -> Path:
    return folder / SCORES / f"{number:04d}-{process:04d}-sums.parquet"


def _frame(part: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(part)
    except (ValueError, OSError) as error:
        raise DataError(f"{part}: not readable as Parquet ({error})") from error
