"""The record of a run, `run.json`: everything about a run except the scores and the table."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from oodlit.base.errors import DataError
from oodlit.base.json_files import as_type, to_plain
from oodlit.base.secrets import mask, mask_text, mask_words, mask_yaml
from oodlit.metrics.settings import Settings, without_unused
from oodlit.results.finding import Finding
from oodlit.results.info import DatasetInfo
from oodlit.results.record_parts import (
    AccelerationRecord,
    BackboneRecord,
    ClassifierRecord,
    DataRecord,
    DetectorConfig,
    DetectorOverview,
    PoolRecord,
    ReferenceRecord,
    SkippedImage,
    TimeRecord,
    TrainerRecord,
    UndefinedValue,
    Unfinished,
    written,
)

R = TypeVar("R", bound="RunRecord")

FORMAT = 1
"""Version of `run.json`. Files without a version were written before there was one, and have the same entries."""


class RunRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The record of a run of any kind.

    Records are made by `of` from the entries of a file, or by their fields. Fields of records that stay at their
    default are missing in the file, except those that every run has.

    Args:
        format: Version of the file format.
        kind: What a row of the scores is: "images" or "objects".
        versions: Version of oodlit, Python and the main packages, by name.
        argv: The command line.
        backbone: The network.
        detector_settings: How to build each detector.
        overview: What each detector needs and costs.
        references: The paper of each detector.
        data: How images were loaded.
        trainer: What the Trainer ran on.
        not_applicable: By detector that has no scores, the reason.
        key: Identifies the run: equal for runs that would compute the same.
        resumed: What the run took over from an interrupted run, as text; empty for a run from scratch.
        bank: Where the training images of KNN were kept; empty without them.
        time: Where the time of the run went.
        acceleration: The fast options of the run, checked against the plain network.
        fit_notes: By detector, remarks of its fit.
        findings: What makes the numbers doubtful, or worth believing.
        skipped: Images that could not be used.
        datasets: All data sets of the results.
        detectors: Names of the detectors in the results.
        thresholds: By detector and name of a metric, the score from which on an image is accepted.
        undefined: The NaN values of the table with their reasons.
        notes: What was not computed, and why.
        config: The resolved configuration of the command line, in YAML; empty for a run from Python.
        cache: The feature cache that the run read: its folder, and how it was recorded.
        warnings: Warnings shown during the run; None if they were not collected.
        started_in: Working folder of the run, relative to the folder of its results; empty if unknown.
        fitted_from: Folder of the fitted detectors that the run used; empty if it fitted them itself.
        fit_digest: Digest of the saved fit that the scores come from; empty for results in memory and older ones.
        title: Title of the page.
        caveat: What to keep in mind about the numbers, shown above them.
        every_detector: Whether nobody chose the detectors: all that apply were used.
        dry_run: The option that made the run read only a part of its data; empty for a run that read everything.
        processes: Number of processes of a run that is not complete; 0 in the record of complete results.
        unfinished: What an interrupted run has not finished; None for a complete run.
        checksums: SHA-256 of the other files of complete results, by name; only in the file.
        entry_checksums: Checksums of the entries that the numbers depend on, by name; only in the file.
        extra: The caller's own entries, which the file keeps beside the others.
    """

    format: int = written(lambda: FORMAT)
    kind: str = "images"
    versions: dict[str, str] = {}
    argv: list[str] = []
    backbone: BackboneRecord = BackboneRecord()
    detector_settings: dict[str, DetectorConfig] = {}
    overview: dict[str, DetectorOverview] = {}
    references: dict[str, ReferenceRecord] = {}
    data: DataRecord = DataRecord()
    trainer: TrainerRecord = TrainerRecord()
    key: str = ""
    resumed: str = ""
    bank: str = ""
    time: TimeRecord = TimeRecord()
    not_applicable: dict[str, str] = written(dict)
    acceleration: AccelerationRecord = AccelerationRecord()
    fit_notes: dict[str, list[str]] = written(dict)
    findings: list[Finding] = written(list)
    skipped: list[SkippedImage] = written(list)
    datasets: list[DatasetInfo] = written(list)
    detectors: list[str] = written(list)
    thresholds: dict[str, dict[str, float]] = written(dict)
    undefined: list[UndefinedValue] = written(list)
    notes: list[str] = written(list)
    config: str = ""
    cache: dict[str, Any] = {}
    warnings: list[str] | None = None
    started_in: str = ""
    fitted_from: str = ""
    fit_digest: str = ""
    title: str = ""
    caveat: str = ""
    every_detector: bool = False
    dry_run: str = ""
    processes: int = 0
    unfinished: Unfinished | None = None
    checksums: dict[str, str] = {}
    entry_checksums: dict[str, str] = {}
    extra: dict[str, Any] = {}

    @classmethod
    def of(cls: type[R], entries: Mapping[str, Any], *, where: str = "record of the run") -> R:
        """Check the entries of a record, such as the content of a file; unknown entries become `extra`.

        Args:
            entries: By name, in the types of JSON or in types that `to_plain` converts.
            where: Names the entries in messages.

        Raises:
            DataError: An entry has another type, or a newer version of oodlit wrote the file.

        Example:
            >>> record = RunRecord.of({"detectors": ["msp"], "mine": 3})
            >>> record.detectors, record.extra
            (['msp'], {'mine': 3})
        """
        plain = _masked(to_plain(entries), cls)
        if not isinstance(plain.get("format", 0), int) or plain.get("format", 0) > FORMAT:
            raise DataError(f"{where}: expected format {FORMAT} or older, got {plain['format']!r}; upgrade oodlit")
        fields = set(cls.__struct_fields__) - {"extra"}
        known = {name: value for name, value in plain.items() if name in fields and value is not None}
        cls.restore_numbers(known)
        known |= {"format": FORMAT, "extra": {n: value for n, value in plain.items() if n not in fields}}
        return as_type(known, cls, where=where)

    @classmethod
    def restore_numbers(cls, entries: dict[str, Any]) -> None:
        """Restore the numbers that JSON cannot hold: NaN and infinities, in the entries that may have them."""
        entries |= {name: as_numbers(entries[name]) for name in ("thresholds", "untrained") if name in entries}

    def entries(self) -> dict[str, Any]:
        """The entries of `run.json`: all fields and the caller's additional entries; secrets are masked."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=to_plain)
        more: dict[str, Any] = plain.pop("extra", {})
        if not plain.get("acceleration", True):
            del plain["acceleration"]
        if "settings" in plain:
            plain["settings"] = without_unused(plain["settings"])
        plain["datasets"] = [info.to_json() for info in self.datasets]
        return _masked(plain | more, type(self))

    def with_entries(self: R, more: Mapping[str, Any]) -> R:
        """Return the record with additional entries; mappings and lists that exist in both are joined.

        Raises:
            DataError: An entry has another type than the field of its name.
        """
        return type(self).of(joined(self.entries(), more)) if more else self


class ImageRunRecord(RunRecord, frozen=True, omit_defaults=True, kw_only=True):
    """The record of a run of images.

    Args:
        backbone: The classifier.
        confidences: By detector, what the severities are means of; empty without a pool.
        masked_accuracy: By data set with a part of the classes: correct predictions among these, and labeled images.
        settings: How the table was computed.
        counts: By data set, the number of images.
        pools: By pool, what identifies it.
        pooled: Names of the data sets that were joined, in results of `Results.pooled`.
        ms_per_image: By detector, milliseconds per image, extra forward passes included.
        untrained: By detector and OOD set, AUROC and its interval with an untrained network; empty without that run.
    """

    backbone: ClassifierRecord = ClassifierRecord()
    confidences: dict[str, str] = {}
    masked_accuracy: dict[str, tuple[int, int]] = written(dict)
    settings: Settings = written(Settings)
    counts: dict[str, int] = written(dict)
    pools: dict[str, PoolRecord] = {}
    pooled: list[str] = []
    ms_per_image: dict[str, float] = {}
    untrained: dict[str, dict[str, dict[str, float]]] = {}


_SETTINGS = ("backbone", "cache", "detector_settings")
"""Entries with values under names that a user chooses, such as arguments."""


def _masked(entries: dict[str, Any], kind: type[RunRecord]) -> dict[str, Any]:
    """Mask secrets in the entries of a record, except in the links to papers."""
    special: dict[str, Callable[[Any], Any]] = {"argv": mask_words, "config": mask_yaml}
    special["references"] = lambda papers: papers
    own = set(kind.__struct_fields__) - {*_SETTINGS, "extra"}
    return {
        name: (special[name] if name in special and value else _mask_texts if name in own else mask)(value)
        for name, value in entries.items()
    }


def _mask_texts(value: Any) -> Any:
    """Mask secrets in texts only, not by key: a detector or an image may be called "token"."""
    if isinstance(value, Mapping):
        return {name: _mask_texts(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_texts(inner) for inner in value]
    return mask_text(value) if isinstance(value, str) else value


def as_numbers(value: Any) -> Any:
    """The inverse of `to_plain` for nested mappings of numbers: null becomes NaN, and text becomes an infinity.

    Example:
        >>> as_numbers({"msp": {"fpr95": None, "der99": "-Infinity"}})
        {'msp': {'fpr95': nan, 'der99': -inf}}
    """
    if isinstance(value, Mapping):
        return {name: as_numbers(inner) for name, inner in value.items()}
    return math.nan if value is None else float(value) if value in ("Infinity", "-Infinity") else value


def joined(known: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Join two mappings; entries that are mappings or lists in both are joined, too.

    Example:
        >>> joined({"not_applicable": {"vim": "no head"}}, {"not_applicable": {"knn": "no data"}, "config": "a: 1"})
        {'not_applicable': {'vim': 'no head', 'knn': 'no data'}, 'config': 'a: 1'}
    """
    merged = dict(known)
    for name, value in more.items():
        before = known.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[name] = {**before, **value}
        elif isinstance(value, list) and isinstance(before, list):
            merged[name] = [*before, *value]
        else:
            merged[name] = value
    return merged
