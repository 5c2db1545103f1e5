"""Results on disk: `table.csv`, `scores.parquet`, `run.json`; never half a result."""

import contextlib
import hashlib
import io
import math
import os
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import pandas as pd
from msgspec import structs

from oodlit.base.atomic import fsync, remove, temporary_folder
from oodlit.base.json_files import parse_json, to_json
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.results.run_record import RunRecord

R = TypeVar("R", bound=RunRecord)

TABLE, SCORES, RUN, PENDING = "table.csv", "scores.parquet", "run.json", ".pending"
ESTIMATES = "estimates.parquet"
"""Only with pools."""
UNFINISHED = "unfinished"
"""Folder within that of the results, for what a run has finished while it goes on."""
FILES = (RUN, TABLE, SCORES)
BESIDE = ("report.html", "thumbnails", "fitted", "images.parquet", "objects.parquet")
"""What a run leaves beside its results, from its fit to its page."""
GONE = ".gone-"
"""Begins the name of an empty file that stands for a part which the new result does not have."""
_ATTEMPTS = 20
_ENTRIES = ("checksums", "datasets", "detectors", "settings", "thresholds")
_NUMBERS = ("value", "ci_low", "ci_high")
_COUNTS = ("n_id", "n_ood")


def write(
    directory: str | os.PathLike[str],
    *,
    table: pd.DataFrame,
    scores: pd.DataFrame,
    run: RunRecord,
    estimates: pd.DataFrame | None = None,
    add: Callable[[Path], None] | None = None,
    keep: Path | Collection[Path] | None = None,
) -> Path:
    """Write a result: at every instant `read` gives the old one or the new one, also after a kill or a power cut.

    A new directory appears by one rename. In a directory that exists, the new files are completed in a folder of their
    own; its rename to `.pending` is the moment at which they replace the old ones, and only then are they moved to
    their places. `read` looks into `.pending` first, and the next `write` ends a move that was interrupted and removes
    what killed writers left. Processes that write at once leave the result of one of them.

    Args:
        directory: Where to; parents are made.
        table: The tidy table.
        scores: The per-image scores.
        run: The record of the run.
        estimates: Severities of the classes of pools.
        add: Puts what else the run leaves (of `BESIDE`) into the folder that it is given. Together with the results it
            replaces what lies in the directory; what it does not put there is removed. None = other files stay.
        keep: A path that is not removed, or several, such as the fitted detectors that the run used.

    Returns:
        The directory.
    """
    target = Path(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Inside a directory that exists: it may be a mount point, and a rename must not leave its file system.
    inside = target.is_dir()
    with temporary_folder(target, inside=inside) as temporary:
        table.to_csv(temporary / TABLE, index=False, lineterminator="\n")
        scores.to_parquet(temporary / SCORES, index=False)
        if estimates is not None:
            estimates.to_parquet(temporary / ESTIMATES, index=False)
        elif (target / ESTIMATES).exists():
            (temporary / f"{GONE}{ESTIMATES}").touch()
        written = [name for name in (TABLE, SCORES, ESTIMATES) if (temporary / name).is_file()]
        checksums = {name: hashlib.sha256((temporary / name).read_bytes()).hexdigest() for name in written}
        (temporary / RUN).write_text(to_json(structs.replace(run, checksums=checksums).entries()), encoding="utf-8")
        if add is not None:
            add(temporary)
            kept = {path.resolve() for path in ([keep] if isinstance(keep, Path) else keep or ())}
            for name in BESIDE:
                if not (temporary / name).exists() and (target / name).resolve() not in kept:
                    (temporary / f"{GONE}{name}").touch()
        for path in temporary.rglob("*"):
            fsync(path)
        fsync(temporary)
        if inside or not _renamed(temporary, target):
            _replace(temporary, target)
        else:  # a new directory: nothing had to go
            for mark in target.glob(f"{GONE}*"):
                mark.unlink(missing_ok=True)
        fsync(target.parent)
    return target


def check_replaceable(directory: str | os.PathLike[str], *, keep: Path | None = None) -> bool:
    """Refuse a folder with parts of results but without the record that says which run they are of.

    A run writes its record first. Where it is missing, somebody has removed it, or the parts are of something else.

    Args:
        directory: Where results are to be written; need not exist.
        keep: A path within that the run does not replace, such as the fitted detectors that it uses.

    Returns:
        Whether the results of an earlier run lie there, or what it had finished; they will be replaced.

    Raises:
        InvalidArgumentError: Parts of results without `run.json`.
    """
    target = Path(directory)
    if any((target / place / RUN).is_file() for place in ("", PENDING, UNFINISHED)):
        return True
    kept = None if keep is None else keep.resolve()
    if parts := [
        name
        for name in (TABLE, SCORES, ESTIMATES, *BESIDE)
        if (target / name).exists() and (target / name).resolve() != kept
    ]:
        raise InvalidArgumentError(
            f"{target} holds {', '.join(parts)} but no {RUN}: it is unknown of which run, and a run would replace it"
            " - move it away, or name another folder"
        )
    return False


def is_complete(directory: str | os.PathLike[str]) -> bool:
    """Whether a folder holds the results of a run that came to its end."""
    return any((Path(directory) / place / TABLE).is_file() for place in ("", PENDING))


def kind_of(directory: str | os.PathLike[str]) -> str:
    """The kind of complete results, "images" or "objects"; "images" if there are none."""
    content = _content(Path(directory), RUN)
    entries = {} if content is None else parse_json(content, dict, where=str(Path(directory, RUN)))
    return str(entries.get("kind", "images"))


def read(directory: str | os.PathLike[str], kind: type[R]) -> tuple[pd.DataFrame, pd.DataFrame, R, pd.DataFrame | None]:
    """Read table, scores and record, and the estimates of pools where there are some.

    Args:
        directory: Folder of the results.
        kind: Type of the record.

    Raises:
        DataError: A file is missing, unreadable, or does not belong to the others.
    """
    source = Path(directory)
    while True:
        run = _content(source, RUN)
        try:
            return _parsed(
                source, {RUN: run} | {name: _content(source, name) for name in (TABLE, SCORES, ESTIMATES)}, kind
            )
        except DataError:
            if _content(source, RUN) == run:
                raise
            # Another process replaced the result between two of these reads.


def _content(source: Path, name: str) -> bytes | None:
    """A file as it is now, that of an unfinished replacement first; None if there is none."""
    # Twice: the file may come there, or go from there, between two looks.
    for path in (source / PENDING / name, source / name, source / PENDING / name, source / name):
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise DataError(f"{path}: not readable ({error})") from error
    return None


def _parsed(
    source: Path, found: dict[str, bytes | None], kind: type[R]
) -> tuple[pd.DataFrame, pd.DataFrame, R, pd.DataFrame | None]:
    content = {name: value for name, value in found.items() if value is not None}
    if missing := [name for name in FILES if name not in content]:
        raise DataError(f"{source}: incomplete results, missing {', '.join(missing)}; a run writes them at its end")
    run = _record(content[RUN], source / RUN, kind)
    if ESTIMATES in run.checksums and ESTIMATES not in content:
        raise DataError(f"{source}: incomplete results, missing {ESTIMATES}; a run writes it at its end")
    for name, checksum in run.checksums.items():
        if name in content and hashlib.sha256(content[name]).hexdigest() != checksum:
            raise DataError(f"{source / name}: not the file that {RUN} was written with; it was changed afterwards")
    estimates = _parquet(source, content, ESTIMATES) if ESTIMATES in run.checksums else None
    table, scores = _table(content[TABLE], source / TABLE), _parquet(source, content, SCORES)
    return table, scores, structs.replace(run, checksums={}), estimates


def _record(content: bytes, path: Path, kind: type[R]) -> R:
    """The record of complete results."""
    entries = parse_json(content, dict, where=str(path))
    if missing := [name for name in _ENTRIES if name not in entries]:
        raise DataError(f"{path}: not the record of complete results, missing {', '.join(missing)}")
    run = kind.of(entries, where=str(path))
    if missing := [name for name in (TABLE, SCORES) if name not in run.checksums]:
        raise DataError(f"{path}: the checksums are damaged, missing {', '.join(missing)}")
    return run


def _table(content: bytes, path: Path) -> pd.DataFrame:
    try:
        # As text first: the number parser of pandas is not exact in every version, Python's own is.
        table = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
        for name in _NUMBERS:
            table[name] = [float(text) if text else math.nan for text in table[name]]
        return table.astype(dict.fromkeys(_NUMBERS, "float64") | dict.fromkeys(_COUNTS, "int64"))
    except (ValueError, KeyError) as error:
        raise DataError(f"{path}: not a table of oodlit ({error})") from error


def _parquet(source: Path, content: dict[str, bytes], name: str) -> pd.DataFrame:
    try:
        return pd.read_parquet(io.BytesIO(content[name]))
    except (ValueError, OSError) as error:
        raise DataError(f"{source / name}: not readable as Parquet ({error})") from error


def _renamed(temporary: Path, target: Path) -> bool:
    """Rename to a target that did not exist; False if another process has made it meanwhile."""
    try:
        temporary.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        return False
    return True


def _replace(temporary: Path, target: Path) -> None:
    """Put the files of `temporary` in the place of those in `target`."""
    pending = target / PENDING
    for attempt in range(_ATTEMPTS):
        _finish(target)
        try:
            temporary.rename(pending)  # from here on it is the new result that is read
            break
        except OSError:
            if attempt == _ATTEMPTS - 1 or not pending.is_dir():  # else: another process was faster, end its work first
                raise
    fsync(target)
    _finish(target)


def _finish(target: Path) -> None:
    """Move what a replacement left in `.pending` to its place; any number of processes may do so at once."""
    pending = target / PENDING
    for name in FILES:
        with contextlib.suppress(FileNotFoundError):  # moved already
            (pending / name).replace(target / name)
    for name in (ESTIMATES, *BESIDE):
        if (pending / f"{GONE}{name}").exists():
            remove(target / name)
            (pending / f"{GONE}{name}").unlink(missing_ok=True)
        elif (pending / name).exists():
            _exchange(pending, target, name)
    fsync(target)
    with contextlib.suppress(OSError):  # gone, or filled anew by another process, which ends it itself
        pending.rmdir()


def _exchange(pending: Path, target: Path, name: str) -> None:
    """Put a part, which may be a folder, in the place of the old one."""
    old = target / f".{name}.{uuid.uuid4().hex[:8]}.tmp"
    with contextlib.suppress(FileNotFoundError):
        (target / name).rename(old)
    try:
        (pending / name).rename(target / name)
    except FileNotFoundError:  # another process has just put it there, and what was moved away is the new one
        with contextlib.suppress(OSError):
            old.rename(target / name)
    remove(old)
