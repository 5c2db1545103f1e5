"""A cache of features as module and data of a run, in place of the network and the images."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from oodlit.backbones.backbone import Backbone
from oodlit.base.fingerprint import difference
from oodlit.datamodules.batches import OnError
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.identity import identity
from oodlit.datamodules.stream import Stream
from oodlit.errors import DataError, FingerprintError, InvalidArgumentError
from oodlit.recorded.data import RecordedData
from oodlit.recorded.manifest import Manifest, RecordedStream
from oodlit.recorded.module import RecordedModule
from oodlit.recorded.store import MANIFEST, StoredRows, read_manifest
from oodlit.roles import Role

OTHERWISE = "name another folder, or remove this one to record anew"
NO_IMAGES = "; recorded features hold neither images nor the network, run it without the cache"


def has_cache(folder: str | Path) -> bool:
    """Whether a cache lies in a folder."""
    return (Path(folder).expanduser() / MANIFEST).is_file()


def open_cache(
    folder: str | Path, module: Backbone | None = None, data: OODDataModule | None = None
) -> tuple[RecordedModule, RecordedData]:
    """Module and data that give what a cache holds, for `trainer.predict` in place of the network and the images.

    No image is read, and none goes through the network; where a network is given, it is compared by its weights and by
    what it makes of two fixed pictures.

    Args:
        folder: What `FeatureCache` wrote.
        module: The network that the outputs must come from; None = whatever the cache says.
        data: The streams that must be in the cache, the others are left out; thumbnails come from it, too. None = all.

    Raises:
        DataError: There is no cache, a file is damaged, or images were skipped and `data` does not skip any.
        FingerprintError: The cache belongs to other weights, another transform or other data; says what differs.
    """
    folder = Path(folder).expanduser().absolute()
    manifest, head = read_manifest(folder)
    stored = {entry.name: entry for entry in manifest.streams}
    if module is not None:
        transform = module.transform if data is None else data.transform_for(module)
        check_network(folder, manifest.how, module.fingerprint_with(transform))
    if data is not None:
        stored = {stream.name: _entry_of(folder, stored, stream) for stream in data.streams}
        for entry in stored.values():
            _check_skipped(folder, entry, data.on_error)
    elif pools := [name for name, entry in stored.items() if entry.role == Role.POOL]:
        raise InvalidArgumentError(
            f"{folder}: stream {pools[0]!r} is a pool, and its split belongs to the data; pass data=..."
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
    )
    recorder = RecordedModule(
        width=recorded.width,
        num_classes=recorded.num_classes,
        head=head,
        name=manifest.backbone,
        fingerprint=manifest.fingerprint,
        head_problem=manifest.head_problem,
        hint=NO_IMAGES,
    )
    return recorder, recorded


def how_recorded(folder: str | Path) -> dict[str, Any]:
    """How a cache was recorded, for the record of a run: dtype, precision, decoder, and the passes."""
    entries: dict[str, Any] = msgspec.to_builtins(read_manifest(Path(folder).expanduser())[0])
    return {name: entries[name] for name in ("dtype", "precision", "decoder", "loss", "recordings") if name in entries}


def split_by_cache(
    folder: Path, manifest: Manifest | None, streams: Sequence[Stream], on_error: OnError
) -> tuple[list[Stream], list[Stream], list[str]]:
    """Which streams a cache holds, which it lacks, and what is wrong with those of the latter that it names.

    Args:
        folder: The cache.
        manifest: What it says; None = there is none yet.
        streams: Those of the run.
        on_error: "raise": a stream of which images were skipped is none that it holds.

    Raises:
        FingerprintError: It holds other data of the same name.
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
    """The rows of one stream of a cache.

    Raises:
        DataError: A part is missing or damaged, or images are missing.
    """
    content = f"{entry.content} {manifest.dtype}"
    rows = StoredRows(
        folder / manifest.rows,
        entry.parts,
        skipped=entry.skipped,
        content=content,
        whole_size=entry.whole,
    )
    if len(rows) + len(rows.skipped) != entry.images:
        raise DataError(f"{folder}: not all images of stream {entry.name!r} are in the cache; record anew")
    return rows


def check_network(folder: Path, recorded: Mapping[str, Any], fingerprint: str) -> None:
    """Refuse what was recorded with another network.

    Args:
        folder: The cache.
        recorded: Its `backbone` and `fingerprint`.
        fingerprint: Of the network in use.

    Raises:
        FingerprintError: They differ; says in what.
    """
    if what := difference(fingerprint, recorded["fingerprint"]):
        raise FingerprintError(
            f"{folder}: this cache was recorded otherwise, with {recorded['backbone']}: {what} differs; {OTHERWISE}"
        )


def other_fact(entry: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """In which fact of its identity a recorded stream differs from another one; empty if in none."""
    # All images of a pool are in the cache, whatever they are for.
    return next((fact for fact, value in facts.items() if fact != "split" and entry[fact] != value), "")


def _entry_of(folder: Path, stored: Mapping[str, RecordedStream], stream: Stream) -> RecordedStream:
    if stream.name not in stored:
        raise FingerprintError(
            f"{folder}: stream {stream.name!r} is not in this cache, which holds {', '.join(stored)}; record it there"
            " with FeatureCache, or by oodlit evaluate --cache"
        )
    entry = stored[stream.name]
    facts = identity(stream)
    if fact := other_fact(recorded := structs.asdict(entry), facts):
        raise FingerprintError(
            f"{folder}: stream {stream.name!r} was recorded from other data, its {fact} differ"
            f" ({recorded[fact]} in the cache, {facts[fact]} now); {OTHERWISE}"
        )
    return entry


def _check_skipped(folder: Path, entry: RecordedStream, on_error: OnError) -> None:
    """Refuse a stream of which images were skipped where none may be: they may have been mended meanwhile."""
    if on_error == "raise" and entry.skipped:
        key, reason = entry.skipped[0]
        raise DataError(
            f"{folder}: stream {entry.name!r} was recorded without {len(entry.skipped)} of its {entry.images}"
            f" images, first {key!r} ({reason}), and on_error='raise' skips none"
        )


def _stream(entry: RecordedStream, source: StoredRows) -> Stream:
    names, labels = tuple(entry.class_names), tuple(entry.label_names)
    return Stream(entry.name, Role(entry.role), source, names, label_names=labels)
