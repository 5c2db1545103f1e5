"""A cache of features: recorded in one run, read by later ones in place of the backbone."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from oodlit import peers
from oodlit._lightning import pl
from oodlit._version import __version__
from oodlit.atomic import remove
from oodlit.callbacks.checks import check_packages
from oodlit.callbacks.verification import leave_as_it_was
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.identity import identity
from oodlit.datamodules.stream import Stream
from oodlit.distributed import cpu_group, gather_objects
from oodlit.errors import DataError, FingerprintError, InvalidArgumentError
from oodlit.fingerprint import difference
from oodlit.module import OODModule
from oodlit.outputs import Outputs
from oodlit.recorded.data import RecordedData
from oodlit.recorded.module import RecordedModule
from oodlit.recorded.rows import Rows
from oodlit.recorded.store import DTYPES, MANIFEST, PartWriter, StoredRows, read_manifest, write_manifest
from oodlit.roles import Role

ROWS = "rows-"
"""Begins the name of the folder of the parts."""


class FeatureCache(pl.Callback):
    """Keep features, logits, labels, groups and keys of every image that a prediction sees.

    The folder is a whole cache or none: until the end of the run the rows lie beside those of an earlier one, and the
    manifest, which is written last, decides. Every process writes its own share; memory is bounded.

    Args:
        folder: Where to; made if need be.
        dtype: "float32" (default: scores from the cache are those of the network), "float16" or "bfloat16", which take
            half the space; the largest difference is in the manifest, as `loss`.

    Raises:
        InvalidArgumentError: There is no such dtype, the run leaves out a stream, or a value is too large for float16.

    Example:
        >>> FeatureCache("cache", dtype="bfloat16")
        FeatureCache('cache', dtype='bfloat16')
    """

    def __init__(self, folder: str | Path, *, dtype: str = "float32") -> None:
        super().__init__()
        if dtype not in DTYPES:
            raise InvalidArgumentError(f"FeatureCache: dtype={dtype!r}; one of {', '.join(DTYPES)} is needed")
        self.folder, self.dtype = Path(folder).expanduser().absolute(), dtype
        self._rows: Path | None = None
        self._writers: dict[str, PartWriter] = {}
        self._streams: tuple[Stream, ...] = ()
        self._skipped: list[tuple[str, str]] = []
        self._fingerprint = ""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take the fingerprint before the strategy converts the weights, and make room."""
        if stage != "predict":
            return
        peers.watch()
        _, module, data = check_packages("FeatureCache", trainer, pl_module, getattr(trainer, "datamodule", None))
        if isinstance(module, RecordedModule):
            raise InvalidArgumentError("FeatureCache: the run reads recorded outputs; record with the network itself")
        self._fingerprint = module.fingerprint_with(_transform(module, data))
        name = gather_objects(cpu_group(), f"{ROWS}{uuid.uuid4().hex[:12]}")[0]
        self._rows = self.folder / name
        self._rows.mkdir(parents=True, exist_ok=True)
        self._writers, self._streams, self._skipped = {}, (), []

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """See that all streams are read: a cache without the training images would be of no use."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self._streams = data.active_streams
        if len(self._streams) < len(data.streams):
            raise InvalidArgumentError(
                "FeatureCache: no detector of this run needs the training images, so that they are not read; give"
                " OODDetection train_thresholds=True, or leave the training stream out of the data"
            )

    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the rows of a batch."""
        assert self._rows is not None, "setup runs first"
        assert isinstance(outputs, Outputs), "OODModule gives them"
        stream = self._streams[dataloader_idx]
        self._skipped += batch.get("skipped", [])
        if not len(outputs):
            return
        if stream.name not in self._writers:
            prefix = f"{dataloader_idx:04d}-{trainer.global_rank:04d}"
            self._writers[stream.name] = PartWriter(self._rows, prefix, DTYPES[self.dtype])
        self._writers[stream.name].add(_rows_of(outputs, stream))

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write what is waiting, and make the parts of all processes a cache."""
        self._finish(pl_module)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Finish on a process that had no batch at all: Lightning skips the hooks of its loop."""
        self._finish(pl_module)
        peers.forget()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Tell the other processes, and remove the rows of a run that broke off; those of an earlier one stay."""
        peers.tell(exception)
        leave_as_it_was(pl_module)
        rows, self._rows = self._rows, None
        if rows is not None:
            remove(rows)

    def _finish(self, module: Any) -> None:
        if self._rows is None:
            return
        for writer in self._writers.values():
            writer.flush()
        mine = {name: (writer.parts, writer.loss) for name, writer in self._writers.items()}
        gathered = gather_objects(cpu_group(), (mine, self._skipped))
        rows, self._rows = self._rows, None  # not earlier: they are removed where a process fails until then
        peers.unwatch()
        if not dist.is_initialized() or dist.get_rank() == 0:
            self._publish(module, rows, [parts for parts, _ in gathered], [s for _, part in gathered for s in part])
        self._writers = {}

    def _publish(self, module: OODModule, rows: Path, parts: list[dict[str, Any]], skipped: list[Any]) -> None:
        data: Any = module.trainer.datamodule  # type: ignore[attr-defined]
        streams = []
        for stream in self._streams:
            found = [process[stream.name] for process in parts if stream.name in process]
            streams.append(
                {
                    "name": stream.name,
                    "parts": [part for files, _ in found for part in files],
                    "skipped": sorted(s for s in skipped if str(s[0]).startswith(f"{stream.name}/")),
                    **identity(stream),
                    "class_names": stream.class_names,
                    "label_names": stream.label_names,
                }
            )
        losses = [loss for process in parts for _, loss in process.values()]
        manifest = {
            "oodlit": __version__,
            "backbone": module.name,
            "fingerprint": self._fingerprint,
            "head_problem": module.head_problem,
            "dtype": self.dtype,
            "loss": {n: max(loss.get(n, 0.0) for loss in losses) for n in ("features", "logits")} if losses else {},
            "class_names": data.class_names,
            "rows": rows.name,
            "streams": streams,
        }
        write_manifest(self.folder, manifest, None if module.head_problem else module.head)
        for old in self.folder.glob(f"{ROWS}*"):
            if old.name != rows.name:
                remove(old)

    def __repr__(self) -> str:
        """The cache as one would write it in code."""
        return f"FeatureCache({self.folder.name!r}, dtype={self.dtype!r})"


def has_cache(folder: str | Path) -> bool:
    """Whether a whole cache lies in a folder."""
    return (Path(folder).expanduser() / MANIFEST).is_file()


def open_cache(
    folder: str | Path, module: OODModule | None = None, data: OODDataModule | None = None
) -> tuple[RecordedModule, RecordedData]:
    """Module and data that give what a cache holds, for `trainer.predict` in place of the network and the images.

    No image is read, and none goes through the network; where a network is given, it is compared by its weights and by
    what it makes of two fixed pictures.

    Args:
        folder: What `FeatureCache` wrote.
        module: The network that the outputs must come from; None = whatever the cache says.
        data: The streams that must be in the cache, the others are left out; thumbnails come from it, too. None = all.

    Raises:
        DataError: There is no whole cache, or a file is damaged.
        FingerprintError: The cache belongs to other weights, another transform or other data; says what differs.
    """
    folder = Path(folder).expanduser().absolute()
    manifest, head = read_manifest(folder)
    stored: dict[str, Any] = {entry["name"]: entry for entry in manifest["streams"]}
    if module is not None:
        _check_network(folder, manifest, module, data)
    if data is not None:
        stored = {stream.name: _checked(folder, stored, stream) for stream in data.streams}
    elif pools := [name for name, entry in stored.items() if entry["role"] == Role.POOL]:
        raise InvalidArgumentError(
            f"{folder}: stream {pools[0]!r} is a pool, and its split belongs to the data; pass data=..."
        )
    parts = {name: StoredRows(folder / manifest["rows"], entry["parts"]) for name, entry in stored.items()}
    streams = (
        [_stream(entry, parts[name]) for name, entry in stored.items()]
        if data is None
        else [replace(stream, source=parts[stream.name]) for stream in data.streams]
    )
    if lost := [s.name for s in streams if len(s) + len(stored[s.name]["skipped"]) != stored[s.name]["images"]]:
        raise DataError(f"{folder}: not all images of stream {lost[0]!r} are in the cache; record anew")
    recorded = RecordedData(streams, pictures=data, class_names=manifest["class_names"] or None)
    recorder = RecordedModule(
        width=recorded.width,
        num_classes=recorded.num_classes,
        head=head,
        name=manifest["backbone"],
        fingerprint=manifest["fingerprint"],
        head_problem=manifest["head_problem"],
    )
    return recorder, recorded


def _check_network(folder: Path, manifest: Mapping[str, Any], module: OODModule, data: OODDataModule | None) -> None:
    transform = module.transform if data is None else _transform(module, data)
    if what := difference(module.fingerprint_with(transform), manifest["fingerprint"]):
        raise FingerprintError(
            f"{folder}: this cache was recorded with another network ({manifest['backbone']}): {what} differs; name"
            " another folder, or remove this one to record anew"
        )


def _checked(folder: Path, stored: Mapping[str, Any], stream: Stream) -> dict[str, Any]:
    if stream.name not in stored:
        raise FingerprintError(
            f"{folder}: stream {stream.name!r} is not in this cache, which holds {', '.join(stored)}; name another"
            " folder, or remove this one to record anew"
        )
    entry: dict[str, Any] = stored[stream.name]
    for fact, value in identity(stream).items():
        if fact == "split":  # all images of a pool are in the cache, whatever they are for
            continue
        if entry[fact] != value:
            raise FingerprintError(
                f"{folder}: stream {stream.name!r} was recorded from other data, its {fact} differ"
                f" ({entry[fact]} in the cache, {value} now); name another folder, or remove this one to record anew"
            )
    return entry


def _stream(entry: Mapping[str, Any], source: StoredRows) -> Stream:
    names, labels = tuple(entry["class_names"]), tuple(entry["label_names"])
    return Stream(entry["name"], Role(entry["role"]), source, names, label_names=labels)


def _rows_of(outputs: Outputs, stream: Stream) -> Rows:
    none = torch.full((len(outputs),), -1)
    keys = [key.removeprefix(f"{stream.name}/") for key in outputs.keys or ()]
    labels, groups = (none if value is None else value for value in (outputs.labels, outputs.groups))
    return Rows(outputs.logits, outputs.features, labels, groups, keys)


def _transform(module: OODModule, data: OODDataModule) -> Callable[..., Any] | None:
    """The transform of a run: that of the data, or the network's own."""
    return module.transform if data.transform is None else data.transform
