"""Read shards: exact counts, ranges by seeking, and a clear error for everything that is not as it should be."""

import json
import re
import time
import warnings
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from braceexpand import braceexpand

from oodlit.datamodules.keys import key_digest
from oodlit.datamodules.shards.manifest import (
    INFO_NAMES,
    ShardInfo,
    ShardRecord,
    check_finished,
    parse_info,
    read_info,
    select_split,
)
from oodlit.datamodules.shards.members import (
    LABEL_FIELD,
    MAX_INDEX,
    MAX_MEMBER_BYTES,
    META_FIELD,
    Member,
    RawSample,
    ShardDamageError,
    raw_samples,
)
from oodlit.datamodules.shards.remote import Cache, is_url, retried, split_url
from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role

__all__ = ["ShardSource", "read_sample", "shard_stream"]

Damaged = Literal["raise", "mark"]
_LABEL = re.compile(rb"\s*(-1|[0-9]{1,9})\s*")


class ShardSource:
    """Samples from WebDataset shards: those of `build_shards`, of timm, or of webdataset's own writer.

    Counts come from `_info.json` where it lists the shards; other shards are counted once, here, from their headers.
    Whoever reads the last sample of a shard also checks that the shard ends there. Only the image field (any of
    `IMAGE_FIELDS`), `.cls` and `.json` are ever read; other files are neither loaded nor decoded.

    Args:
        shards: A folder, a path or URL, a pattern with braces or wildcards ("train-{0000..1023}.tar", "val-*.tar"), or
            a list of paths or URLs. A remote folder needs a manifest and a "/" at its end.
        split: Split of the manifest; may be left out if there is one only.
        cache: Where and how remote shards are fetched.
        damaged: "raise" (default): a missing, truncated or unreadable shard is an error, found before any work where
            that is possible. "mark": where the manifest states its count, each sample that it should have held
            arrives as an unreadable one named "<file>#<position>", to be listed by `on_error="skip"`.

    Raises:
        DataError: A shard is missing or damaged, the files differ from the manifest, a key occurs twice, or nothing
            is readable.
        InvalidArgumentError: `split` is needed or unknown; a URL is of a kind that is not read.
    """

    def __init__(
        self,
        shards: str | Path | Sequence[str | Path],
        *,
        split: str | None = None,
        cache: Cache | None = None,
        damaged: Damaged = "raise",
    ) -> None:
        """Find the shards and their counts."""
        if damaged not in ("raise", "mark"):
            raise InvalidArgumentError(f"damaged={damaged!r}; 'raise' or 'mark' is needed")
        self.damaged = damaged
        self.cache = cache or Cache()
        self.folder, self.info = _locate(shards, split, self.cache)
        unknown = [record for record in self.info.shards if record.samples < 0]
        self._counted = {record.file for record in unknown}
        _check_files(self.folder, self.info, damaged)
        if unknown:
            self.info = replace(self.info, shards=self._count())
        if not self.info.num_samples:
            raise DataError(
                f"{self.folder or 'shards'}: nothing readable in {len(self.info.shards)} shards;"
                " samples need an image field such as .jpg or .png"
            )
        self._ends = list(accumulate(record.samples for record in self.info.shards))

    def __len__(self) -> int:
        """Exact number of samples."""
        return self._ends[-1]

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples start, ..., stop - 1.

        Raises:
            DataError: A shard is missing, damaged, or differs from its count.
        """
        position, stop = max(start, 0), min(stop, len(self))
        while position < stop:
            index = bisect_right(self._ends, position)
            record = self.info.shards[index]
            first = self._ends[index] - record.samples
            last = min(stop, self._ends[index])
            yield from self._marked(record, position - first, last - first)
            position = last

    def find(self, keys: Collection[str]) -> Iterator[Sample]:
        """The samples of these keys; only headers are read of the others."""
        for record in self.info.shards:
            with self._open(record) as file:
                for raw in raw_samples(file, self._name(record), _ignore):
                    if raw.key in keys:
                        yield read_sample(file, raw, self._name(record))

    def _marked(self, record: ShardRecord, start: int, stop: int) -> Iterator[Sample]:
        """Samples of one shard; what damage took from it becomes samples with an error, if that is asked for."""
        position = start
        try:
            for sample in self._piece(record, start, stop):
                yield sample
                position += 1
        except ShardDamageError as error:
            if self.damaged == "raise":
                raise
            for lost in range(position, stop):
                yield Sample(f"{record.file.rpartition('/')[2]}#{lost}", b"", error=str(error))

    def _piece(self, record: ShardRecord, start: int, stop: int) -> Iterator[Sample]:
        """Samples of one shard; read errors are tried again from where they struck."""
        position, attempt = start, 1
        while True:
            try:
                for sample in self._walk(record, position, stop):
                    yield sample
                    position, attempt = position + 1, 1
            except OSError as error:
                if attempt >= self.cache.attempts:
                    raise ShardDamageError(
                        f"shard {self._name(record)}: cannot be read after {attempt} attempts: {error}"
                    ) from error
                time.sleep(self.cache.backoff_s * 2 ** (attempt - 1))
                attempt += 1
            else:
                return

    def _walk(self, record: ShardRecord, start: int, stop: int) -> Iterator[Sample]:
        where = self._name(record)
        count = 0
        with self._open(record) as file:
            for raw in raw_samples(file, where, _ignore if record.file in self._counted else _Strays(where)):
                if count == record.samples:
                    raise DataError(
                        f"shard {where}: holds more than the {record.samples} samples that the manifest states,"
                        f" next {raw.key!r}; restore the shard, or remove the manifest to have the shards counted"
                    )
                count += 1
                if start < count <= stop:
                    yield read_sample(file, raw, where)
                if count == stop < record.samples:
                    return
        if count != record.samples:
            raise DataError(
                f"shard {where}: holds {count} samples, the manifest states {record.samples};"
                " restore the shard, or remove the manifest to have the shards counted"
            )

    def _name(self, record: ShardRecord) -> str:
        return _join(self.folder, record.file)

    def _open(self, record: ShardRecord) -> BinaryIO:
        path = self._name(record)
        cache = self.cache
        try:
            if is_url(path):
                return cache.fetch(path, size=record.size, sha256=record.sha256).open("rb")
            what = f"shard {path}"
            return retried(lambda: Path(path).open("rb"), what, attempts=cache.attempts, backoff_s=cache.backoff_s)
        except DataError as error:
            raise ShardDamageError(str(error)) from error

    def _count(self) -> tuple[ShardRecord, ...]:
        """Count the shards that no manifest knows, and check that no key occurs in two of them."""
        digests, records = array("Q"), []
        for record in self.info.shards:
            if record.file not in self._counted:
                records.append(record)
                continue
            where = self._name(record)
            strays = _Strays(where)
            before = len(digests)
            with self._open(record) as file:
                digests.extend(key_digest(raw.key) for raw in raw_samples(file, where, strays))
            records.append(replace(record, samples=len(digests) - before))
        values, counts = np.unique(np.frombuffer(digests, dtype=np.uint64), return_counts=True)
        if repeated := set(values[counts > 1].tolist()):
            self._raise_repeated(repeated)
        return tuple(records)

    def _raise_repeated(self, repeated: set[int]) -> None:
        places: dict[str, str] = {}
        for record in self.info.shards:
            where = self._name(record)
            with self._open(record) as file:
                for raw in raw_samples(file, where, _ignore):
                    if raw.key in places:
                        raise DataError(
                            f"key {raw.key!r} occurs in shard {places[raw.key]} and again in shard {where};"
                            " a key identifies one sample - rename one, or build the shards anew"
                        )
                    if key_digest(raw.key) in repeated:
                        places[raw.key] = where


def shard_stream(
    shards: str | Path | Sequence[str | Path],
    *,
    name: str | None = None,
    role: Role | None = None,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    cache: Cache | None = None,
    damaged: Damaged = "raise",
) -> Stream:
    """A stream from shards; what is not given comes from the manifest.

    Raises:
        InvalidArgumentError: Name or role is neither given nor in the manifest.
        DataError: As `ShardSource`.
    """
    source = ShardSource(shards, split=split, cache=cache, damaged=damaged)
    name, role = name or source.info.name, role or source.info.role
    if not name or role is None:
        raise InvalidArgumentError(f"{shards}: the manifest states no {'role' if name else 'name'}; pass it")
    return Stream(name, role, source, tuple(source.info.class_names if class_names is None else class_names))


def _locate(shards: str | Path | Sequence[str | Path], split: str | None, cache: Cache) -> tuple[str, ShardInfo]:
    """Folder and records; samples = -1 where no manifest knows the count."""
    if not isinstance(shards, str | Path):
        return "", _from_paths([str(path) for path in shards], split, cache)
    text = str(shards)
    if is_url(text) and text.endswith("/"):
        manifest = cache.fetch(text + INFO_NAMES[0], fresh=True)
        return text, select_split(parse_info(manifest.read_bytes(), text + INFO_NAMES[0]), split, text)
    if is_url(text) or not Path(text).is_dir():
        return "", _from_paths(_expand(text), split, cache)
    infos = read_info(text)
    check_finished(text, infos)
    if infos:
        info = select_split(infos, split, text)
        listed = {record.file for other in infos.values() for record in other.shards}
        extra = sorted({path.name for path in Path(text).glob("*.tar")} - listed)
        if extra:
            raise DataError(
                f"{text}: {extra[0]!r} ({len(extra)} in all) is not in the manifest;"
                " remove the file, or remove the manifest to have the shards counted"
            )
        return text, info
    found = sorted(path.name for path in Path(text).glob("*.tar"))
    if not found:
        raise DataError(f"{text}: no shards (*.tar) in this folder; build them with `oodlit shards build`")
    return text, ShardInfo(split or "", tuple(ShardRecord(name, -1) for name in found))


def _expand(pattern: str) -> list[str]:
    paths = list(braceexpand(pattern)) if "{" in pattern and not Path(pattern).exists() else [pattern]
    found: list[str] = []
    for path in paths:
        if re.search(r"[*?]", path) and not is_url(path):
            root = Path(path).anchor or "."
            found.extend(sorted(str(match) for match in Path(root).glob(path.removeprefix(Path(path).anchor))))
        else:
            found.append(path)
    if not found:
        raise DataError(f"{pattern!r}: no shard matches this pattern; check the path")
    return found


def _from_paths(paths: list[str], split: str | None, cache: Cache) -> ShardInfo:
    """Records of single shards; a manifest beside a shard is used where it lists the shard."""
    known: dict[str, dict[str, ShardRecord]] = {}
    records = []
    for path in paths:
        folder, name = split_url(path)[:2] if is_url(path) else path.rpartition("/")[::2]
        if folder not in known:
            infos = _remote_info(folder, cache) if is_url(path) else _local_info(folder or ".")
            known[folder] = {record.file: record for info in infos.values() for record in info.shards}
        record = known.get(folder, {}).get(name, ShardRecord(name, -1))
        records.append(replace(record, file=path))
    if len(set(paths)) < len(paths):
        raise DataError(f"shard {max(paths, key=paths.count)} is listed twice; every sample is to be read once")
    if not records:
        raise DataError("no shards given; pass a folder, a pattern or a list of paths")
    return ShardInfo(split or "", tuple(records))


def _local_info(folder: str) -> dict[str, ShardInfo]:
    infos = read_info(folder)
    check_finished(folder, infos)
    return infos


def _remote_info(folder: str, cache: Cache) -> dict[str, ShardInfo]:
    """The manifest beside remote shards; empty if there is none."""
    url = f"{folder}/{INFO_NAMES[0]}"
    try:
        return parse_info(cache.fetch(url, fresh=True).read_bytes(), url)
    except DataError as error:
        if isinstance(error.__cause__, FileNotFoundError | PermissionError):
            return {}
        raise


def _check_files(folder: str, info: ShardInfo, damaged: Damaged) -> None:
    """Missing and truncated local shards are found before any work is done."""
    for record in info.shards:
        path = _join(folder, record.file)
        if is_url(path) or (damaged == "mark" and record.samples >= 0):
            continue
        if not Path(path).is_file():
            if not path.endswith(".tar"):
                raise DataError(f"{path} does not exist; a folder of shards, a shard, a pattern or a URL is needed")
            raise DataError(f"shard {path} is missing; restore it, or build the shards again")
        size = Path(path).stat().st_size
        if record.size not in (None, size):
            raise DataError(
                f"shard {path} has {size} bytes, the manifest states {record.size}: it is truncated or was changed;"
                " restore it, or build the shards again"
            )


def _join(folder: str, file: str) -> str:
    return f"{folder.rstrip('/')}/{file}" if folder else file


def read_sample(file: BinaryIO, raw: RawSample, where: str) -> Sample:
    """Read the fields of one sample. What is wrong with this sample alone becomes its `error`."""
    try:
        return _intact_sample(file, raw, where)
    except _SampleError as error:
        return Sample(raw.key, b"", error=str(error), origin=f"shard {where}")


def _intact_sample(file: BinaryIO, raw: RawSample, where: str) -> Sample:
    if raw.error is not None:
        raise _SampleError(raw.error)
    meta = _meta(file, raw, where)
    label = _label(file, raw, meta, where)
    group = meta.get("group", -1)
    if type(group) is not int or not -1 <= group < MAX_INDEX:
        raise _SampleError(f"group {repr(group)[:20]} in .json; an index from 0 to {MAX_INDEX - 1}, or -1, is needed")
    image = _bytes(file, raw.fields[str(raw.image_field)], where)
    return Sample(raw.key, image, label, group, origin=f"shard {where}")


class _SampleError(Exception):
    """One sample cannot be used; the shard around it is intact."""


def _bytes(file: BinaryIO, member: Member, where: str) -> bytes:
    if member.size > MAX_MEMBER_BYTES:
        raise _SampleError(f"{member.name!r} has {member.size} bytes; at most {MAX_MEMBER_BYTES} are read")
    file.seek(member.offset)
    data = file.read(member.size)
    if len(data) != member.size:
        raise ShardDamageError(f"shard {where}: truncated within {member.name!r}; fetch or build this shard again")
    return data


def _meta(file: BinaryIO, raw: RawSample, where: str) -> dict[str, Any]:
    if META_FIELD not in raw.fields:
        return {}
    try:
        meta = json.loads(_bytes(file, raw.fields[META_FIELD], where))
    except (ValueError, RecursionError) as error:
        raise _SampleError(f"field .json is not JSON: {error}") from error
    return meta if isinstance(meta, dict) else {}


def _label(file: BinaryIO, raw: RawSample, meta: dict[str, Any], where: str) -> int:
    if LABEL_FIELD in raw.fields:
        text = _bytes(file, raw.fields[LABEL_FIELD], where)
        match = _LABEL.fullmatch(text)
        if match is None:
            raise _SampleError(f"field .cls holds {text[:20]!r}; a class index, or -1 for none, is needed")
        return int(match[1])
    label = meta.get("label", -1)
    if type(label) is not int:  # other programs write names there
        return -1
    if not -1 <= label < MAX_INDEX:
        raise _SampleError(f"label {repr(label)[:20]} in .json; an index from 0 to {MAX_INDEX - 1}, or -1, is needed")
    return label


def _ignore(_: str) -> None:
    """Stray files of shards that were reported when they were counted."""


class _Strays:
    """Reports the first stray file of a shard."""

    def __init__(self, where: str) -> None:
        self.where, self.told = where, False

    def __call__(self, name: str) -> None:
        if not self.told:
            self.told = True
            warnings.warn(
                f"shard {self.where}: {name!r} belongs to no sample and is not read; further such files may follow",
                stacklevel=2,
            )
