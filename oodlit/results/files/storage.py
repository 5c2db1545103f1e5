"""Results on disk: `table.csv`, `scores.parquet`, `run.json`, replaced all at the same moment."""

import contextlib
import hashlib
import io
import math
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow.parquet as pq
from msgspec import structs

from oodlit.base.atomic import fsync, move, remove, temporary_folder
from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.json_files import checksums_of, parse_json, to_json, to_plain
from oodlit.base.sizes import check_parquet
from oodlit.results.run_record import RunRecord

R = TypeVar("R", bound=RunRecord)

TABLE, SCORES, RUN, PENDING = "table.csv", "scores.parquet", "run.json", ".pending"
ESTIMATES = "estimates.parquet"
"""File that exists only with pools."""
UNFINISHED = "unfinished"
"""Subfolder for the finished streams of a run that is not complete."""
LOCK = ".lock"
"""File that a run locks in its folder until it ends."""
FILES = (RUN, TABLE, SCORES)
IMAGES, OBJECTS = "images.parquet", "objects.parquet"
"""Files that exist only for runs of boxes."""
PARTS = (ESTIMATES, IMAGES, OBJECTS)
BESIDE = ("report.html", "thumbnails", "fitted")
"""Other files of a run, such as the fit and the page."""
GONE = ".gone-"
"""Prefix of an empty file that marks a part which the new results do not have."""
_ATTEMPTS = 20
_ENTRIES = ("checksums", "datasets", "detectors", "settings", "thresholds")
_CHECKED = ("confidences", "counts", "data", "datasets", "detector_settings", "detectors", "masked_accuracy", "pools",
            "settings", "thresholds", "trainer", "class_names", "id_quality", "t_star_rule", "fit_on")  # fmt: skip
"""Entries of the record that say how the numbers came about."""
_NUMBERS = ("value", "ci_low", "ci_high", "t_star", "tau", "iou")
_COUNTS = ("n_id", "n_ood", "n_objects", "n_images")
"""Columns of the table. All after `ci_high` and after `n_ood` exist for boxes only."""


def write(
    directory: str | os.PathLike[str],
    *,
    table: pd.DataFrame,
    scores: pd.DataFrame,
    run: RunRecord,
    parts: Mapping[str, pd.DataFrame] | None = None,
    add: Callable[[Path], None] | None = None,
    keep: Path | Collection[Path] | None = None,
) -> Path:
    """Write results: at any moment `read` returns the old or the new ones, even after a crash or power failure.

    A new directory appears by one rename. In an existing directory, the new files are completed in a temporary folder.
    Renaming it to `.pending` is the moment at which they replace the old ones; only then are they moved to their
    places. `read` looks into `.pending` first. The next `write` completes an interrupted move and removes leftovers of
    interrupted writers. If several processes write concurrently, the results of one of them remain. File systems that
    cannot rename folders have no such moment: there, the old table is removed first and the new one comes last, so an
    interrupted replacement is not complete, and the run is repeated.

    Args:
        directory: Target folder; parents are created.
        table: The tidy table.
        scores: The scores of images or boxes.
        run: The record of the run.
        parts: Further tables by name of the file, one of `PARTS`.
        add: Writes the other files of the run (of `BESIDE`) into the folder that it receives. They replace those in the
            directory together with the results; parts that it does not write are removed. None = other files stay.
        keep: Path or paths that are not removed, such as the fitted detectors that the run used.

    Returns:
        The directory.
    """
    target = Path(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Inside an existing directory, which may be a mount point: a rename must not leave its file system.
    inside = target.is_dir()
    with temporary_folder(target, inside=inside) as temporary:
        table.to_csv(temporary / TABLE, index=False, lineterminator="\n")
        scores.to_parquet(temporary / SCORES, index=False)
        for name, part in (parts or {}).items():
            part.to_parquet(temporary / name, index=False)
        written = [name for name in (TABLE, SCORES, *PARTS) if (temporary / name).is_file()]
        for name in PARTS:
            if name not in written and (target / name).exists():
                (temporary / f"{GONE}{name}").touch()
        checksums = {name: hashlib.sha256((temporary / name).read_bytes()).hexdigest() for name in written}
        entries = structs.replace(run, checksums=checksums).entries()
        entries["entry_checksums"] = _entry_checksums(to_plain(entries))
        (temporary / RUN).write_text(to_json(entries), encoding="utf-8")
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
        else:  # a new directory: there is nothing to remove
            for mark in target.glob(f"{GONE}*"):
                mark.unlink(missing_ok=True)
        fsync(target.parent)
    return target


def check_replaceable(directory: str | os.PathLike[str], *, keep: Path | None = None) -> bool:
    """Reject a folder with parts of results but without the record of their run.

    A run writes its record first. If it is missing, it was removed, or the parts have another origin.

    Args:
        directory: Target folder of results; may be missing.
        keep: A path in it that the run does not replace, such as the fitted detectors that it uses.

    Returns:
        Whether results of an earlier run, finished or not, were found and will be replaced.

    Raises:
        InvalidArgumentError: Parts of results without `run.json`.
    """
    target = Path(directory)
    if any((target / place / RUN).is_file() for place in ("", PENDING, UNFINISHED)):
        return True
    there = [target / name for name in (TABLE, SCORES, *PARTS, *BESIDE) if (target / name).exists()]
    if parts := [path.name for path in there if keep is None or path.resolve() != keep.resolve()]:
        raise InvalidArgumentError(
            f"{target} contains {', '.join(parts)} but no {RUN}, so these files may not be results of oodlit. A run"
            " would overwrite them; move them, or choose another folder"
        )
    return False


def is_complete(directory: str | os.PathLike[str]) -> bool:
    """Whether a folder has the results of a complete run."""
    return any((Path(directory) / place / TABLE).is_file() for place in ("", PENDING))


def kind_of(directory: str | os.PathLike[str]) -> str:
    """The kind of complete results, "images" or "objects"; "images" if there are none."""
    content = _content(Path(directory), RUN)
    entries = {} if content is None else parse_json(content, dict, where=str(Path(directory, RUN)))
    return str(entries.get("kind", "images"))


def read(
    directory: str | os.PathLike[str], kind: type[R]
) -> tuple[pd.DataFrame, pd.DataFrame, R, dict[str, pd.DataFrame]]:
    """Read table, scores, record, and further tables by name of the file.

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
            found = {RUN: run} | {name: _content(source, name) for name in (TABLE, SCORES, *PARTS)}
            return _parsed(source, found, kind)
        except DataError:
            if _content(source, RUN) == run:
                raise
            # Another process replaced the result between two of these reads.


def _content(source: Path, name: str) -> bytes | None:
    """The current content of a file, first of an unfinished replacement; None if there is none."""
    # Twice: the file may be moved between two attempts.
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
) -> tuple[pd.DataFrame, pd.DataFrame, R, dict[str, pd.DataFrame]]:
    content = {name: value for name, value in found.items() if value is not None}
    _check_present(FILES, content, source)
    run = _record(content[RUN], source / RUN, kind)
    _check_present(run.checksums, content, source)
    for name, checksum in run.checksums.items():
        if hashlib.sha256(content[name]).hexdigest() != checksum:
            raise DataError(f"{source / name} does not match its checksum in {RUN}; restore it or repeat the run")
    parts = {name: read_parquet(source / name, content[name]) for name in PARTS if name in run.checksums}
    most = sum(getattr(run, "counts", {}).values()) or None
    table, scores = _table(content[TABLE], source / TABLE), read_parquet(source / SCORES, content[SCORES], most=most)
    _check_entries(content[RUN], run.entry_checksums, source / RUN)
    return table, scores, structs.replace(run, checksums={}, entry_checksums={}), parts


def _entry_checksums(entries: Mapping[str, Any]) -> dict[str, str]:
    """Checksums of the entries in `_CHECKED` and of every setting, by name."""
    found = {name: entries[name] for name in _CHECKED if name in entries}
    return checksums_of(found | {f"settings.{name}": value for name, value in found.pop("settings", {}).items()})


def _check_entries(content: bytes, known: Mapping[str, str], path: Path) -> None:
    """Refuse a record whose entries were changed; records of earlier versions have no checksums of entries."""
    found = _entry_checksums(parse_json(content, dict, where=str(path))) if known else {}
    if changed := sorted(name for name in known.keys() | found.keys() if known.get(name) != found.get(name)):
        raise DataError(
            f"{path}: these entries were changed after the run: {', '.join(changed)}. They no longer describe the"
            " results; restore the file. To evaluate with other settings, use recompute()"
        )


def _check_present(names: Iterable[str], content: Collection[str], source: Path) -> None:
    if not source.exists():
        raise DataError(f"{source}: this folder does not exist; the working folder is {Path.cwd()}")
    if missing := [name for name in names if name not in content]:
        found = f"incomplete results; missing {', '.join(missing)}, which a run writes at its end"
        raise DataError(f"{source}: {found}. Check the path, or repeat the run")


def _record(content: bytes, path: Path, kind: type[R]) -> R:
    """The record of complete results."""
    entries = parse_json(content, dict, where=str(path))
    if missing := [name for name in _ENTRIES if name not in entries]:
        raise DataError(f"{path} is missing {', '.join(missing)}, so the run is incomplete; repeat it")
    # Earlier results of boxes have the checksums of their further tables in a separate entry.
    if isinstance(entries["checksums"], dict):
        entries["checksums"] |= entries.pop("part_checksums", {})
    run = kind.of(entries, where=str(path))
    if missing := [name for name in (TABLE, SCORES) if name not in run.checksums]:
        raise DataError(f"{path}: checksums of {', '.join(missing)} are missing; the file is damaged")
    return run


def _table(content: bytes, path: Path) -> pd.DataFrame:
    try:
        # As text first: Python parses numbers exactly, pandas does not in every version.
        table = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
        numbers, counts = (_NUMBERS, _COUNTS) if "t_star" in table else (_NUMBERS[:3], _COUNTS[:2])
        for name in numbers:
            table[name] = [float(text) if text else math.nan for text in table[name]]
        return table.astype(dict.fromkeys(numbers, "float64") | dict.fromkeys(counts, "int64"))
    except (ValueError, KeyError) as error:
        raise DataError(f"{path} is not a table written by oodlit ({error})") from error


def read_parquet(path: Path, content: bytes | None = None, *, most: int | None = None) -> pd.DataFrame:
    """Read a table from a file.

    Args:
        path: The file.
        content: Its content where that was read before.
        most: Largest number of rows, according to the record of the run; None = unknown.

    Raises:
        DataError: The file is not readable, has more rows, or would expand to far more than its size.
    """
    try:
        content = path.read_bytes() if content is None else content
        about = pq.read_metadata(io.BytesIO(content))
        if most is not None and about.num_rows > most:
            raise DataError(f"{path}: expected at most {most:,} rows according to {RUN}, got {about.num_rows:,}")
        check_parquet(path, content, packed=len(content))
        return pd.read_parquet(io.BytesIO(content), page_checksum_verification=True)
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet ({error})") from error


def _renamed(temporary: Path, target: Path) -> bool:
    """Move to a new target; False if another process has created it meanwhile."""
    try:
        move(temporary, target, last=TABLE)
    except OSError:
        if not target.is_dir():
            raise
        return False
    return True


def _replace(temporary: Path, target: Path) -> None:
    """Replace the files in `target` by those in `temporary`."""
    pending = target / PENDING
    for attempt in range(_ATTEMPTS):
        _finish(target)
        try:
            temporary.rename(pending)  # from here on, the new results are read
            break
        except OSError:
            if not pending.is_dir():  # a file system that cannot rename folders, such as a mounted object store
                (target / TABLE).unlink(missing_ok=True)  # an interruption must not leave parts of two runs
                fsync(target)
                _take(temporary, target)
                return
            # Another process was faster: complete its move first.
            if attempt == _ATTEMPTS - 1:
                raise
    fsync(target)
    _finish(target)


def _finish(target: Path) -> None:
    """Move the content of `.pending` to its place; several processes may do so concurrently."""
    pending = target / PENDING
    _take(pending, target)
    with contextlib.suppress(OSError):  # gone, or filled again by another process, which completes it
        pending.rmdir()


def _take(pending: Path, target: Path) -> None:
    """Move new results to their place, and remove parts that they do not have; the table comes last."""
    for name in (*PARTS, *BESIDE):
        if (pending / f"{GONE}{name}").exists():
            remove(target / name)
            (pending / f"{GONE}{name}").unlink(missing_ok=True)
        elif (pending / name).exists():
            _exchange(pending, target, name)
    for name in (RUN, SCORES, TABLE):
        with contextlib.suppress(FileNotFoundError):  # moved already
            (pending / name).replace(target / name)
    fsync(target)


def _exchange(pending: Path, target: Path, name: str) -> None:
    """Replace a part, which may be a folder."""
    old = target / f".{name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        (target / name).rename(old)
    except FileNotFoundError:
        pass
    except OSError:  # folders cannot be renamed
        remove(target / name)
    try:
        move(pending / name, target / name)
    except FileNotFoundError:  # another process has just moved it, so that the old name is the new part
        with contextlib.suppress(OSError):
            old.rename(target / name)
    remove(old)
