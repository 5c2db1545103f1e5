"""A cache of features: what a network makes of every image, recorded once, read by later runs in its place."""

from pathlib import Path
from typing import Any

import torch

from oodlit._lightning import pl
from oodlit.base import peers
from oodlit.base.distributed import Group, cpu_group, gather_objects
from oodlit.base.plan import RunPlan, plan_of
from oodlit.base.termination import end_on_sigterm, is_default, say_where
from oodlit.callbacks.detection import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.stream import Stream
from oodlit.errors import InvalidArgumentError
from oodlit.module import OODModule
from oodlit.outputs import Outputs
from oodlit.recorded.module import RecordedModule
from oodlit.recorded.rows import Rows
from oodlit.recorded.store import DTYPES
from oodlit.runs.checks import (
    check_images,
    check_outputs,
    check_packages,
    check_strategy,
    warn_of_many_predictions,
)
from oodlit.runs.choice import Probe, probe
from oodlit.runs.complete import check_complete
from oodlit.runs.features.recording import Recording
from oodlit.runs.folder import check_writable, hold
from oodlit.runs.images.rows import check_labels
from oodlit.runs.verification import Verification, leave_as_it_was
from oodlit.scoring.clock import Clock
from oodlit.scoring.span import OTHER
from oodlit.scoring.time_record import time_record


class FeatureCache(pl.Callback):
    """Keep features, logits, labels, groups and keys of every image that a prediction sees.

    As the only callback of its kind it makes a pass of its own: streams that the cache holds are not read, a stream of
    which it holds a part goes on from there, and what it lacks is added. Beside `OODDetection` it records what that run
    reads. Every process writes its own share; memory is bounded, and what is on disk survives whatever happens later.

    Args:
        folder: Where to; made if need be.
        dtype: "float32" (default: scores from the cache are those of the network), "float16" or "bfloat16", which take
            half the space; the largest difference is in the manifest, as `loss`.
        keep_every_s: Longest time until a batch is on disk, in seconds; default 60. 0 = every batch is a file.

    Attributes:
        plan: What a pass of its own asks of module and data module; None outside of one.
        found: What the folder holds of the run's streams and what is to be recorded, in words; known from `setup` on.

    Raises:
        InvalidArgumentError: There is no such dtype, the run leaves out a stream or a part of one, another run writes
            into the folder, or a value is too large for float16.
        FingerprintError: The folder holds what was recorded of another network, with another dtype, precision or
            decoder, or from other data; says what differs.
        DataError: Images are missing at the end, or came twice.

    Example:
        >>> FeatureCache("cache", dtype="bfloat16")
        FeatureCache('cache', dtype='bfloat16')
    """

    def __init__(self, folder: str | Path, *, dtype: str = "float32", keep_every_s: float = 60.0) -> None:
        super().__init__()
        if dtype not in DTYPES:
            raise InvalidArgumentError(f"FeatureCache: dtype={dtype!r}; one of {', '.join(DTYPES)} is needed")
        self.folder, self.dtype, self.keep_every_s = Path(folder).expanduser().absolute(), dtype, keep_every_s
        self.plan: RunPlan | None = None
        self.found = ""
        self._pass: _Pass | None = None
        self._recording: Recording | None = None
        self._streams: tuple[Stream, ...] = ()
        self._held: Any = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check everything that can be wrong, before the first batch, and find what is recorded already."""
        if stage != "predict":
            return
        peers.watch()
        trainer, module, data = check_packages("FeatureCache", trainer, pl_module, getattr(trainer, "datamodule", None))
        if isinstance(module, RecordedModule):
            raise InvalidArgumentError("FeatureCache: the run reads recorded outputs; record with the network itself")
        if trainer.limit_predict_batches != 1.0:
            raise InvalidArgumentError(
                f"FeatureCache: limit_predict_batches={trainer.limit_predict_batches}; a cache is of whole streams -"
                " for a trial, give the data max_images"
            )
        others: list[Any] = [callback for callback in trainer.callbacks if callback is not self]  # type: ignore[attr-defined]
        is_beside = any(isinstance(other, OODDetection) for other in others)
        if not is_beside:
            if any(isinstance(other, FeatureCache) for other in others):
                raise InvalidArgumentError(
                    "FeatureCache: a pass of its own records into one cache; the Trainer has two"
                )
            check_strategy(trainer.strategy, has_output=True)
            self._pass = _Pass(trainer, module, data)
        how = {
            "backbone": module.name,
            "fingerprint": module.fingerprint_with(data.transform_for(module)),
            "dtype": self.dtype,
            "precision": str(trainer.precision),
            "decoder": trainer.strategy.root_device.type if data.decode_on_device else "workers",
        }
        cut = {"processes": trainer.world_size, "num_workers": data.num_workers, "batch_size": data.batch_size}
        if trainer.is_global_zero:
            check_writable(self.folder, what="cache")
            self._held = hold(self.folder, what="cache", name=".recording")
        self._recording = recording = Recording(
            self.folder,
            how=how,
            cut=cut,
            process=trainer.global_rank,
            every_s=self.keep_every_s,
            on_error=data.on_error,
        )
        facts, head = _facts(module, data) if not is_beside else ({"class_names": list(data.class_names)}, None)
        recording.begin(data.streams, facts, head, cpu_group(), goes_on=not is_beside)
        self.found = _text(recording, data)
        pl.utilities.rank_zero_info(f"oodlit: {self.folder}: {self.found}")
        if self._pass is not None:
            self.plan = self._pass.plan(recording)
            self._streams = data.active_streams

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """See that all streams are read, or held: a cache without the training images would be of no use."""
        if self._pass is not None:
            self._pass.start()
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        assert self._recording is not None, "setup runs first"
        self._streams = data.active_streams
        known = self._recording.held | {stream.name for stream in self._streams}
        if unread := [stream.name for stream in data.streams if stream.name not in known]:
            raise InvalidArgumentError(
                f"FeatureCache: this run does not read {unread[0]!r}, and the cache does not hold it; give OODDetection"
                " train_thresholds=True where it is the training images, or resume=False where an earlier start has"
                " read it; or leave the stream out of the data, or record without OODDetection"
            )
        plan = plan_of(data) or RunPlan()
        begun = [s.name for s in self._streams if plan.done.get(s.name) and s.name not in self._recording.held]
        if begun:
            raise InvalidArgumentError(
                f"FeatureCache: this run goes on in the middle of {begun[0]!r}, of which the cache lacks the beginning;"
                " record without OODDetection, or give it resume=False"
            )

    def on_predict_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """See that the images are of the kind that the probe was made with, and that no other process failed."""
        if self._pass is not None:
            peers.check()
            self._pass.check(batch, self._streams[dataloader_idx])

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
        assert self._recording is not None, "setup runs first"
        outputs = check_outputs("FeatureCache", pl_module, outputs)
        stream = self._streams[dataloader_idx]
        if self._pass is not None:
            self._pass.verify(outputs, batch, stream)
        if stream.name not in self._recording.held:
            rows = _rows_of(outputs, stream) if len(outputs) else None
            self._recording.take(stream, rows, batch.get("skipped", []))

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write what is waiting, and make the parts of all processes whole streams of the cache."""
        self._finish(trainer, pl_module)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Finish on a process that had no batch at all: Lightning skips the hooks of its loop."""
        self._finish(trainer, pl_module)
        peers.forget()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Tell the other processes; what is on disk stays, and the next run goes on from there."""
        peers.tell(exception)
        leave_as_it_was(pl_module)
        recording, self._recording = self._recording, None
        is_alone, self._pass, self.plan = self._pass is not None, None, None
        if recording is not None and is_alone and not isinstance(exception, Exception) and (kept := recording.end()):
            say_where(exception, f"{kept}, and the next recording goes on from there")
        self._release()

    def _finish(self, trainer: Any, module: Any) -> None:
        if self._recording is None:
            return
        group = cpu_group()
        if self._pass is not None:  # else OODDetection proves it
            for stream in self._streams:
                check_complete(stream, group)
        notes = {} if self._pass is None else self._pass.notes(group)
        self._recording.finish(*_facts(module, trainer.datamodule), notes, group)
        self._recording = self._pass = self.plan = None  # not earlier: it is told why a process fails until then
        peers.unwatch()
        self._release()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def __repr__(self) -> str:
        """Name of the folder."""
        return f"FeatureCache({self.folder.name!r}, dtype={self.dtype!r})"


class _Pass:
    """What a pass without `OODDetection` looks at in its place: data, network, and faster ways through it.

    Args:
        trainer: Of the pass.
        module: The network.
        data: The streams.
    """

    def __init__(self, trainer: pl.Trainer, module: OODModule, data: OODDataModule) -> None:
        self.clock = Clock(trainer.strategy.root_device)
        self.probe: Probe = probe(trainer, module, data)
        self.verification = Verification(module, str(trainer.precision), decode_on_device=data.decode_on_device)
        self._ends_on_sigterm = is_default()
        if trainer.predict_loop.return_predictions:
            images = sum(len(stream) for stream in data.streams)
            warn_of_many_predictions(images, self.probe.facts, processes=trainer.world_size)

    def plan(self, recording: Recording) -> RunPlan:
        """All streams that are not held, each from where it was."""
        done = {name: share.batches for name, share in recording.shares.items()}
        asked = self.clock.wait_for_data
        return RunPlan(self.probe.transform, finished=recording.held, done=done, asked=asked)

    def start(self) -> None:
        """From here on Lightning would take a signal to end, and let the pass go on."""
        if self._ends_on_sigterm:
            end_on_sigterm()

    def check(self, batch: Any, stream: Stream) -> None:
        """Look at a batch before the network does."""
        check_images(batch, self.probe.images, stream.name)
        self.clock.enter("backbone", images=len(batch["image"]))

    def verify(self, outputs: Outputs, batch: Any, stream: Stream) -> None:
        """Look at what the network made of it."""
        self.clock.enter(OTHER)
        self.clock.read(batch.get("seconds", {}))
        if len(outputs):
            self.verification.check_logits(outputs, batch)
            check_labels(outputs, stream)

    def notes(self, group: Group) -> dict[str, Any]:
        """Where the time went, and how far a faster way is from the plain network."""
        times = time_record(gather_objects(group, self.clock.state(wait=True)))
        self.verification.join(group)
        record = self.verification.record
        return {"time": times, **({"acceleration": record} if self.verification.options else {})}


def _facts(module: OODModule, data: OODDataModule) -> tuple[dict[str, Any], Any]:
    """What a new manifest says of network and data, and the head."""
    facts = {"head_problem": module.head_problem, "class_names": list(data.class_names)}
    return facts, None if module.head_problem else module.head


def _text(recording: Recording, data: OODDataModule) -> str:
    """What lies in the folder, in words."""
    names = [stream.name for stream in data.streams if stream.name in recording.held]
    parts = [f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} there"] if names else []
    lacking = [stream for stream in data.streams if stream.name not in recording.held]
    sizes = {stream.name: f"{len(stream)} images" for stream in lacking}
    sizes |= {name: f"{sizes[name]}, going on behind {images}" for name, images in recording.before.items()}
    parts += ["to record: " + ", ".join(f"{name} ({text})" for name, text in sizes.items())] if sizes else []
    parts += [f"recorded anew: {problem}" for problem in recording.damaged]
    return "; ".join(parts + recording.anew)


def _rows_of(outputs: Outputs, stream: Stream) -> Rows:
    none = torch.full((len(outputs),), -1)
    keys = [key.removeprefix(f"{stream.name}/") for key in outputs.keys or ()]
    labels, groups = (none if value is None else value for value in (outputs.labels, outputs.groups))
    return Rows(outputs.logits, outputs.features, labels, groups, keys)
