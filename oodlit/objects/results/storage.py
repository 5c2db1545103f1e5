"""Files of results of boxes: those of `oodlit.results.files.storage`, and tables of images and objects."""

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from msgspec import structs

from oodlit.errors import DataError
from oodlit.objects.results.evaluation import OBJECT_COLUMNS
from oodlit.objects.results.record import BoxRunRecord
from oodlit.objects.results.tables import Tables
from oodlit.results.files import storage

__all__ = ["KIND", "read", "write"]

KIND = "objects"
"""Entry `kind` of run.json: the rows of `scores.parquet` are boxes."""

PARTS = {"images": "images.parquet", "objects": "objects.parquet"}


def write(
    directory: str | os.PathLike[str],
    *,
    table: pd.DataFrame,
    tables: Tables,
    run: BoxRunRecord,
    add: Callable[[Path], None] | None = None,
    keep: Path | None = None,
) -> Path:
    """Write `table.csv`, `scores.parquet` (boxes), `images.parquet`, `objects.parquet` and `run.json`.

    At any time, `read` returns the old results or the new ones; for `add` and `keep` see
    `oodlit.results.files.storage.write`.
    """
    content = {file: getattr(tables, name).to_parquet(index=False) for name, file in PARTS.items()}
    checksums = {file: hashlib.sha256(data).hexdigest() for file, data in content.items()}

    def add_all(folder: Path) -> None:
        for file, data in content.items():
            (folder / file).write_bytes(data)
        if add is not None:
            add(folder)

    others = [Path(directory) / name for name in storage.BESIDE] if add is None else [keep] if keep else []
    run = structs.replace(run, part_checksums=checksums)
    return storage.write(directory, table=table, scores=tables.boxes, run=run, add=add_all, keep=others)


def read(directory: str | os.PathLike[str]) -> tuple[pd.DataFrame, Tables, BoxRunRecord]:
    """Read the files of `write`.

    Raises:
        DataError: A file is missing, unreadable, or does not belong to the others, or the rows are not boxes.
    """
    source = Path(directory)
    while True:
        if storage.kind_of(source) != KIND and storage.is_complete(source):
            raise DataError(f"{source}: expected results of boxes, got images; load them with oodlit.Results.load")
        table, boxes, run, _ = storage.read(source, BoxRunRecord)
        try:
            parts = {name: _part(source, file, run.part_checksums.get(file, "")) for name, file in PARTS.items()}
        except DataError:
            if storage.read(source, BoxRunRecord)[2] == run:
                raise
            continue  # another process replaced the result between two of these reads
        return _typed(table, source), Tables(boxes, **parts, notes=list(run.notes)), run


def _part(source: Path, file: str, checksum: str) -> pd.DataFrame:
    for path in (source / storage.PENDING / file, source / file):
        if path.is_file() and hashlib.sha256(content := path.read_bytes()).hexdigest() == checksum:
            return pd.read_parquet(io.BytesIO(content))
    raise DataError(f"{source / file}: missing, or changed after run.json was written")


def _typed(table: pd.DataFrame, source: Path) -> pd.DataFrame:
    if missing := [name for name in OBJECT_COLUMNS if name not in table]:
        raise DataError(f"{source}: missing columns {missing} in table.csv; another version of oodlit wrote it")
    for name in ("t_star", "tau", "iou"):
        table[name] = [float(text) if text else float("nan") for text in table[name]]
    return table.astype({"n_objects": "int64", "n_images": "int64"})
