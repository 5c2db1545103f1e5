"""The part of a stream that one process has recorded; the parts of all processes form the whole stream."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from oodlit.base.errors import DataError
from oodlit.base.json_files import as_type, to_plain
from oodlit.datamodules.keys import key_digest
from oodlit.recorded.manifest import RecordedStream
from oodlit.recorded.store import StoredRows
from oodlit.runs.journal import Journal


@dataclass
class ProcessPart:
    """The part of a stream that one process has recorded.

    Args:
        stream: The stream as the manifest will name it.
        how: What it is recorded of and in: "backbone", "fingerprint", "dtype", "precision", "decoder".
        cut: How streams are cut over processes and workers; a run that resumes must cut them likewise.
        process: Number of the process.
        parts: Files and their rows.
        checksums: CRC-32 by file.
        batches: How many batches they are of.
        skipped: Keys of samples among these that could not be used, and why.
        loss: Largest difference by the dtype, by field.
    """

    stream: dict[str, Any]
    how: dict[str, str]
    cut: dict[str, int]
    process: int
    parts: list[tuple[str, int]] = field(default_factory=list)
    checksums: dict[str, str] = field(default_factory=dict)
    batches: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    loss: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "ProcessPart":
        """Restore a part from the output of `asdict`, or from a file with that output."""
        parts, skipped = ([(name, value) for name, value in plain[field]] for field in ("parts", "skipped"))
        return cls(**{**plain, "parts": parts, "skipped": skipped})

    @property
    def name(self) -> str:
        """Name of the stream."""
        return str(self.stream["name"])

    @property
    def images(self) -> int:
        """Number of images, including skipped ones."""
        return sum(rows for _, rows in self.parts) + len(self.skipped)


def read_process_parts(journal: Journal) -> list[ProcessPart]:
    """All entries of a journal; damaged ones count as missing."""
    found = []
    for file in journal.files():
        with suppress(DataError, TypeError, KeyError, ValueError):
            found.append(ProcessPart.of(journal.read(file)))
    return found


def grouped(all_parts: Iterable[ProcessPart]) -> dict[str, list[ProcessPart]]:
    """Group the parts of processes by stream."""
    groups: dict[str, list[ProcessPart]] = {}
    for one in all_parts:
        groups.setdefault(one.name, []).append(one)
    return groups


def entry_of(all_parts: Sequence[ProcessPart], rows: Path) -> RecordedStream:
    """Return the manifest entry of a stream, if the parts of all processes contain every image once.

    Args:
        all_parts: Those of one stream.
        rows: Folder of the parts.

    Raises:
        DataError: Images are missing, a key came twice, or a part is damaged.
    """
    stream, in_order = all_parts[0].stream, sorted(all_parts, key=lambda one: one.process)
    parts = [part for one in in_order for part in one.parts]
    skipped = sorted((key, reason) for one in all_parts for key, reason in one.skipped)
    stored = StoredRows(rows, parts)
    if (found := len(stored) + len(skipped)) != stream["images"]:
        raise DataError(f"the cache has {found} of {stream['images']} images of {stream['name']!r}; record it again")
    digests = np.fromiter(map(key_digest, _keys(stored, stream, skipped)), dtype=np.uint64, count=found)
    values, counts = np.unique(digests, return_counts=True)
    if len(values) < found:
        repeated = set(values[counts > 1].tolist())
        first = next(key for key in _keys(stored, stream, skipped) if key_digest(key) in repeated)
        raise DataError(f"{first!r} was recorded more than once; expected one image per key")
    losses = [one.loss for one in all_parts]
    loss = {name: max(one.get(name, 0.0) for one in losses) for name in sorted(set().union(*losses))}
    checksums = {file: checksum for one in all_parts for file, checksum in one.checksums.items()}
    entries = to_plain({**stream, "parts": parts, "checksums": checksums, "skipped": skipped, "loss": loss})
    return as_type(entries, RecordedStream, where=f"data set {stream['name']!r}")


def _keys(stored: StoredRows, stream: Mapping[str, Any], skipped: Iterable[tuple[str, str]]) -> Iterator[str]:
    """All keys of a stream, each with the name of the stream as prefix."""
    return chain((f"{stream['name']}/{key}" for key in stored.keys()), (key for key, _ in skipped))  # noqa: SIM118
