"""Verify shards: compare them with their manifest, published counts, and each other."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from oodlit.base.errors import DataError
from oodlit.base.roles import NAMES_OF_LABELS
from oodlit.datamodules.decode import MAX_PIXELS, decode_image
from oodlit.datamodules.keys import is_hidden, key_digest, repeated_digests
from oodlit.datamodules.shards.build import Progress
from oodlit.datamodules.shards.locate import locate
from oodlit.datamodules.shards.manifest import ShardInfo, ShardRecord, local_info, read_info
from oodlit.datamodules.shards.members import raw_samples, read_sample, zeros_fault
from oodlit.datamodules.shards.reader import ShardSource
from oodlit.datamodules.shards.remote import Cache, hexdigest
from oodlit.datamodules.stream import Sample


@dataclass(frozen=True)
class ShardProblem:
    """A problem of a sample, a shard or a set of shards."""

    shard: str
    """File name of the shard; empty for the set as a whole."""
    key: str
    """Key of the sample; empty for the shard as a whole."""
    message: str

    def __str__(self) -> str:
        """One line."""
        return ": ".join(part for part in (self.shard, self.key, self.message) if part)


@dataclass
class ShardReport:
    """Result of verifying one split.

    Args:
        folder: Folder of the shards.
        info: Split of the manifest, or the counted shards if there is none.
    """

    folder: Path
    info: ShardInfo
    label_counts: Counter[int] = field(default_factory=Counter)
    """Samples found per label; -1 = none."""
    group_counts: Counter[int] = field(default_factory=Counter)
    """Samples found per group; -1 = none."""
    problems: list[ShardProblem] = field(default_factory=list)
    """Problems that were found; empty if the set is complete and intact."""
    strays: list[str] = field(default_factory=list)
    """Files that do not belong to a sample."""
    keys: list[str] = field(default_factory=list, repr=False)
    """Keys of the samples, in order."""
    digests: "array[int]" = field(default_factory=lambda: array("Q"), repr=False)
    """64-bit hashes of the images' content, in order."""

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def num_samples(self) -> int:
        """Number of samples that were found."""
        return len(self.keys)

    def add_problem(self, message: str, shard: str = "", key: str = "") -> None:
        """Add a problem of the set as a whole, of a shard, or of a sample."""
        self.problems.append(ShardProblem(shard, key, message))


@dataclass(frozen=True)
class Duplicate:
    """Images with the same bytes, as `dataset/key`."""

    keys: tuple[str, ...]


def shard_info(folder: str | Path) -> dict[str, ShardInfo]:
    """Read what a folder of shards contains, by split: from the manifest, or counted if there is none.

    Raises:
        DataError: There are no shards, or they are damaged.
    """
    return read_info(folder) or {"": ShardSource(folder).info}


def verify_shards(
    folder: str | Path,
    *,
    split: str | None = None,
    expected: Mapping[str, int] | None = None,
    decode: bool = True,
    max_pixels: int = MAX_PIXELS,
    progress: Progress | None = None,
) -> list[ShardReport]:
    """Verify every split (or one) of a folder: files, checksums, counts, labels, keys, and decoding of all images.

    Problems are collected in the result, not raised.

    Args:
        folder: Folder of the shards.
        split: Split to verify; None (default) = all.
        expected: Published number of samples per class name.
        decode: Whether to decode every image.
        max_pixels: Largest width * height that is decoded; a larger image is a problem.
        progress: Called with the number of samples done since the last call.

    Raises:
        DataError: The folder has no shards or those of an interrupted build, or its manifest is malformed.
    """
    if not Path(folder).is_dir():
        raise DataError(f"{folder}: expected an existing folder of shards; check the path")
    infos = local_info(folder) or {"": locate(folder, None, Cache())[1]}
    chosen = [info for name, info in infos.items() if split in (None, name)]
    if not chosen:
        known = f"split to be {' or '.join(infos)}" if any(infos) else "no split, because the folder has no manifest"
        raise DataError(f"{folder}: expected {known}, got {split!r}")
    reports = []
    for info in chosen:
        report = ShardReport(Path(folder), info)
        _Verifier(report, max_pixels if decode else None, progress).run(expected)
        reports.append(report)
    listed = {record.file for info in infos.values() for record in info.shards}
    for name in sorted({path.name for path in Path(folder).glob("*.tar") if not is_hidden(path.name)} - listed):
        reports[0].add_problem(
            f"{name} is not in the manifest; remove this file, or remove the manifest to count the samples again"
        )
    return reports


def find_duplicates(verifications: Sequence[ShardReport]) -> list[Duplicate]:
    """Find images with the same bytes, within a set or across sets.

    Published OOD sets share images, which pooled metrics would count twice.
    """
    if not verifications:
        return []
    everything = np.concatenate([np.frombuffer(report.digests, dtype=np.uint64) for report in verifications])
    repeated = repeated_digests(everything)
    keys_of: dict[int, list[str]] = {}
    for report in verifications:
        name = report.info.name or Path(report.folder).name
        for digest, key in zip(report.digests, report.keys, strict=True):
            if digest in repeated:
                keys_of.setdefault(digest, []).append(f"{name}/{key}")
    return [Duplicate(tuple(keys)) for keys in keys_of.values()]


class _Verifier:
    """Reads all shards of a split and fills its report."""

    def __init__(self, report: ShardReport, max_pixels: int | None, progress: Progress | None) -> None:
        self.report, self.max_pixels, self.progress = report, max_pixels, progress or (lambda _: None)
        self.shard_of: dict[int, str] = {}

    def run(self, expected: Mapping[str, int] | None) -> None:
        report, counted = self.report, []
        for record in report.info.shards:
            before = report.num_samples
            try:
                self._shard(record)
            except (DataError, OSError) as error:
                report.add_problem(str(error), record.file)
            counted.append(replace(record, samples=report.num_samples - before))
        self._compare_counts(expected)
        if any(record.samples < 0 for record in report.info.shards):
            report.info = replace(report.info, shards=tuple(counted))

    def _shard(self, record: ShardRecord) -> None:
        report, path = self.report, self.report.folder / record.file
        if not path.is_file():
            raise DataError("the shard is missing; restore it, or rebuild the shards")
        size = path.stat().st_size
        if record.size not in (None, size):
            raise DataError(f"expected {record.size} bytes according to the manifest, got {size}")
        with path.open("rb") as file:
            if record.sha256 is not None and hexdigest(file) != record.sha256:
                report.add_problem("the checksum differs from that in the manifest", record.file)
            file.seek(0)
            count = 0
            for raw in raw_samples(file, record.file, lambda name: report.strays.append(f"{record.file}: {name}")):
                count += 1
                self._sample(record.file, read_sample(file, raw, record.file))
            if not count and record.samples < 0 and (fault := zeros_fault(file)):
                raise DataError(fault)
        if record.samples not in (-1, count):
            raise DataError(f"expected {record.samples} samples according to the manifest, found {count}")

    def _sample(self, shard: str, sample: Sample) -> None:
        assert isinstance(sample.image, bytes)  # shards hold files
        report, reason = self.report, sample.error
        if reason is None and self.max_pixels is not None:
            try:
                decode_image(sample.image, max_pixels=self.max_pixels)
            except DataError as error:
                reason = str(error)
        if reason is not None:
            report.add_problem(reason, shard, sample.key)
        digest = key_digest(sample.key)
        if digest in self.shard_of:
            report.add_problem(f"the key also occurs in {self.shard_of[digest]}", shard, sample.key)
        self.shard_of.setdefault(digest, shard)
        report.keys.append(sample.key)
        report.label_counts[sample.label] += 1
        report.group_counts[sample.group] += 1
        # unreadable images are not duplicates of each other: hash their key instead of their content
        content = hashlib.blake2b(sample.image, digest_size=8).digest() if sample.error is None else None
        report.digests.append(digest if content is None else int.from_bytes(content, "little"))
        self.progress(1)

    def _compare_counts(self, expected: Mapping[str, int] | None) -> None:
        report, info = self.report, self.report.info
        for kind, stated, found in (
            ("label", info.label_counts, report.label_counts),
            ("group", info.group_counts, report.group_counts),
        ):
            for index in sorted(i for i in stated.keys() | found.keys() if stated and i >= 0):
                if (number := stated.get(index, 0)) != found[index]:
                    report.add_problem(
                        f"{kind} {index}: expected {number} samples according to the manifest, found {found[index]}"
                    )
        found = report.label_counts if info.role in NAMES_OF_LABELS else report.group_counts
        by_name = {name: found[index] for index, name in enumerate(info.class_names)}
        for name, count in (expected or {}).items():
            if (number := by_name.get(name, 0)) != count:
                report.add_problem(f"class {name!r}: expected {count} samples, found {number}")
        if expected is not None and (unexpected := sorted(by_name.keys() - expected.keys())):
            name = unexpected[0]
            report.add_problem(
                f"the manifest has class {name!r} ({by_name[name]} samples found), but this data set has no such class"
            )
