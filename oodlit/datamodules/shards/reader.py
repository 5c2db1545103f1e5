"""Read shards with exact counts, by position or key."""

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.retry import retried
from oodlit.base.roles import Role
from oodlit.base.secrets import mask_address, mask_text
from oodlit.base.text.warn import warn_here
from oodlit.datamodules.keys import key_digest, repeated_digests
from oodlit.datamodules.shards.locate import Shards, check_files, join, locate
from oodlit.datamodules.shards.manifest import ShardRecord
from oodlit.datamodules.shards.members import ShardDamageError, raw_samples, read_facts, read_sample, zeros_fault
from oodlit.datamodules.shards.remote import Cache, is_url, split_url
from oodlit.datamodules.stream import Sample, Stream, locate_range
from oodlit.datamodules.subsets import SampleFacts

Damaged = Literal["raise", "mark"]


class ShardSource:
    """Samples from WebDataset shards written by `build_shards`, for timm, or by webdataset.

    Counts come from `_info.json` if it lists the shards; other shards are counted when the source is created, from
    their headers. Reading the last sample of a shard also checks that the shard ends there. Only the image field (any
    of `IMAGE_FIELDS`), `.cls` and `.json` are read.

    Args:
        shards: A folder, a path or URL, a pattern with braces or wildcards ("train-{0000..1023}.tar", "val-*.tar"), or
            a list of paths or URLs. A remote folder must have a manifest, and its URL must end in "/".
        split: Split of the manifest; optional if there is only one.
        cache: Cache of remote shards.
        damaged: "raise" (default): a missing, truncated or unreadable shard is an error, which is detected early if
            possible. "mark": if the manifest has the count, each lost sample becomes an unreadable one with the key
            "<file>#<position>", which `on_error="skip"` lists.

    Raises:
        DataError: A shard is missing or damaged, the files differ from the manifest, a key occurs twice, or nothing
            is readable.
        InvalidArgumentError: `split` is missing or unknown, or a URL is not supported.
    """

    def __init__(
        self, shards: Shards, *, split: str | None = None, cache: Cache | None = None, damaged: Damaged = "raise"
    ) -> None:
        if damaged not in ("raise", "mark"):
            raise InvalidArgumentError(f"ShardSource: expected damaged='raise' or damaged='mark', got {damaged!r}")
        self.damaged = damaged
        self.cache = cache or Cache()
        self.folder, self.info = locate(shards, split, self.cache)
        self._counted = {record.file for record in self.info.shards if record.samples < 0}
        check_files(self.folder, self.info, may_be_damaged=damaged == "mark")
        if self._counted:
            self.info = replace(self.info, shards=self._count())
        if not self.info.num_samples:
            raise DataError(
                f"{mask_address(self.folder) or 'shards'}: found no samples in {len(self.info.shards)} shards;"
                " samples must have an image field such as .jpg or .png"
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
        for index, positions in locate_range(self._ends, start, stop):
            yield from self._marked(self.info.shards[index], positions)

    def pick(self, positions: Sequence[int]) -> Iterator[Sample]:
        """Samples at these ascending positions. Only the headers of all other samples are read.

        Raises:
            DataError: As `read`.
        """
        for index, members in groupby(positions, key=lambda position: bisect_right(self._ends, position)):
            record = self.info.shards[index]
            first = self._ends[index] - record.samples
            yield from self._marked(record, [position - first for position in members])

    def find(self, keys: Collection[str]) -> Iterator[Sample]:
        """The samples with these keys. Only the headers of all other samples are read."""
        for record in self.info.shards:
            with self._open(record) as file:
                for raw in raw_samples(file, self._name(record), _ignore):
                    if raw.key in keys:
                        yield read_sample(file, raw, self._name(record))

    def facts(self) -> Iterator[SampleFacts]:
        """Path, label and group of every sample, in order, without reading images.

        Raises:
            DataError: As `read`.
        """
        for record in self.info.shards:
            with self._open(record) as file:
                where = self._name(record)
                yield from (read_facts(file, raw, where) for raw in raw_samples(file, where, _ignore))

    def _marked(self, record: ShardRecord, positions: Sequence[int]) -> Iterator[Sample]:
        """Samples of one shard; with damaged="mark", lost samples have an error."""
        done = 0
        try:
            for sample in self._piece(record, positions):
                yield sample
                done += 1
        except ShardDamageError as error:
            if self.damaged == "raise":
                raise
            for lost in positions[done:]:
                yield Sample(f"{_file_name(record.file)}#{lost}", b"", error=str(error))

    def _piece(self, record: ShardRecord, positions: Sequence[int]) -> Iterator[Sample]:
        """Samples of one shard; after a read error, reading is retried at the same position."""
        done, walk = 0, self._walk(record, positions)

        def following() -> Sample | None:
            nonlocal walk
            try:
                return next(walk, None)
            except OSError:
                walk = self._walk(record, positions[done:])
                raise

        attempts, backoff_s = self.cache.attempts, self.cache.backoff_s
        try:
            while sample := retried(following, attempts=attempts, backoff_s=backoff_s, passing=OSError):
                yield sample
                done += 1
        except OSError as error:
            raise ShardDamageError(
                f"shard {self._name(record)}: reading failed after {attempts} attempts ({error})"
            ) from error

    def _walk(self, record: ShardRecord, positions: Sequence[int]) -> Iterator[Sample]:
        where = self._name(record)
        count, wanted = 0, iter(positions)
        following = next(wanted, -1)
        with self._open(record) as file:
            for raw in raw_samples(file, where, _ignore if record.file in self._counted else _Strays(where)):
                if count == record.samples:
                    raise self._other_count(record, f"more, such as {raw.key!r}")
                if count == following:
                    yield read_sample(file, raw, where)
                    following = next(wanted, -1)
                count += 1
                if following < 0 and count < record.samples:
                    return
        if count != record.samples:
            raise self._other_count(record, str(count))

    def _other_count(self, record: ShardRecord, found: str) -> DataError:
        expected = f"shard {self._name(record)}: expected {record.samples} samples"
        if record.file in self._counted:
            return DataError(f"{expected}, as counted when the source was opened, found {found}; restore the shard")
        return DataError(
            f"{expected} according to the manifest, found {found}. Restore the shard, or remove the manifest to count"
            " the samples again"
        )

    def _name(self, record: ShardRecord) -> str:
        """The shard in messages."""
        return mask_address(join(self.folder, record.file))

    def _open(self, record: ShardRecord) -> BinaryIO:
        path = join(self.folder, record.file)
        try:
            if is_url(path):
                return self.cache.fetch(path, size=record.size, sha256=record.sha256).open("rb")
            return self.cache.retry(lambda: Path(path).open("rb"), f"shard {path}")
        except DataError as error:
            raise ShardDamageError(str(error)) from error

    def _count(self) -> tuple[ShardRecord, ...]:
        """Count the shards without a manifest, and check that no key occurs in two of them."""
        digests, records = array("Q"), []
        for record in self.info.shards:
            before = len(digests)
            if record.samples < 0:
                where = self._name(record)
                with self._open(record) as file:
                    digests.extend(key_digest(raw.key) for raw in raw_samples(file, where, _Strays(where)))
                    if len(digests) == before and (fault := zeros_fault(file)):
                        warn_here(f"shard {where}: {fault}")
            records.append(record if record.samples >= 0 else replace(record, samples=len(digests) - before))
        if repeated := repeated_digests(np.frombuffer(digests, dtype=np.uint64)):
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
                            f"key {raw.key!r} occurs in shard {places[raw.key]} and again in shard {where}; rename one"
                            f" of the samples, or rebuild the shards"
                        )
                    if key_digest(raw.key) in repeated:
                        places[raw.key] = where


def shard_stream(
    shards: Shards,
    *,
    name: str | None = None,
    role: Role | None = None,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    cache: Cache | None = None,
    damaged: Damaged = "raise",
) -> Stream:
    """A stream from shards; missing arguments come from the manifest.

    Raises:
        InvalidArgumentError: Name or role are neither given nor in the manifest.
        DataError: As `ShardSource`.
    """
    source = ShardSource(shards, split=split, cache=cache, damaged=damaged)
    name, role = name or source.info.name, role or source.info.role
    if not name or role is None:
        what = "role" if name else "name"
        raise InvalidArgumentError(f"{mask_text(str(shards))}: no manifest specifies the {what}; pass {what}=...")
    return Stream(name, role, source, tuple(source.info.class_names if class_names is None else class_names))


def _file_name(path: str) -> str:
    return split_url(path)[1] if is_url(path) else path.rpartition("/")[2]


def _ignore(_: str) -> None:
    """Ignore stray files that were reported when the shard was counted."""


class _Strays:
    """Reports the first stray file of a shard."""

    def __init__(self, where: str) -> None:
        self.where, self.has_warned = where, False

    def __call__(self, name: str) -> None:
        if not self.has_warned:
            self.has_warned = True
            warn_here(
                f"shard {self.where}: {name!r} is ignored, because it does not belong to a sample; there may be more"
                " such files"
            )
