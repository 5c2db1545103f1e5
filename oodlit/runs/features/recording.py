"""What is recorded of every stream, part by part, so that no image has to go through the network twice.

The manifest of a cache names whole streams alone. Beside it, the hidden folder `.progress` holds one small file for
each other stream and process: its *share*, that is its parts, how many batches they are of, and which samples were
skipped. A stream is whole when the shares of all processes together hold every image once; then the manifest names it.
"""

import hashlib
import re
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import structs

from oodlit._version import __version__
from oodlit.base.atomic import remove
from oodlit.base.distributed import Group, gather_objects
from oodlit.datamodules.batches import OnError
from oodlit.datamodules.pipelines.source import PipelineSource
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.stream_identity import identity, other_fact
from oodlit.datamodules.thinning import whole_size
from oodlit.errors import DataError, FingerprintError, InvalidArgumentError
from oodlit.outputs import Head
from oodlit.recorded.cache_data import OTHERWISE, check_network, facts_of, has_cache, split_by_cache
from oodlit.recorded.manifest import Manifest, Pass, RecordedStream
from oodlit.recorded.rows import Rows
from oodlit.recorded.store import DTYPES, HEAD, MANIFEST, PartWriter, StoredRows, read_manifest, write_manifest
from oodlit.runs.features.process_part import ProcessPart, entry_of, grouped, read_shares
from oodlit.runs.journal import Journal

VISIBLE_S = 120.0
"""How long a process waits until it sees what the first one has written."""
ROWS = "rows-0"
"""Folder of the parts; caches of earlier versions name another one."""


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
        self.held: frozenset[str] = frozenset()
        """Streams of the run that the cache holds already."""
        self.damaged: list[str] = []
        """What is wrong with streams that it names and that are recorded again."""
        self.before: dict[str, int] = {}
        """Images of other streams that all processes together have recorded before."""
        self.anew: list[str] = []
        """Parts of streams that are recorded again, as they are cut otherwise now, as text."""
        self.shares: dict[str, ProcessPart] = {}
        """Those of this process, by stream."""
        self._writers: dict[str, PartWriter] = {}
        self._order: dict[str, int] = {}
        self._rows, self._last, self._journal = ROWS, time.monotonic(), Journal(folder, ".json")
        self._unwritten: ProcessPart | None = None

    def begin(
        self, streams: Sequence[Stream], facts: Mapping[str, Any], head: Head | None, group: Group, *, goes_on: bool
    ) -> None:
        """Find what lies in the folder. All processes call it; nothing is changed where it is refused.

        Args:
            streams: Those of the run.
            facts: Entries of a new manifest: "head_problem", "class_names", "input_shape".
            head: Of the network, if it has one.
            group: The processes.
            goes_on: Whether streams can resume in their middle; False: incomplete ones are recorded again.

        Raises:
            FingerprintError: It is of another network, of other data under the same name, or recorded in another way.
            DataError: The manifest is damaged.
        """
        self._order = {stream.name: place for place, stream in enumerate(streams)}
        found = self._look(streams, facts, head, goes_on=goes_on) if self.process == 0 else None
        told = gather_objects(group, found)[0]
        assert told is not None  # the first process has looked
        self.held, self.damaged, self._rows = frozenset(told["held"]), told["damaged"], told["rows"]
        self.anew = told["anew"]
        every = [ProcessPart.of(share) for share in told["shares"]]
        self.shares = {share.name: share for share in every if share.process == self.process}
        self.before = {name: sum(share.images for share in group) for name, group in grouped(every).items()}

    def take(self, stream: Stream, rows: Rows | None, skipped: Iterable[tuple[str, str]]) -> None:
        """One batch of a stream that is not held: its rows, if it has any, and what was skipped.

        Raises:
            InvalidArgumentError: A value is too large for the dtype.
            OSError: The disk is full.
        """
        if self._unwritten is not None and self._unwritten.name != stream.name:
            self._keep()
        if stream.name not in self.shares:
            facts = {"name": stream.name, **identity(stream)}
            names = {"class_names": list(stream.class_names), "label_names": list(stream.label_names)}
            facts |= {"whole": whole_size(stream)}  # of a trial, `images` are some of them
            self.shares[stream.name] = ProcessPart({**facts, **names}, self.how, self.cut, self.process)
        share, self._unwritten = self.shares[stream.name], None  # not half of a batch, where somebody ends the run now
        if stream.name not in self._writers:
            own = f"{uuid.uuid4().hex[:12]}-{self.process:04d}"  # no other run has files of this name
            dtype = DTYPES[self.how["dtype"]]
            kept = (share.parts, share.checksums, share.loss)
            self._writers[stream.name] = PartWriter(self.folder / self._rows, own, dtype, *kept)
        writer = self._writers[stream.name]
        if rows is not None:
            writer.add(rows)
        share.skipped += skipped
        share.batches += 1
        self._unwritten = share
        if writer.is_full or time.monotonic() - self._last >= self.every_s:
            self._keep()

    def finish(self, facts: Mapping[str, Any], head: Head | None, notes: Mapping[str, Any], group: Group) -> None:
        """Write what is waiting, and let the manifest name the streams. All processes call it.

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
        shares = gather_objects(group, [asdict(share) for share in self.shares.values()])
        if self.process == 0:
            self._close([ProcessPart.of(share) for share in chain.from_iterable(shares)], facts, head, notes)
        _wait_for(gather_objects(group, _digest_of(self.folder))[0], self.folder)
        gather_objects(group, None)

    def end(self) -> str:
        """Write what is waiting if the user ends the run; return what is kept, as text, or an empty text."""
        self._keep()
        images = sum(share.images for share in self.shares.values())
        return f"{images} images of {', '.join(self.shares)} are kept in {self.folder}" if images else ""

    def _keep(self) -> None:
        """Bring what is waiting to disk, and then say so."""
        share, self._unwritten = self._unwritten, None
        if share is not None:
            self._writers[share.name].flush()
            self._journal.write(share.name, self.process, asdict(share))
        self._last = time.monotonic()

    def _look(
        self, streams: Sequence[Stream], facts: Mapping[str, Any], head: Head | None, *, goes_on: bool
    ) -> dict[str, Any]:
        """What the first process finds, and tells the others."""
        manifest = read_manifest(self.folder)[0] if has_cache(self.folder) else None
        shares = read_shares(self._journal)
        self._check_empty(manifest is None and not shares)
        for recorded in [*([manifest.how] if manifest else []), *(share.how for share in shares)]:
            self._check(recorded)
        if manifest is not None:
            _check_class_names(self.folder, manifest, facts)
            self._rows = manifest.rows
        held, lacking, damaged = split_by_cache(self.folder, manifest, streams, self.on_error)
        going_on: list[ProcessPart] = []
        anew: list[str] = []
        if goes_on:
            named = {entry.name for entry in manifest.streams} if manifest else set()
            named -= {stream.name for stream in lacking}  # those that are damaged
            by_stream = {name: group for name, group in grouped(shares).items() if name not in named}
            if whole := list(filter(None, map(self._whole, by_stream.values()))):
                made = self._manifest(manifest, whole, facts)
                held, lacking, damaged = split_by_cache(self.folder, made, streams, self.on_error)
                write_manifest(self.folder, made, head if manifest is None else None)
                manifest = made
            for stream in lacking:
                found = by_stream.get(stream.name, [])
                going_on += self._sound(found, stream)
                anew += _cut_otherwise(found, self.cut)
            over = {stream.name for stream in streams} | named | {entry.name for entry in whole}
            self._forget(over, but=going_on)
            self._clean(manifest)  # runs that are killed again and again must not fill the disk
        return {
            "held": [stream.name for stream in held],
            "damaged": damaged,
            "anew": anew,
            "rows": self._rows,
            "shares": [asdict(share) for share in going_on],
        }

    def _check_empty(self, is_new: bool) -> None:
        """Refuse to write over a head that belongs to no cache."""
        if is_new and (self.folder / HEAD).exists() and not any(map(_is_of_rows, self.folder.glob("rows-*"))):
            raise InvalidArgumentError(
                f"{self.folder}: contains {HEAD} but no cache that it belongs to; name another folder for the cache"
            )

    def _check(self, recorded: Mapping[str, Any]) -> None:
        """Refuse what was recorded of another network, or in another way."""
        check_network(self.folder, recorded, self.how["fingerprint"])
        for name in ("dtype", "precision", "decoder"):
            if recorded.get(name, self.how[name]) != self.how[name]:
                raise FingerprintError(
                    f"{self.folder}: this cache was recorded with {name} {recorded[name]}, and {self.how[name]} is"
                    f" asked for; ask for the same, or {OTHERWISE}"
                )

    def _whole(self, shares: Sequence[ProcessPart]) -> RecordedStream | None:
        """The entry of a stream that was recorded to its end before the manifest could name it; else None."""
        first, images = shares[0], sum(share.images for share in shares)
        is_one = all((share.stream, share.cut) == (first.stream, first.cut) for share in shares)
        if not is_one or images < first.stream["images"]:
            return None
        try:
            return entry_of(shares, self.folder / self._rows)
        except DataError:  # what is left of it is recorded anew
            return None

    def _sound(self, shares: Sequence[ProcessPart], stream: Stream) -> list[ProcessPart]:
        """The parts of a stream after which this run can resume."""
        if isinstance(stream.source, PipelineSource):  # it cannot start in its middle
            return []
        facts = facts_of(stream)
        sound = [s for s in shares if s.cut == self.cut and not other_fact(s.stream, facts) and self._is_readable(s)]
        sound = [s for s in sound if self.on_error == "skip" or not s.skipped]
        # All images and no whole stream: a key came twice.
        return [] if sum(share.images for share in sound) >= len(stream) else sound

    def _is_readable(self, share: ProcessPart) -> bool:
        """Whether all files of a process can be read."""
        try:
            StoredRows(self.folder / self._rows, share.parts)
        except DataError:
            return False
        return True

    def _forget(self, names: Collection[str], *, but: Sequence[ProcessPart] = ()) -> None:
        """Remove what is written down of the shares of some streams."""
        for share in read_shares(self._journal):
            if share.name in names and share not in but:
                self._journal.drop(share.name, share.process)

    def _close(
        self, shares: Sequence[ProcessPart], facts: Mapping[str, Any], head: Head | None, notes: Mapping[str, Any]
    ) -> None:
        """Name the streams in the manifest, and remove what nobody names."""
        entries, problem, over = [], None, set()
        for name, group in grouped(shares).items():
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
        """The manifest with further streams, or with others in the place of damaged ones.

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
        """Remove rows that nobody names any more."""
        named = {file for entry in (manifest.streams if manifest else ()) for file, _ in entry.parts}
        named |= {file for share in read_shares(self._journal) for file, _ in share.parts}
        for folder in filter(_is_of_rows, self.folder.glob("rows-*")):  # others are somebody's own
            for path in folder.glob("*.safetensors"):
                if not path.is_symlink() and (folder.name != self._rows or path.name not in named):
                    remove(path)
            if not any(folder.iterdir()):
                folder.rmdir()
        if not self._journal.files():
            remove(self._journal.folder)


def _is_of_rows(folder: Path) -> bool:
    """Whether this is a folder with a name that a recording gives, now or in earlier versions; links are not."""
    is_folder = folder.is_dir() and not folder.is_symlink()
    return is_folder and (folder.name == ROWS or bool(re.fullmatch("rows-[0-9a-f]{12}", folder.name)))


def _digest_of(folder: Path) -> str:
    """Tells one manifest from another; empty = there is none."""
    try:
        return hashlib.blake2b((folder / MANIFEST).read_bytes(), digest_size=16).hexdigest()
    except FileNotFoundError:
        return ""


def _wait_for(digest: str, folder: Path) -> None:
    """Wait until this process sees a manifest: network file systems show earlier content for a while.

    Raises:
        DataError: It does not come.
    """
    end = time.monotonic() + VISIBLE_S
    while _digest_of(folder) != digest:
        if time.monotonic() > end:
            raise DataError(
                f"{folder}: what process 0 has written is not seen here after {VISIBLE_S:g} s; all processes need the"
                " same folder"
            )
        list(folder.iterdir())  # asks the server for its names
        time.sleep(0.1)


def _check_class_names(folder: Path, manifest: Manifest, facts: Mapping[str, Any]) -> None:
    """Refuse labels in another order."""
    before, now = manifest.class_names, list(facts["class_names"])
    if before and now and before != now:
        raise FingerprintError(
            f"{folder}: the names of the classes differ from those of this cache ({len(before)} there, {len(now)} now);"
            f" {OTHERWISE}"
        )


def _cut_otherwise(shares: Sequence[ProcessPart], cut: Mapping[str, int]) -> list[str]:
    """What is given up of a stream, as text, since its batches are others now; empty if nothing is."""
    lost = [share for share in shares if share.cut != cut]
    if not lost:
        return []
    then = {name: value for name, value in lost[0].cut.items() if cut.get(name) != value}
    changes = ", ".join(f"{name} {value}, now {cut.get(name)}" for name, value in then.items())
    return [f"{sum(share.images for share in lost)} images of {lost[0].name} are recorded again (before: {changes})"]
