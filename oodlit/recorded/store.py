"""Recorded outputs on disk: memory-mapped parts in safetensors, and a manifest in JSON.

A folder contains `cache.json`, `head.safetensors` if the network has a linear head, and one file for some tens of
megabytes of rows: `features`, `logits` (float32, float16 or bfloat16), `labels`, `groups` (int64), and the keys as
UTF-8 text one after the other (`keys`, uint8) with the end of each (`key_ends`, int64).
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import structs
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from oodlit.base.atomic import fsync, write_text
from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.inside import file_inside
from oodlit.base.json_files import as_type, read_json, to_plain
from oodlit.base.outputs import Head
from oodlit.datamodules.stream import locate_range
from oodlit.recorded.manifest import FORMAT, OTHERWISE, Manifest
from oodlit.recorded.rows import Rows, RowSource, concatenate

MANIFEST, HEAD = "cache.json", "head.safetensors"
AGAIN = "; record the cache again"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_REQUIRED = {"labels", "groups", "keys", "key_ends"}
PART_BYTES = 64_000_000
"""Rows are kept in memory until they fill a file of about this size."""


@dataclass
class PartWriter:
    """Writes one process's rows of one stream, in parts.

    Args:
        folder: Folder of the parts; created if missing.
        prefix: Start of every file name.
        dtype: Dtype of features and logits.
    """

    folder: Path
    prefix: str
    dtype: torch.dtype = torch.float32
    parts: list[tuple[str, int]] = field(default_factory=list)
    """Files and their rows."""
    checksums: dict[str, str] = field(default_factory=dict)
    """CRC-32 by file."""
    loss: dict[str, float] = field(default_factory=dict)
    """Largest rounding error by field, in the units of the field."""
    _waiting: list[Rows] = field(default_factory=list)
    _bytes: int = 0

    def add(self, rows: Rows) -> None:
        """Keep some rows.

        Raises:
            InvalidArgumentError: A value is too large for the dtype.
        """
        logits, features = (self._converted(name, getattr(rows, name), rows.keys) for name in ("logits", "features"))
        labels, groups = rows.labels.cpu(), rows.groups.cpu()
        self._waiting.append(Rows(logits, features, labels, groups, list(rows.keys)))
        self._bytes += sum(0 if part is None else part.nbytes for part in (logits, features)) + 16 * len(rows)

    @property
    def is_full(self) -> bool:
        """Whether the rows in memory fill a file."""
        return self._bytes >= PART_BYTES

    def flush(self) -> None:
        """Write the rows in memory to disk.

        Raises:
            OSError: The file cannot be written, as on a full disk; no partial file remains.
        """
        waiting = [rows for rows in self._waiting if len(rows)]
        self._waiting, self._bytes = [], 0
        if not waiting:
            return
        rows = concatenate(waiting)
        tensors = {
            name: values.contiguous()
            for name in ("logits", "features", "labels", "groups")
            if (values := getattr(rows, name)) is not None
        }
        keys = [key.encode(errors="surrogatepass") for key in rows.keys]
        tensors["keys"] = torch.from_numpy(np.frombuffer(b"".join(keys) or b"\0", dtype=np.uint8).copy())
        tensors["key_ends"] = torch.tensor(list(accumulate(map(len, keys))), dtype=torch.int64)
        name = f"{self.prefix}-{len(self.parts):05d}.safetensors"
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            save_file(tensors, self.folder / name)
            fsync(self.folder / name)
            fsync(self.folder)
        except (OSError, SafetensorError) as error:
            (self.folder / name).unlink(missing_ok=True)
            raise OSError(f"{self.folder / name} cannot be written ({error})") from error
        self.parts.append((name, len(keys)))
        self.checksums[name] = checksum_of(self.folder / name)

    def _converted(self, name: str, values: Tensor | None, keys: Sequence[str]) -> Tensor | None:
        if values is None:
            return None
        kept = values.to("cpu", self.dtype)
        if self.dtype is not torch.float32:
            lost = (kept.float() - values.cpu()).abs()
            if bool((kept.isinf() & ~values.cpu().isinf()).any()):
                row = int((kept.isinf().any(dim=1)).nonzero()[0])
                raise InvalidArgumentError(
                    f"cache: {name} of {keys[row]!r} reach {float(values[row].abs().max()):.3g}, which is too large"
                    f" for {self.dtype}; choose bfloat16 or float32 with FeatureCache(dtype=...) or --cache_dtype"
                )
            self.loss[name] = max(self.loss.get(name, 0.0), float(lost.nan_to_num(0.0).amax()) if len(lost) else 0.0)
        return kept.clone() if kept.data_ptr() == values.data_ptr() else kept


class StoredRows(RowSource):
    """The rows of one stream on disk; slices are read on request.

    Args:
        folder: Folder of the parts.
        parts: Files and their rows.
        checksums: CRC-32 by file, checked before the first rows of a file are read; files without one are not checked.
        skipped: Keys of images that were unusable in the recording, starting with the stream's name, and the reasons.
        content: Digest of the images behind these rows.
        whole_size: Number of images of the whole set; None = these and the skipped ones.

    Raises:
        DataError: A part is missing or damaged, or has another number of rows. When rows are read: another checksum.
    """

    def __init__(
        self,
        folder: Path,
        parts: Sequence[Sequence[Any]],
        *,
        checksums: Mapping[str, str] | None = None,
        skipped: Sequence[Sequence[str]] = (),
        content: str = "",
        whole_size: int | None = None,
    ) -> None:
        self.folder, self.parts = folder, tuple((str(file), int(rows)) for file, rows in parts)
        self.skipped, self.content = [(key, reason) for key, reason in skipped], content
        self._ends = list(accumulate(rows for _, rows in self.parts))
        self.whole_size = len(self) + len(self.skipped) if whole_size is None else whole_size
        self._open: dict[str, Any] = {}
        self._unchecked = dict(checksums or {})
        shapes = {self._check(file, rows) for file, rows in self.parts}
        if len(shapes) > 1:
            raise DataError(f"{folder}: files of one data set differ in the number of features or logits{AGAIN}")
        self.width, self.num_classes = shapes.pop() if shapes else (0, 0)

    def _check(self, file: str, rows: int) -> tuple[int, int]:
        try:
            part = self._part(file)
            sizes = {name: part.get_slice(name).get_shape() for name in part.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise DataError(f"{self.folder / file} is missing or damaged ({error}){AGAIN}") from error
        counts = {size[0] for name, size in sizes.items() if name != "keys"}
        if counts != {rows}:
            raise DataError(f"{self.folder / file}: expected {rows} rows in every array, got {sorted(counts)}{AGAIN}")
        if not _REQUIRED <= sizes.keys() <= _REQUIRED | {"features", "logits"}:
            raise DataError(
                f"{self.folder / file}: expected the arrays {', '.join(sorted(_REQUIRED))}, and features or logits; got"
                f" {', '.join(sorted(sizes))}{AGAIN}"
            )
        return sizes.get("features", [0, 0])[1], sizes.get("logits", [0, 0])[1]

    def __len__(self) -> int:
        """Number of images."""
        return self._ends[-1] if self._ends else 0

    def rows(self, start: int, stop: int) -> Rows:
        """Rows start, ..., stop - 1."""
        places = locate_range(self._ends, start, stop)
        found = [self._slice(self.parts[index][0], place.start, place.stop) for index, place in places]
        if not found:
            none = torch.zeros(0, dtype=torch.int64)
            return Rows(torch.zeros(0, self.num_classes), torch.zeros(0, self.width), none, none, [])
        return found[0] if len(found) == 1 else concatenate(found)

    def keys(self) -> Iterator[str]:
        """All keys; nothing else is read, and no checksum."""
        for file, rows in self.parts:
            yield from self._keys(file, 0, rows)

    def _slice(self, file: str, start: int, stop: int) -> Rows:
        part = self._part(file)
        if (checksum := self._unchecked.pop(file, "")) and checksum_of(self.folder / file) != checksum:
            self._unchecked[file] = checksum  # the next attempt fails too
            raise DataError(
                f"{self.folder / file}: the file is damaged (its content does not match the checksum in {MANIFEST});"
                " delete this file, and record the data set again"
            )
        names = set(part.keys())
        logits, features = (part.get_slice(n)[start:stop] if n in names else None for n in ("logits", "features"))
        labels, groups = (part.get_slice(n)[start:stop] for n in ("labels", "groups"))
        return Rows(logits, features, labels, groups, self._keys(file, start, stop))

    def _keys(self, file: str, start: int, stop: int) -> list[str]:
        part = self._part(file)
        ends = ([] if start else [0]) + part.get_slice("key_ends")[max(start - 1, 0) : stop].tolist()
        text = part.get_slice("keys")[ends[0] : ends[-1]].numpy().tobytes()
        return [text[a - ends[0] : b - ends[0]].decode(errors="surrogatepass") for a, b in pairwise(ends)]

    def _part(self, file: str) -> Any:
        if file not in self._open:
            self._open[file] = safe_open(file_inside(self.folder, file), framework="pt")
        return self._open[file]

    def __getstate__(self) -> dict[str, Any]:
        """Other processes open the files themselves."""
        return {**self.__dict__, "_open": {}}


def checksum_of(file: Path) -> str:
    """CRC-32 of a file, which takes a quarter of a second per gigabyte: it detects damage, not manipulation."""
    found = 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def _checksum_of(entries: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(entries, sort_keys=True).encode()):08x}"


def write_manifest(folder: Path, manifest: Manifest, head: Head | None) -> None:
    """Write the manifest. It is written last, because it turns the recorded parts into a cache.

    Args:
        folder: The cache.
        manifest: Its new content.
        head: The linear head; None = there is none, or it has been written.
    """
    if head is not None:
        save_file({"weight": head.weight.cpu().contiguous(), "bias": head.offset.cpu().contiguous()}, folder / HEAD)
        fsync(folder / HEAD)
        manifest = structs.replace(manifest, head_checksum=checksum_of(folder / HEAD))
    entries = to_plain(manifest)
    # In ASCII: keys of skipped images may not be valid UTF-8.
    text = json.dumps({**entries, "checksum": _checksum_of(entries)}, indent=1, allow_nan=False)
    write_text(folder / MANIFEST, text)


def read_manifest(folder: Path) -> tuple[Manifest, Head | None]:
    """Read the manifest and the head.

    Raises:
        DataError: There is no manifest, or it is damaged or of another version.
    """
    try:
        entries = read_json(folder / MANIFEST, dict, hint=f"; {OTHERWISE}")
    except FileNotFoundError:
        raise DataError(
            f"{folder}: expected a complete feature cache, found no {MANIFEST}; choose another folder, or record the"
            " cache with FeatureCache or oodlit evaluate --cache"
        ) from None
    if "format" in entries and entries["format"] != FORMAT:
        raise DataError(f"{folder}: the cache has format {entries['format']!r}, expected {FORMAT}; {OTHERWISE}")
    if (checksum := entries.pop("checksum", "")) and checksum != _checksum_of(entries):
        raise DataError(f"{folder / MANIFEST}: the file is damaged (wrong checksum); {OTHERWISE}")
    manifest = as_type(entries, Manifest, where=str(folder / MANIFEST), hint=f"; {OTHERWISE}")
    file_inside(folder, manifest.rows)
    if manifest.head_problem:  # why there is none
        return manifest, None
    try:
        file = file_inside(folder, HEAD)
        if manifest.head_checksum and checksum_of(file) != manifest.head_checksum:
            raise DataError(f"{file} is damaged (its content does not match the checksum in {MANIFEST}); {OTHERWISE}")
        head = load_file(file)
        return manifest, Head(head["weight"], head["bias"])
    except (OSError, SafetensorError, KeyError) as error:
        reason = f"no array {error}" if isinstance(error, KeyError) else error
        raise DataError(f"{folder / HEAD} is missing or damaged ({reason}); {OTHERWISE}") from error
