"""Record every stream in parts, so that no image goes through the network twice.

The manifest of a cache names complete streams alone. Beside it, the hidden folder `.progress` holds one small file for
each other stream and process, a `ProcessPart`: its files, how many batches they contain, and which samples were
skipped. A stream is complete when the parts of all processes together contain every image once; then the manifest
names it.
"""

import hashlib
import re
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from msgspec import structs

from oodlit._version import __version__
from oodlit.base.atomic import remove
from oodlit.base.errors import DataError, FingerprintError, InvalidArgumentError
from oodlit.base.outputs import Head
from oodlit.base.processes.distributed import Group, gather_objects
from oodlit.datamodules.batches import OnError
from oodlit.datamodules.pipelines.source import PipelineSource
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.stream_identity import identity, other_fact
from oodlit.datamodules.thinning import whole_size
from oodlit.recorded.cache_data import check_network, facts_of, has_cache, split_by_cache
from oodlit.recorded.manifest import OTHERWISE, Manifest, Pass, RecordedStream
from oodlit.recorded.rows import Rows
from oodlit.recorded.store import DTYPES, HEAD, MANIFEST, PartWriter, StoredRows, read_manifest, write_manifest
from oodlit.runs.features.process_part import ProcessPart, entry_of, grouped, read_process_parts
from oodlit.runs.journal import Journal

VISIBLE_S = 120.0
"""How long a process waits for files that process 0 has written, in seconds."""
ROWS = "rows-0"
"""Folder of the parts; caches of earlier versions use another name."""


class Recording:
    """A cache as one process writes it.

    Args:
        folder: The cache.
        how: See `ProcessPart`.
        cut: See `ProcessPart`.
        process: Number of this process.
        every_s: Longest time until a batch is on disk, in seconds; 0 = after every batch.
        on_error: See `OODDataModule`: if it is "raise", streams with skipped images are recorded again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        how: Mapping[str, str],
        cut: Mapping[str, int],
        process: int,
        every_s: float,
        on_error: OnError = "skip",
    ) -> None:
        self.folder, self.how, self.cut, self.process, self.every_s = folder, dict(how), dict(cut), process, every_s
        self.on_error: OnError = on_error
        self.cached: frozenset[str] = frozenset()
        """Streams of the run that the cache already contains."""
        self.damaged: list[str] = []
        """Problems of cached streams that are recorded again."""
        self.before: dict[str, int] = {}
        """Numbers of images that all processes together have already recorded, for incomplete streams."""
        self.repeated: list[str] = []
        """Descriptions of parts that are recorded again because batches are formed differently."""
        self.own_parts: dict[str, ProcessPart] = {}
        """The parts of this process, by stream."""
        self._writers: dict[str, PartWriter] = {}
        self._order: dict[str, int] = {}
        self._rows, self._last, self._journal = ROWS, time.monotonic(), Journal(folder, ".json")
        self._unwritten: ProcessPart | None = None

    def begin(
        self, streams: Sequence[Stream], facts: Mapping[str, Any], head: Head | None, group: Group, *, can_resume: bool
    ) -> None:
        """Read the content of the folder. All processes must call it; an error leaves the folder unchanged.

        Args:
            streams: Those of the run.
            facts: Entries of a new manifest: "head_problem", "class_names", "input_shape".
            head: Of the network, if it has one.
            group: The processes.
            can_resume: Whether streams can resume in their middle; False: incomplete ones are recorded again.

        Raises:
            FingerprintError: It is of another network, of other data under the same name, or recorded in another way.
            DataError: The manifest is damaged.
        """
        self._order = {stream.name: place for place, stream in enumerate(streams)}
        found = self._inspect(streams, facts, head, can_resume=can_resume) if self.process == 0 else None
        agreed = gather_objects(group, found)[0]
        assert agreed is not None  # the first process has looked
        self.cached, self.damaged, self._rows = frozenset(agreed["cached"]), agreed["damaged"], agreed["rows"]
        self.repeated = agreed["repeated"]
        every = [ProcessPart.of(one) for one in agreed["all_parts"]]
        self.own_parts = {one.name: one for one in every if one.process == self.process}
        self.before = {name: sum(one.images for one in group) for name, group in grouped(every).items()}

    def take(self, stream: Stream, rows: Rows | None, skipped: Iterable[tuple[str, str]]) -> None:
        """Record the rows and the skipped images of one batch, if the stream is not cached yet.

        Raises:
            InvalidArgumentError: A value is too large for the dtype.
            OSError: The disk is full.
        """
        if self._unwritten is not None and self._unwritten.name != stream.name:
            self._keep()
        if stream.name not in self.own_parts:
            facts = {"name": stream.name, **identity(stream)}
            names = {"class_names": list(stream.class_names), "label_names": list(stream.label_names)}
            facts |= {"whole": whole_size(stream)}  # in a trial, `images` counts a part of them
            self.own_parts[stream.name] = ProcessPart({**facts, **names}, self.how, self.cut, self.process)
        one, self._unwritten = self.own_parts[stream.name], None  # never half of a batch if the user ends the run
        if stream.name not in self._writers:
            own = f"{uuid.uuid4().hex[:12]}-{self.process:04d}"  # no other run has files of this name
            dtype = DTYPES[self.how["dtype"]]
            kept = (one.parts, one.checksums, one.loss)
            self._writers[stream.name] = PartWriter(self.folder / self._rows, own, dtype, *kept)
        writer = self._writers[stream.name]
        if rows is not None:
            writer.add(rows)
        one.skipped += skipped
        one.batches += 1
        self._unwritten = one
        if writer.is_full or time.monotonic() - self._last >= self.every_s:
            self._keep()

    def finish(self, facts: Mapping[str, Any], head: Head | None, notes: Mapping[str, Any], group: Group) -> None:
        """Write the remaining rows, and add the streams to the manifest. All processes must call it.

        Nobody leaves before all of them see the manifest.

        Args:
            facts: See `begin`.
            head: See `begin`.
            notes: Further entries of the manifest about this recording, such as where its time went.
            group: The processes.

        Raises:
            DataError: Images of a stream are missing, or came twice; the others are named. Or a process does not see
                what the first one has written.
        """
        self._keep()
        all_parts = gather_objects(group, [asdict(one) for one in self.own_parts.values()])
        if self.process == 0:
            self._close([ProcessPart.of(one) for one in chain.from_iterable(all_parts)], facts, head, notes)
        _wait_for(gather_objects(group, _digest_of(self.folder))[0], self.folder)
        gather_objects(group, None)

    def end(self) -> str:
        """Write the remaining rows if the user interrupts the run; return what is kept, as text."""
        self._keep()
        images = sum(one.images for one in self.own_parts.values())
        return f"{images} images of {', '.join(self.own_parts)} are kept in {self.folder}" if images else ""

    def _keep(self) -> None:
        """Write the remaining rows to disk, and then update the journal."""
        one, self._unwritten = self._unwritten, None
        if one is not None:
            self._writers[one.name].flush()
            self._journal.write(one.name, self.process, asdict(one))
        self._last = time.monotonic()

    def _inspect(
        self, streams: Sequence[Stream], facts: Mapping[str, Any], head: Head | None, *, can_resume: bool
    ) -> dict[str, Any]:
        """The content of the folder, as the first process finds it and sends it to all processes."""
        manifest = read_manifest(self.folder)[0] if has_cache(self.folder) else None
        all_parts = read_process_parts(self._journal)
        self._check_empty(manifest is None and not all_parts)
        for recorded in [*([manifest.how] if manifest else []), *(one.how for one in all_parts)]:
            self._check(recorded)
        if manifest is not None:
            _check_class_names(self.folder, manifest, facts)
            self._rows = manifest.rows
        cached, missing, damaged = split_by_cache(self.folder, manifest, streams, self.on_error)
        resumed: list[ProcessPart] = []
        repeated: list[str] = []
        if can_resume:
            named = {entry.name for entry in manifest.streams} if manifest else set()
            named -= {stream.name for stream in missing}  # those that are damaged
            by_stream = {name: group for name, group in grouped(all_parts).items() if name not in named}
            if complete := list(filter(None, map(self._complete, by_stream.values()))):
                made = self._manifest(manifest, complete, facts)
                cached, missing, damaged = split_by_cache(self.folder, made, streams, self.on_error)
                write_manifest(self.folder, made, head if manifest is None else None)
                manifest = made
            for stream in missing:
                found = by_stream.get(stream.name, [])
                resumed += self._usable(found, stream)
                repeated += _split_differently(found, self.cut)
            self._forget({stream.name for stream in streams} | named | {entry.name for entry in complete}, but=resumed)
            self._clean(manifest)  # runs that are often interrupted must not fill the disk
        return {
            "cached": [stream.name for stream in cached],
            "damaged": damaged,
            "repeated": repeated,
            "rows": self._rows,
            "all_parts": [asdict(one) for one in resumed],
        }

    def _check_empty(self, is_new: bool) -> None:
        """Refuse to overwrite a head file in a folder without a cache."""
        if is_new and (self.folder / HEAD).exists() and not any(map(_is_of_rows, self.folder.glob("rows-*"))):
            raise InvalidArgumentError(f"{self.folder} contains {HEAD} but no cache; choose another folder")

    def _check(self, recorded: Mapping[str, Any]) -> None:
        """Refuse a cache of another network, or with other settings."""
        check_network(self.folder, recorded, self.how["fingerprint"])
        for name in ("dtype", "precision", "decoder"):
            if recorded.get(name, self.how[name]) != self.how[name]:
                raise FingerprintError(
                    f"{self.folder}: this cache was recorded with {name} {recorded[name]}, but this run uses"
                    f" {self.how[name]}; use {recorded[name]}, or {OTHERWISE}"
                )

    def _complete(self, all_parts: Sequence[ProcessPart]) -> RecordedStream | None:
        """The entry of a fully recorded stream that is missing from the manifest; otherwise None."""
        first, images = all_parts[0], sum(one.images for one in all_parts)
        is_one = all((one.stream, one.cut) == (first.stream, first.cut) for one in all_parts)
        if not is_one or images < first.stream["images"]:
            return None
        try:
            return entry_of(all_parts, self.folder / self._rows)
        except DataError:  # the rest of it is recorded again
            return None

    def _usable(self, all_parts: Sequence[ProcessPart], stream: Stream) -> list[ProcessPart]:
        """The parts of a stream after which this run can resume."""
        if isinstance(stream.source, PipelineSource):  # it cannot start in its middle
            return []
        facts = facts_of(stream)
        usable = [
            s for s in all_parts if s.cut == self.cut and not other_fact(s.stream, facts) and self._is_readable(s)
        ]
        usable = [s for s in usable if self.on_error == "skip" or not s.skipped]
        # All images, but not a complete stream: a key came twice.
        return [] if sum(one.images for one in usable) >= len(stream) else usable

    def _is_readable(self, one: ProcessPart) -> bool:
        """Whether all files of a process can be read."""
        try:
            StoredRows(self.folder / self._rows, one.parts)
        except DataError:
            return False
        return True

    def _forget(self, names: Collection[str], *, but: Sequence[ProcessPart] = ()) -> None:
        """Remove the journal about the parts of some streams."""
        for one in read_process_parts(self._journal):
            if one.name in names and one not in but:
                self._journal.drop(one.name, one.process)

    def _close(
        self, all_parts: Sequence[ProcessPart], facts: Mapping[str, Any], head: Head | None, notes: Mapping[str, Any]
    ) -> None:
        """Add the streams to the manifest, and remove files that no manifest entry uses."""
        entries, problem, over = [], None, set()
        for name, group in grouped(all_parts).items():
            try:
                entries.append(entry_of(group, self.folder / self._rows))
                over.add(name)
            except DataError as error:
                problem = problem or error
                if all(map(self._is_readable, group)):  # else the next run goes on with those that are
                    over.add(name)
        manifest = read_manifest(self.folder)[0] if has_cache(self.folder) else None
        if entries:
            made = self._manifest(manifest, entries, facts, notes)
            write_manifest(self.folder, made, head if manifest is None else None)
            manifest = made
        self._forget(over)
        if problem is not None:
            raise problem
        self._clean(manifest)

    def _manifest(
        self,
        before: Manifest | None,
        entries: Sequence[RecordedStream],
        facts: Mapping[str, Any],
        notes: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """The manifest with additional streams; damaged ones are replaced.

        Args:
            before: The manifest so far; None = there is none.
            entries: The streams.
            facts: See `begin`.
            notes: See `finish`.
        """
        new: dict[str, Any] = {**self.how, **facts, "rows": self._rows, "streams": []}
        made = before or Manifest(oodlit=__version__, **new)
        in_order = sorted(entries, key=lambda entry: self._order.get(entry.name, len(self._order)))
        names = [entry.name for entry in in_order]
        losses = [made.loss, *(entry.loss for entry in entries)]
        return structs.replace(
            made,
            streams=[entry for entry in made.streams if entry.name not in names] + in_order,
            loss={n: max(loss.get(n, 0.0) for loss in losses) for n in sorted(set().union(*losses))},
            recordings=[*made.recordings, Pass(streams=names, **(notes or {}))],
        )

    def _clean(self, manifest: Manifest | None) -> None:
        """Remove files of rows that no manifest entry uses."""
        named = {file for entry in (manifest.streams if manifest else ()) for file, _ in entry.parts}
        named |= {file for one in read_process_parts(self._journal) for file, _ in one.parts}
        for folder in filter(_is_of_rows, self.folder.glob("rows-*")):  # others belong to the user
            for path in folder.glob("*.safetensors"):
                if not path.is_symlink() and (folder.name != self._rows or path.name not in named):
                    remove(path)
            if not any(folder.iterdir()):
                folder.rmdir()
        if not self._journal.files():
            remove(self._journal.folder)


def _is_of_rows(folder: Path) -> bool:
    """Whether this is a folder named by a recording of this or an earlier version; links do not count."""
    is_folder = folder.is_dir() and not folder.is_symlink()
    return is_folder and (folder.name == ROWS or bool(re.fullmatch("rows-[0-9a-f]{12}", folder.name)))


def _digest_of(folder: Path) -> str:
    """Identifies a manifest; empty = there is none."""
    try:
        return hashlib.blake2b((folder / MANIFEST).read_bytes(), digest_size=16).hexdigest()
    except FileNotFoundError:
        return ""


def _wait_for(digest: str, folder: Path) -> None:
    """Wait until this process sees the new manifest, since network file systems can show old content for a while.

    Raises:
        DataError: It does not come.
    """
    end = time.monotonic() + VISIBLE_S
    while _digest_of(folder) != digest:
        if time.monotonic() > end:
            raise DataError(
                f"{folder}: a file written by process 0 did not appear within {VISIBLE_S:g} s; all processes must use"
                " the same folder on a shared file system"
            )
        list(folder.iterdir())  # asks the server for its names
        time.sleep(0.1)


def _check_class_names(folder: Path, manifest: Manifest, facts: Mapping[str, Any]) -> None:
    """Refuse other class names than in the cache."""
    before, now = manifest.class_names, list(facts["class_names"])
    if before and now and before != now:
        places = enumerate(zip_longest(map(repr, before), map(repr, now), fillvalue="missing"))
        place, one, other = next((i, *pair) for i, pair in places if len({*pair}) > 1)
        raise FingerprintError(f"{folder}: class {place} is {one} in the cache, but {other} in the data; {OTHERWISE}")


def _split_differently(all_parts: Sequence[ProcessPart], cut: Mapping[str, int]) -> list[str]:
    """Describe the images that are recorded again because batches are formed differently; empty if there are none."""
    lost = [one for one in all_parts if one.cut != cut]
    if not lost:
        return []
    then = {name: value for name, value in lost[0].cut.items() if cut.get(name) != value}
    changes = ", ".join(f"{name} was {value} and is now {cut.get(name)}" for name, value in then.items())
    return [
        f"{sum(one.images for one in lost)} images of {lost[0].name} are recorded again, because settings"
        f" changed ({changes})"
    ]
