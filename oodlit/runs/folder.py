"""The output folder of a run: finished streams during the run; results, fit, thumbnails and page at the end.

Until the end, everything lies in `unfinished` within the folder, and the results of an earlier run stay whole. At the
end one switch replaces them by the new ones, and `unfinished` goes.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pandas as pd
from msgspec import structs

from oodlit.base.atomic import lock, move, remove, temporary_folder
from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.processes.distributed import Group, gather_objects
from oodlit.detectors import Detector, FitOrigin, save
from oodlit.detectors.contract.saving import fit_digest
from oodlit.results import DatasetInfo
from oodlit.results.files import unfinished
from oodlit.results.files.storage import LOCK, UNFINISHED
from oodlit.results.run_record import RunRecord
from oodlit.runs.journal import Progress

FITTED = "fitted"


class OutputFolder:
    """The folder that a run writes to.

    Args:
        path: The folder; made if need be.
        process: Number of this process, from 0.
        processes: How many there are.
        saved_fit: Folder of fitted detectors that the run uses and must keep; it may lie within `path`.
        fit: Digest of that fit.

    Attributes:
        fit: Digest of the fit that the run uses; empty until there is one.
        progress: How far the run has come; set once it is known what run it is.

    """

    def __init__(
        self, path: Path, *, process: int, processes: int, saved_fit: Path | None = None, fit: str = ""
    ) -> None:
        self.path, self._unfinished = path, path / UNFINISHED
        # What lies in `unfinished` goes with it: such a fit is saved again, as this run's own.
        is_rescued = saved_fit is not None and self._unfinished.resolve() in saved_fit.resolve().parents
        self.saved_fit = None if is_rescued or saved_fit is None else saved_fit.resolve()
        self.fit = "" if self.saved_fit is None else fit
        self._process, self._processes = process, processes
        self._numbers: dict[str, int] = {}
        self._kept: set[str] = set()
        self.progress: Progress

    @property
    def kept_fit(self) -> Path | None:
        """The fit of an interrupted run."""
        folder = self._unfinished / FITTED
        return folder if folder.is_dir() else None

    def kept_record(self) -> RunRecord | None:
        """The record of an interrupted run; None if there is none, or if it is not readable."""
        try:
            return unfinished.read_record(self._unfinished, RunRecord)
        except (FileNotFoundError, DataError):
            return None

    def begin(
        self,
        record: RunRecord,
        datasets: Sequence[DatasetInfo],
        detectors: Mapping[str, Detector],
        origin: FitOrigin,
        group: Group,
    ) -> None:
        """Save the record and the fit after fitting; all processes must call it."""
        self._numbers = {info.name: number for number, info in enumerate(datasets)}
        if self._process == 0:
            more = {"datasets": list(datasets), "detectors": list(detectors), "processes": self._processes}
            with temporary_folder(self._unfinished) as folder:  # what an earlier run had finished stays until then
                if self.saved_fit is None:
                    save(detectors, folder / FITTED, origin)
                    self.fit = fit_digest(folder / FITTED)
                unfinished.begin(folder, structs.replace(record, **more, fit_digest=self.fit))
                remove(self._unfinished)
                move(folder, self._unfinished)
        self.fit = gather_objects(group, self.fit)[0]  # nobody writes scores before the folder is the new one

    def resume(self, datasets: Sequence[DatasetInfo], over: Collection[str]) -> None:
        """Resume with the record and fit of an earlier start; `over` lists streams whose scores are already saved."""
        self._numbers = {info.name: number for number, info in enumerate(datasets)}
        self._kept |= set(over)
        self.fit = fit_digest(self._unfinished / FITTED)

    def keep_scores(
        self,
        dataset: str,
        frame: Callable[..., pd.DataFrame],
        sums: Callable[..., pd.DataFrame] | None = None,
        *,
        detectors: Sequence[str],
    ) -> None:
        """Save this process's scores of a finished stream; a second call for the same stream does nothing."""
        if dataset not in self._kept:
            self._kept.add(dataset)
            place = self._unfinished, self._numbers[dataset], self._process
            if sums is not None:  # first: the stream is finished when the scores are there
                unfinished.write_part(*place, sums(detectors=detectors), unfinished.SUMS)
            unfinished.write_part(*place, frame(detectors=detectors))

    def finish(
        self,
        write: Callable[..., Path],
        draw: Callable[[Path], None],
        detectors: Mapping[str, Detector],
        origin: FitOrigin | None,
    ) -> Exception | None:
        """Write results, fit, thumbnails and page, and replace those of an earlier run in one step.

        Args:
            write: Writes the results: `write(folder, add=..., keep=...)`.
            draw: Puts thumbnails and page into the folder that it is given.
            detectors: What was fitted.
            origin: What the fit belongs to.

        Returns:
            Why the page could not be drawn, if it could not: the numbers are kept whatever happens to a picture.
        """
        failed: list[Exception] = []

        def add(folder: Path) -> None:
            if self.saved_fit is None and not _linked(self._unfinished / FITTED, folder / FITTED):
                save(detectors, folder / FITTED, origin)
            try:
                draw(folder)
            except Exception as error:  # pictures, decoders and templates fail with types of their own
                for part in ("thumbnails", "report.html"):
                    remove(folder / part)
                failed.append(error)

        write(self.path, add=add, keep=self.saved_fit)
        remove(self._unfinished)
        self.progress.clear()
        return failed[0] if failed else None

    @property
    def kept(self) -> Path | None:
        """Folder with the finished part of an interrupted run; None if nothing is finished."""
        return self._unfinished if (self._unfinished / unfinished.RUN).is_file() else None


def lock_folder(folder: Path, *, what: str = "output_dir", name: str = LOCK) -> contextlib.ExitStack:
    """Lock a folder until the returned object is closed, so that two runs cannot mix their files.

    Args:
        folder: The folder; it exists.
        what: What messages call it.
        name: Of the file that is locked.

    Raises:
        InvalidArgumentError: Another run holds it.
    """
    held, lock_file = contextlib.ExitStack(), folder / name
    try:
        held.enter_context(lock(lock_file, wait=False))
    except BlockingIOError as error:
        raise InvalidArgumentError(
            f"{what}={str(folder)!r}: another run is writing to this folder; wait until that run is complete, or"
            " choose another folder"
        ) from error
    held.callback(lock_file.unlink, missing_ok=True)
    return held


def check_not_in_use(folder: Path) -> None:
    """Check that no other run is writing to an existing folder.

    Raises:
        InvalidArgumentError: Another run is writing there, or nothing can be written there.
    """
    if folder.is_dir():
        check_writable(folder)
        lock_folder(folder).close()


def working_folder(folder: Path) -> str:
    """The working folder of the run relative to its output folder; empty if there is no such path, on Windows."""
    try:
        return Path(os.path.relpath(Path.cwd(), folder)).as_posix()
    except ValueError:  # another drive
        return ""


def _linked(source: Path, target: Path) -> bool:
    """Copy a folder of files, by links if possible; False if the folder does not exist."""
    if not source.is_dir():
        return False
    target.mkdir()
    for file in source.iterdir():
        try:
            os.link(file, target / file.name)
        except OSError:  # a file system without links
            shutil.copy2(file, target / file.name)
    return True


def check_writable(folder: Path, *, what: str = "output_dir") -> None:
    """Create a folder, and check that files can be written to it.

    Args:
        folder: The folder.
        what: What messages call it.

    Raises:
        InvalidArgumentError: Nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"{what}={str(folder)!r}: cannot write to this folder ({error}); choose a writable folder"
        ) from error
