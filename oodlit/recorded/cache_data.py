"""Read a feature cache as module and data of a run, in place of the network and the images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import structs

from oodlit.backbones.backbone import Backbone
from oodlit.backbones.facts import place_of
from oodlit.backbones.identity import pattern
from oodlit.base.errors import DataError, FingerprintError, InvalidArgumentError
from oodlit.base.fingerprint import difference
from oodlit.base.known_classes.class_choice import ClassChoice
from oodlit.base.outputs import Head
from oodlit.base.roles import Role
from oodlit.base.value_description import hash_of
from oodlit.datamodules.batches import OnError
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.stream_identity import identity, other_fact, warn_of_changed_files, workers_decoder
from oodlit.datamodules.thinning import ThinnedSource, thinned
from oodlit.recorded.data import RecordedData
from oodlit.recorded.manifest import OTHERWISE, Manifest, RecordedStream
from oodlit.recorded.module import RecordedModule
from oodlit.recorded.store import MANIFEST, StoredRows, read_manifest

NO_IMAGES = "; a cache contains neither images nor the network; run this detector without the cache"
_DIGESTS = {
    "classes": "other class names",
    "labels": "other names of labels",
    "content": "other keys, labels or groups of images",
    "sample": "other sizes or contents of images",
}


def has_cache(folder: str | Path) -> bool:
    """Whether a folder contains a cache."""
    return (Path(folder).expanduser() / MANIFEST).is_file()


def open_cache(
    folder: str | Path,
    module: Backbone | None = None,
    data: OODDataModule | None = None,
    *,
    class_subset: ClassChoice = None,
    dropped_as: str | None = None,
) -> tuple[RecordedModule, RecordedData]:
    """Return a module and data for `trainer.predict` that read a cache in place of the network and the images.

    No image is read, and none passes through the network. If a network is given, its weights and its outputs for two
    fixed inputs must be those of the cache.

    Args:
        folder: A folder that `FeatureCache` wrote.
        module: The network that the outputs must come from; None (default) = any.
        data: The streams to read, which must be in the cache; also the source of thumbnails. None (default) = all
            streams of the cache.
        class_subset: Classes to keep, by index, name or WordNet id: head and logits are cut to them, and images of the
            other classes are left out. None (default) = all.
        dropped_as: Name of an OOD set with the ID images of the other classes; None (default) = no such set.

    Raises:
        DataError: There is no cache, a file is damaged, or images were skipped and `data` does not allow that.
        FingerprintError: The cache belongs to other weights, another transform or other data.
    """
    return RecordedCache.read(folder).open(module, data, class_subset=class_subset, dropped_as=dropped_as)


@dataclass(frozen=True)
class RecordedCache:
    """A cache whose manifest has been read.

    Args:
        folder: Its folder.
        manifest: Content of its manifest.
        head: The linear head of its network; None if there is none.
    """

    folder: Path
    manifest: Manifest
    head: Head | None

    @classmethod
    def read(cls, folder: str | Path) -> "RecordedCache":
        """Read the manifest in a folder.

        Raises:
            DataError: There is none, or it is damaged.
        """
        place = Path(folder).expanduser().absolute()
        return cls(place, *read_manifest(place))

    @property
    def settings(self) -> dict[str, Any]:
        """How the cache was recorded, for the record of a run."""
        entries: dict[str, Any] = msgspec.to_builtins(self.manifest)
        names = ("dtype", "precision", "decoder", "loss", "recordings")
        return {name: entries[name] for name in names if name in entries}

    def names(self) -> set[str]:
        """Names of its streams."""
        return {entry.name for entry in self.manifest.streams}

    def open(
        self, module: Backbone | None = None, data: OODDataModule | None = None, **subset: Any
    ) -> tuple[RecordedModule, RecordedData]:
        """Return module and data, see `open_cache`."""
        folder, manifest = self.folder, self.manifest
        stored = {entry.name: entry for entry in manifest.streams}
        if module is not None:
            transform = module.transform if data is None else data.transform_for(module)
            _probe_as_recorded(module, manifest.input_shape)
            check_network(folder, manifest.how, module.fingerprint_with(transform))
        if data is not None:
            _check_decoder(folder, manifest.decoder, data)
            stored = {stream.name: _entry_of(folder, stored, stream) for stream in data.streams}
            for entry in stored.values():
                _check_skipped(folder, entry, data.on_error)
        elif pools := [name for name, entry in stored.items() if entry.role == Role.POOL]:
            raise InvalidArgumentError(
                f"{folder}: data set {pools[0]!r} is a pool, and a cache does not store how the images of a pool are"
                " split; pass data=... with the data module that defines the split"
            )
        rows = {name: stored_rows(folder, manifest, entry) for name, entry in stored.items()}
        streams = (
            [_stream(entry, rows[name]) for name, entry in stored.items()]
            if data is None
            else [replace(stream, source=rows[stream.name]) for stream in data.streams]
        )
        recorded = RecordedData(
            streams,
            pictures=data,
            class_names=manifest.class_names or None,
            on_error="skip" if data is None else data.on_error,
            evaluation=None if data is None else data.evaluation,
            **subset,
        )
        recorder = RecordedModule(
            width=recorded.width,
            num_classes=recorded.num_classes,
            head=self.head,
            name=manifest.backbone,
            fingerprint=_of_subset(manifest.fingerprint, recorded.class_subset),
            head_problem=manifest.head_problem or "",
            hint=NO_IMAGES,
            class_subset=recorded.class_subset,
        )
        return recorder, recorded


def _of_subset(fingerprint: str, kept: Sequence[int]) -> str:
    """Fingerprint of a network whose head has some classes only, so that no fit of all classes belongs to it."""
    return fingerprint.replace("weights=", f"weights={hash_of(str(kept))[:8]}-", 1) if kept else fingerprint


def split_by_cache(
    folder: Path, manifest: Manifest | None, streams: Sequence[Stream], on_error: OnError
) -> tuple[list[Stream], list[Stream], list[str]]:
    """Sort streams into those in a cache and those missing from it, with the problems of the damaged ones.

    Args:
        folder: The cache.
        manifest: Its manifest; None if there is none yet.
        streams: Streams of the run.
        on_error: With "raise", a stream recorded with skipped images counts as missing.

    Raises:
        FingerprintError: It contains other data of the same name.
    """
    entries = {} if manifest is None else {entry.name: entry for entry in manifest.streams}
    held: list[Stream] = []
    lacking: list[Stream] = []
    problems = []
    for stream in streams:
        if manifest is None or stream.name not in entries:
            lacking.append(stream)
            continue
        try:
            stored_rows(folder, manifest, entry := _entry_of(folder, entries, stream))
            _check_skipped(folder, entry, on_error)
            held.append(stream)
        except DataError as error:
            problems.append(str(error))
            lacking.append(stream)
    return held, lacking, problems


def stored_rows(folder: Path, manifest: Manifest, entry: RecordedStream) -> StoredRows:
    """Open the rows of one stream of a cache.

    Raises:
        DataError: A part is missing or damaged, or images are missing.
    """
    content = " ".join((entry.content, entry.sample, manifest.dtype, manifest.precision, manifest.decoder))
    rows = StoredRows(
        folder / manifest.rows,
        entry.parts,
        checksums=entry.checksums,
        skipped=entry.skipped,
        content=content,
        whole_size=entry.whole,
    )
    if len(rows) + len(rows.skipped) != entry.images:
        raise DataError(f"{folder}: data set {entry.name!r} is incomplete in the cache; record this data set again")
    return rows


def check_network(folder: Path, recorded: Mapping[str, Any], fingerprint: str) -> None:
    """Reject outputs that were recorded with another network.

    Args:
        folder: The cache.
        recorded: Its `backbone` and `fingerprint`.
        fingerprint: Fingerprint of the network in use.

    Raises:
        FingerprintError: They differ; the message states in what.
    """
    if what := difference(fingerprint, recorded["fingerprint"]):
        raise FingerprintError(
            f"{folder}: this cache was recorded with {recorded['backbone']}, but {what} differs; {OTHERWISE}"
        )


def _probe_as_recorded(module: Backbone, input_shape: Sequence[int]) -> None:
    """Probe a network with the input shape of the recording, so that the fingerprints cover the same inputs."""
    if input_shape and not isinstance(module, RecordedModule):
        module.probe(pattern(torch.empty(2, *input_shape)).to(place_of(module.network)[1]))


def facts_of(stream: Stream) -> dict[str, str | int]:
    """Facts that must agree with the cache; not the split of a pool, since a cache contains all images of a pool."""
    return {fact: value for fact, value in identity(stream).items() if fact != "split"}


def _check_decoder(folder: Path, recorded: str, data: OODDataModule) -> None:
    """Reject outputs of images that the workers decoded in another way."""
    asked = workers_decoder(data.decode)
    if recorded.startswith("workers") and recorded != asked and not data.decode_on_device:
        raise FingerprintError(
            f"{folder}: this cache was recorded with decoder {recorded}, but the data module uses {asked}. Pass the"
            f" same decode=... to the data module as for the recording, {OTHERWISE}"
        )


def _entry_of(folder: Path, stored: Mapping[str, RecordedStream], stream: Stream) -> RecordedStream:
    if stream.name not in stored:
        raise FingerprintError(
            f"{folder}: data set {stream.name!r} is not in this cache, which contains {', '.join(stored)}; record it"
            " with FeatureCache, or with oodlit evaluate --cache"
        )
    entry = stored[stream.name]
    facts = facts_of(stream)
    if fact := other_fact(recorded := structs.asdict(entry), facts):
        _check_extent(folder, entry, stream)
        if fact == "sample" and entry.skipped:
            raise DataError(
                f"{folder}: data set {stream.name!r} was recorded without {len(entry.skipped)} unusable images, and the"
                " image files have changed since then; record this data set again"
            )
        what = _DIGESTS.get(fact) or f"{fact}: {recorded[fact]} in the cache, {facts[fact]} now"
        raise FingerprintError(f"{folder}: data set {stream.name!r} was recorded from other data ({what}); {OTHERWISE}")
    times = [part.stat().st_mtime for name, _ in entry.parts for part in folder.glob(f"*/{name}")]
    warn_of_changed_files([stream], min(times, default=math.inf), f"if images were replaced, delete the cache {folder}")
    return entry


def _check_extent(folder: Path, entry: RecordedStream, stream: Stream) -> None:
    """Reject another number of images of the same data, as after a trial run.

    Raises:
        DataError: More images than in the cache; a recording replaces the stream.
        FingerprintError: Fewer images: a trial run must not replace the stream.
    """
    source = stream.source.source if isinstance(stream.source, ThinnedSource) else stream.source
    as_recorded = thinned(replace(stream, source=source), entry.images)
    if len(as_recorded) == len(stream) or other_fact(structs.asdict(entry), facts_of(as_recorded)):
        return
    where = f"{folder}: data set {stream.name!r}"
    if len(stream) > entry.images:
        raise DataError(
            f"{where} was recorded with only {entry.images} of its {len(source)} images (max_images or --max_batches);"
            " record this data set again"
        )
    raise FingerprintError(
        f"{where} was recorded with {entry.images} images, but this run reads only {len(stream)} of them; omit"
        " max_images (on the command line: --max_batches), or choose another cache folder for this run"
    )


def _check_skipped(folder: Path, entry: RecordedStream, on_error: OnError) -> None:
    """Reject a stream recorded with skipped images if none may be skipped: they may have been repaired since."""
    if on_error == "raise" and entry.skipped:
        key, reason = entry.skipped[0]
        raise DataError(
            f"{folder}: data set {entry.name!r} was recorded without {len(entry.skipped)} of its {entry.images} images"
            f" (first: {key!r}, {reason}); record this data set again, or pass on_error='skip' to the data module"
        )


def _stream(entry: RecordedStream, source: StoredRows) -> Stream:
    return Stream(entry.name, Role(entry.role), source, tuple(entry.class_names), label_names=tuple(entry.label_names))
