"""Build shards from a listing: resumable, atomic, deterministic and parallel."""

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from oodlit.base.atomic import lock, remove_leftovers, write_text
from oodlit.base.checks import check_ints
from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.json_files import read_json
from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.datamodules.decode import MAX_PIXELS, decode_image, image_size
from oodlit.datamodules.keys import key_digest
from oodlit.datamodules.shards.manifest import WORK_FOLDER, ShardInfo, ShardRecord, read_info, write_info
from oodlit.datamodules.shards.writer import Entry, listing_digest, write_shard
from oodlit.datamodules.stream import check_class_names, check_name

Check = Literal["none", "header", "decode"]
Progress = Callable[[int], object]
ImageCheck = Callable[[bytes], object]


def build_shards(
    entries: Iterable[Entry],
    out: str | Path,
    *,
    name: str,
    role: Role,
    split: str | None = None,
    class_names: Sequence[str] = (),
    shard_size: int = 1000,
    workers: int = 1,
    check: Check = "header",
    max_pixels: int = MAX_PIXELS,
    expected: int | None = None,
    extra: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> ShardInfo:
    """Pack images into `<name>-<split>-000000.tar`, ... and `_info.json`.

    Image bytes are copied without encoding them again. The bytes of the shards only depend on the entries and on
    `shard_size`. Call the function again to resume an interrupted build: finished shards are compared with the listing
    and not written again. Memory: one image per worker, and the listing.

    Args:
        entries: Images to pack, in order. A `Listing` of a SHIFT set also has the names of its labels.
        out: Folder, created if it does not exist. Splits of a data set may share it.
        name: Name of the data set.
        role: Role of the data set.
        split: Name of the split; None (default) = that of the role (`Role.split_name`).
        class_names: Names by index: of labels for TRAIN and ID sets, of groups for other roles.
        shard_size: Samples per shard. Default 1000.
        workers: Number of shards written in parallel. Compressed tars are read sequentially, with one worker.
        check: "header" (default): the format and size of every image must be readable; "decode": all pixels; "none": no
            check.
        max_pixels: Largest width * height that the check accepts.
        expected: Expected number of entries; None (default) = any.
        extra: Additional facts for the manifest, such as license and source.
        progress: Called with the number of entries done since the last call, from several threads.

    Returns:
        The content of the manifest.

    Raises:
        DataError: An image is unreadable, a path occurs twice, the number is not the expected one, or the folder
            contains shards of another listing or set, or cannot be written.
        InvalidArgumentError: An index has no name, a number is out of range, or the name cannot be part of a key.
    """
    check_ints("build_shards", shard_size=shard_size, workers=workers)
    if isinstance(entries, Sized) and expected not in (None, len(entries)):
        raise DataError(f"{name}: expected {expected} images, but the source has {len(entries)}")
    check_name(name)
    check_class_names(name, role, class_names)
    split = split or role.split_name
    out, labels, groups = Path(out), Counter[int](), Counter[int]()
    try:
        (out / WORK_FOLDER).mkdir(parents=True, exist_ok=True)
        with lock(out / WORK_FOLDER / "lock", wait=False):
            job = _Build(out, name, split, _check(check, max_pixels), progress or (lambda _: None))
            remove_leftovers(out, f"{job.stem}-*.tar")
            records = job.run(_checked(entries, role, class_names, labels, groups), shard_size, workers)
            names, label_names = tuple(class_names), tuple(getattr(entries, "label_names", ()))
            info = ShardInfo(
                split, records, name, role, names, dict(labels), dict(groups), dict(extra or {}), label_names
            )
            if expected not in (None, info.num_samples):
                raise DataError(f"{name}: expected {expected} images, but the source has {info.num_samples}")
            write_info(out, info)
            job.clean(records)
    except BlockingIOError:
        raise DataError(f"{out}: another build is running in this folder; wait for it to finish") from None
    except OSError as error:  # errors of reading are DataErrors already
        raise DataError(
            f"{out}: cannot write shards ({error}); free space or grant access, and build again to resume"
        ) from error
    return info


def _checked(
    entries: Iterable[Entry], role: Role, class_names: Sequence[str], labels: Counter[int], groups: Counter[int]
) -> Iterator[Entry]:
    """Check names of indices and unique paths, and count labels and groups."""
    kind = "label" if role in NAMES_OF_LABELS else "group"
    given = f"{len(class_names)} class names"
    seen: set[int] = set()
    for entry in entries:
        index = entry.label if kind == "label" else entry.group
        if class_names and index >= len(class_names):
            raise InvalidArgumentError(f"{entry.path!r}: {kind} {index} is out of range for {given}")
        if class_names and kind == "group" and index == -1:
            raise DataError(
                f"{entry.path!r} has no group, but there are {given}. Every image must have a class as its group, in"
                " the column 'group' of the list of images, or as Entry(..., group=...)"
            )
        if role is Role.TRAIN and entry.label < 0:
            raise DataError(f"{entry.path!r} has no label; training images must have one")
        digest = key_digest(entry.key)
        if digest in seen:
            raise DataError(f"path {entry.path!r} occurs twice; paths must be unique")
        seen.add(digest)
        if entry.label >= 0:
            labels[entry.label] += 1
        if entry.group >= 0:
            groups[entry.group] += 1
        yield entry


class _Build:
    """One build: keeps finished shards and writes the missing ones."""

    def __init__(self, out: Path, name: str, split: str, check: ImageCheck | None, progress: Progress) -> None:
        self.out, self.check, self.progress = out, check, progress
        self.stem = f"{_slug(name)}-{_slug(split)}"
        info = read_info(out).get(split)
        if info is not None and info.name != name:
            raise DataError(
                f"{out} already contains split {split!r} of {info.name!r}; choose another folder or split for {name!r}"
            )
        self.finished = {record.file: record for record in (info.shards if info else ())}

    def sidecar(self, file: str) -> Path:
        return self.out / WORK_FOLDER / f"{file}.json"

    def clean(self, records: Iterable[ShardRecord]) -> None:
        """Remove the notes of finished shards that are now in the manifest."""
        for record in records:
            self.sidecar(record.file).unlink(missing_ok=True)
        (self.out / WORK_FOLDER / "lock").unlink(missing_ok=True)
        if not any((self.out / WORK_FOLDER).iterdir()):
            (self.out / WORK_FOLDER).rmdir()

    def run(self, entries: Iterator[Entry], shard_size: int, workers: int) -> tuple[ShardRecord, ...]:
        records: dict[str, ShardRecord] = {}
        pending: deque[tuple[str, Future[ShardRecord]]] = deque()

        def collect(limit: int) -> None:
            while len(pending) > limit:
                file, future = pending.popleft()
                records[file] = future.result()

        with ThreadPoolExecutor(workers) as pool:
            try:
                for index, chunk in enumerate(_chunks(entries, shard_size)):
                    file = f"{self.stem}-{index:06d}.tar"
                    if (record := self._finished(file)) is not None:
                        records[file] = self._same(record, chunk)
                    elif (first := next(chunk)).in_order:
                        records[file] = self._write(file, chain([first], chunk))
                    else:
                        pending.append((file, pool.submit(self._write, file, [first, *chunk])))
                        collect(workers)
                collect(0)
            finally:
                pool.shutdown(cancel_futures=True)
        self._check_leftovers(records)
        if not records:
            raise DataError(f"{self.out}: there are no images to write, because the listing of the source is empty")
        return tuple(records[file] for file in sorted(records))

    def _finished(self, file: str) -> ShardRecord | None:
        path, sidecar = self.out / file, self.sidecar(file)
        if not path.is_file():
            return None
        record = self.finished.get(file)
        if record is None and sidecar.is_file():
            record = read_json(sidecar, ShardRecord, hint=f"; remove this file and {path}, and build again")
        if record is None or record.size != path.stat().st_size or record.listing is None:
            raise DataError(f"{path} was not written by this build, or was changed; move it, or choose another folder")
        return record

    def _same(self, record: ShardRecord, chunk: Iterator[Entry]) -> ShardRecord:
        """Keep a finished shard if it matches the listing."""
        listed = list(chunk)
        if listing_digest(listed) != record.listing:
            raise DataError(
                f"{self.out / record.file} was built from other files, labels or groups, or with another shard_size. In"
                f" this build, its first file would be {listed[0].path!r}. Build into another folder, or first remove"
                " the shards of the earlier build"
            )
        self.progress(len(listed))
        return replace(record, samples=len(listed))

    def _write(self, file: str, chunk: Iterable[Entry]) -> ShardRecord:
        def note(record: ShardRecord) -> None:  # first, so that an interrupted build leaves no shard without its note
            write_text(self.sidecar(file), json.dumps(asdict(record)))

        def entries() -> Iterator[Entry]:
            for entry in chunk:
                yield entry
                self.progress(1)

        return write_shard(self.out / file, entries(), check=self.check, on_record=note)

    def _check_leftovers(self, records: Mapping[str, ShardRecord]) -> None:
        pattern = re.compile(re.escape(self.stem) + r"-\d{6,}\.tar")
        extra = sorted(p.name for p in self.out.glob("*.tar") if pattern.fullmatch(p.name) and p.name not in records)
        if extra:
            raise DataError(
                f"{self.out}: {len(extra)} shards (first: {extra[0]}) are left over from a build with more images;"
                " remove them, or build into another folder"
            )


def _check(kind: Check, max_pixels: int) -> ImageCheck | None:
    checks: dict[str, Callable[..., object] | None] = {"none": None, "header": image_size, "decode": decode_image}
    check = checks[kind]
    return None if check is None else partial(check, max_pixels=max_pixels)


def _chunks(entries: Iterator[Entry], size: int) -> Iterator[Iterator[Entry]]:
    """Iterators over `size` entries each; each must be exhausted before the next one starts."""
    for first in entries:
        yield chain([first], islice(entries, size - 1))


def _slug(name: str) -> str:
    """Make a name safe in file names and patterns."""
    return re.sub(r"[^\w.+-]+", "_", name)
