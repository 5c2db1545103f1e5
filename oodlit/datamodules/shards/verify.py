"""Check shards against their manifest, known counts, and one another."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from oodlit.datamodules.decode import MAX_PIXELS, decode_image
from oodlit.datamodules.keys import key_digest
from oodlit.datamodules.shards.build import Progress
from oodlit.datamodules.shards.copies import hexdigest
from oodlit.datamodules.shards.fields import read_sample
from oodlit.datamodules.shards.locate import locate
from oodlit.datamodules.shards.manifest import ShardInfo, ShardRecord, check_finished, read_info
from oodlit.datamodules.shards.members import ONLY_ZEROS, only_zeros, raw_samples
from oodlit.datamodules.shards.reader import ShardSource
from oodlit.datamodules.shards.remote import Cache
from oodlit.datamodules.stream import Sample
from oodlit.errors import DataError
from oodlit.roles import NAMES_OF_LABELS


@dataclass(frozen=True)
class ShardProblem:
    """What is wrong with a sample, a shard or a set of shards."""

    shard: str
    """File name of the shard; empty for the set as a whole."""
    key: str
    """Key of the sample; empty for the shard as a whole."""
    message: str

    def __str__(self) -> str:
        """One line."""
        return ": ".join(part for part in (self.shard, self.key, self.message) if part)


@dataclass(frozen=True)
class Verification:
    """What was found in one split.

    Args:
        folder: Folder of the shards.
        info: The manifest's split, or the counted shards where there is none.
        num_samples: Samples that were found.
        label_counts: Samples found per label.
        group_counts: Samples found per group.
        problems: Everything that is wrong; empty = the set is whole.
        strays: Files that belong to no sample.
    """

    folder: str
    info: ShardInfo
    num_samples: int
    label_counts: Mapping[int, int]
    group_counts: Mapping[int, int]
    problems: tuple[ShardProblem, ...]
    strays: tuple[str, ...]
    digests: "array[int]" = field(repr=False)
    """64 bits of every image's content, in order."""
    keys: tuple[str, ...] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def with_problems(self, *messages: str) -> "Verification":
        """The same report with further problems of the set as a whole."""
        more = [ShardProblem("", "", message) for message in messages]
        return replace(self, problems=(*self.problems, *more))


@dataclass(frozen=True)
class Duplicate:
    """Images with the same bytes, as `dataset/key`."""

    keys: tuple[str, ...]


def shard_info(folder: str | Path) -> dict[str, ShardInfo]:
    """What a folder of shards holds, by split: from the manifest, or counted where there is none.

    Raises:
        DataError: There are no shards, or they are damaged.
    """
    infos = read_info(folder)
    return infos or {"": ShardSource(folder).info}


def verify_shards(
    folder: str | Path,
    *,
    split: str | None = None,
    expected: Mapping[str, int] | None = None,
    decode: bool = True,
    max_pixels: int = MAX_PIXELS,
    progress: Progress | None = None,
) -> list[Verification]:
    """Check every split (or one) of a folder: files, checksums, counts, labels, keys, and whether all images decode.

    It reads on after a problem and lists them all; it does not raise for what it finds.

    Args:
        folder: Folder of the shards.
        split: Only this split.
        expected: Known number of samples per class name, such as the published ones.
        decode: Whether every image is decoded.
        max_pixels: Largest width * height that is decoded; a larger image is a problem.
        progress: Called with the number of samples done since the last call.

    Raises:
        DataError: The folder holds no shards or those of an interrupted build, or its manifest is malformed.
    """
    if not Path(folder).is_dir():
        raise DataError(f"{folder} does not exist; a folder of shards is needed")
    infos = read_info(folder)
    check_finished(folder, infos)
    infos = infos or {"": locate(folder, None, Cache())[1]}
    chosen = [info for name, info in infos.items() if split in (None, name)]
    if not chosen:
        raise DataError(f"{folder}: no split {split!r}; there are {', '.join(infos)}")
    reports = [_Verifier(Path(folder), info, max_pixels if decode else None, progress).run(expected) for info in chosen]
    listed = {record.file for info in infos.values() for record in info.shards}
    extra = sorted({path.name for path in Path(folder).glob("*.tar")} - listed)
    reports[0] = reports[0].with_problems(*(f"{name}: is not in the manifest" for name in extra))
    return reports


def find_duplicates(verifications: Sequence[Verification]) -> list[Duplicate]:
    """Images that occur more than once with the same bytes, within a set or across sets.

    Published OOD sets share images: pooled numbers count such an image twice.
    """
    if not verifications:
        return []
    everything = np.concatenate([np.frombuffer(report.digests, dtype=np.uint64) for report in verifications])
    values, counts = np.unique(everything, return_counts=True)
    repeated = set(values[counts > 1].tolist())
    keys_of: dict[int, list[str]] = {}
    for report in verifications:
        name = report.info.name or Path(report.folder).name
        for digest, key in zip(report.digests, report.keys, strict=True):
            if digest in repeated:
                keys_of.setdefault(digest, []).append(f"{name}/{key}")
    return [Duplicate(tuple(keys)) for keys in keys_of.values()]


class _Verifier:
    def __init__(self, folder: Path, info: ShardInfo, max_pixels: int | None, progress: Progress | None) -> None:
        self.folder, self.info, self.max_pixels, self.progress = folder, info, max_pixels, progress
        self.problems: list[ShardProblem] = []
        self.strays: list[str] = []
        self.labels, self.groups = Counter[int](), Counter[int]()
        self.digests: array[int] = array("Q")
        self.keys: list[str] = []
        self.shard_of: dict[int, str] = {}

    def run(self, expected: Mapping[str, int] | None) -> Verification:
        counted = []
        for record in self.info.shards:
            before = len(self.keys)
            try:
                self._shard(record)
            except (DataError, OSError) as error:
                self.problems.append(ShardProblem(record.file, "", str(error)))
            counted.append(replace(record, samples=len(self.keys) - before))
        self._counts(expected)
        info = self.info
        if any(record.samples < 0 for record in info.shards):
            info = replace(info, shards=tuple(counted))
        return Verification(
            str(self.folder),
            info,
            len(self.keys),
            dict(self.labels),
            dict(self.groups),
            tuple(self.problems),
            tuple(self.strays),
            self.digests,
            tuple(self.keys),
        )

    def _shard(self, record: ShardRecord) -> None:
        path = self.folder / record.file
        if not path.is_file():
            raise DataError("is missing; restore it, or build the shards again")
        size = path.stat().st_size
        if record.size not in (None, size):
            raise DataError(f"has {size} bytes, the manifest states {record.size}")
        with path.open("rb") as file:
            if record.sha256 is not None and hexdigest(file) != record.sha256:
                self.problems.append(ShardProblem(record.file, "", "the checksum differs from the manifest's"))
            file.seek(0)
            count = 0
            for raw in raw_samples(file, record.file, lambda name: self.strays.append(f"{record.file}: {name}")):
                count += 1
                self._sample(record.file, read_sample(file, raw, record.file))
            if not count and record.samples < 0 and only_zeros(file):
                raise DataError(ONLY_ZEROS)
        if record.samples not in (-1, count):
            raise DataError(f"holds {count} samples, the manifest states {record.samples}")

    def _sample(self, shard: str, sample: Sample) -> None:
        assert isinstance(sample.image, bytes)  # shards hold files
        reason = sample.error
        if reason is None and self.max_pixels is not None:
            try:
                decode_image(sample.image, max_pixels=self.max_pixels)
            except DataError as error:
                reason = str(error)
        if reason is not None:
            self.problems.append(ShardProblem(shard, sample.key, reason))
        digest = key_digest(sample.key)
        if digest in self.shard_of:
            self.problems.append(ShardProblem(shard, sample.key, f"the key is also in {self.shard_of[digest]}"))
        self.shard_of.setdefault(digest, shard)
        self.keys.append(sample.key)
        self.labels[sample.label] += 1
        self.groups[sample.group] += 1
        # unreadable images are no duplicates of one another: their key stands in for their content
        content = hashlib.blake2b(sample.image, digest_size=8).digest() if sample.error is None else None
        self.digests.append(digest if content is None else int.from_bytes(content, "little"))
        if self.progress is not None:
            self.progress(1)

    def _counts(self, expected: Mapping[str, int] | None) -> None:
        for kind, stated, found in (
            ("label", self.info.label_counts, self.labels),
            ("group", self.info.group_counts, self.groups),
        ):
            for index in sorted(i for i in stated.keys() | found.keys() if stated and i >= 0):
                if stated.get(index, 0) != found.get(index, 0):
                    self._count_problem(f"{kind} {index}", found[index], f"the manifest states {stated.get(index, 0)}")
        names = self.info.class_names
        found = self.labels if self.info.role in NAMES_OF_LABELS else self.groups
        for name, count in (expected or {}).items():
            number = found[names.index(name)] if name in names else 0
            if number != count:
                self._count_problem(f"class {name!r}", number, f"{count} are expected")
        unexpected = sorted(set(names) - set(expected)) if expected is not None else []
        if unexpected:
            self._count_problem(f"class {unexpected[0]!r}", found[names.index(unexpected[0])], "none is expected")

    def _count_problem(self, what: str, number: int, wanted: str) -> None:
        self.problems.append(ShardProblem("", "", f"{what}: {number} samples, {wanted}"))
