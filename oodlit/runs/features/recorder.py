"""The recorders of feature caches: together with another run, or in a run that only records."""

from collections.abc import Mapping
from typing import Any

import torch

from oodlit._lightning import pl
from oodlit.backbones.backbone import Backbone
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Head, Outputs
from oodlit.base.plan import RunPlan, plan_of
from oodlit.base.processes.distributed import Group, cpu_group, gather_objects
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.stream import Stream
from oodlit.recorded.rows import Rows
from oodlit.runs.choice import Probe
from oodlit.runs.complete import check_complete
from oodlit.runs.features.recording import Recording
from oodlit.runs.images.rows import check_labels
from oodlit.runs.recorder import Recorder
from oodlit.runs.run_checks import check_images, check_same_run
from oodlit.runs.time_record import time_record
from oodlit.runs.verification import Verification
from oodlit.scoring.clock import OTHER, Clock


class FeatureRecorder(Recorder):
    """Records the batches that the run of another callback reads; that run checks images and network.

    Args:
        module: The network.
        datamodule: The streams.
        recording: The cache as this process writes it.
        probe: What the first ID images tell of the network.
    """

    can_resume = False
    """Whether streams can be resumed midway."""
    prediction_bytes = 0

    def __init__(self, module: Backbone, datamodule: OODDataModule, recording: Recording, probe: Probe) -> None:
        self.module, self.datamodule, self.recording, self.probe = module, datamodule, recording, probe
        self.streams: tuple[Stream, ...] = ()
        check_same_run(cpu_group(), datamodule.streams)
        recording.begin(datamodule.streams, *self._facts(), cpu_group(), can_resume=self.can_resume)
        self.found = _text(recording, datamodule)
        pl.utilities.rank_zero_info(f"oodlit: {recording.folder}: {self.found}")

    def ready(self) -> None:
        """Check that every stream is read by this run or already cached, since an incomplete cache would be useless."""
        self.streams = self.datamodule.active_streams
        cached = self.recording.cached
        known = cached | {stream.name for stream in self.streams}
        if unread := [stream.name for stream in self.datamodule.streams if stream.name not in known]:
            raise InvalidArgumentError(
                f"FeatureCache: the cache would be incomplete, because data set {unread[0]!r} is neither cached nor"
                " read by this run. For the training set, pass OODDetection(train_thresholds=True). For a data set"
                " that an interrupted run has read, pass OODDetection(resume=False). Otherwise, remove the data set"
            )
        plan = plan_of(self.datamodule) or RunPlan()
        if begun := [s.name for s in self.streams if plan.done.get(s.name) and s.name not in cached]:
            raise InvalidArgumentError(
                f"FeatureCache: this run resumes in the middle of {begun[0]!r}, but the cache does not contain the"
                " first images of this data set; pass resume=False to OODDetection, or record without OODDetection"
            )

    def take(self, outputs: Outputs, batch: Any, index: int, *, is_last: bool) -> None:
        """Keep the rows of a batch."""
        stream = self.streams[index]
        if stream.name not in self.recording.cached:
            self.recording.take(stream, _rows_of(outputs, stream) if len(outputs) else None, batch.get("skipped", []))

    def finish(self) -> None:
        """Write the remaining rows, and add the recorded streams to the cache."""
        self._close({}, cpu_group())

    def _close(self, notes: Mapping[str, Any], group: Group) -> None:
        self.recording.finish(*self._facts(), notes, group)

    def _facts(self) -> tuple[dict[str, Any], Head | None]:
        """Facts about network and data for the manifest, and the head."""
        facts = {"head_problem": self.module.head_problem, "class_names": list(self.datamodule.class_names)}
        return {**facts, "input_shape": list(self.probe.images.shape[1:])}, self.module.head_or_none()

    def stop(self, error: BaseException) -> str:
        """Keep the recorded rows on disk; the run reports what is kept."""
        return ""


class FeaturePass(FeatureRecorder):
    """Records a cache without another callback; it checks data and network, and can resume in the middle of a stream.

    Args:
        module: The network.
        datamodule: The streams.
        recording: The cache as this process writes it.
        probe: What the first ID images tell of the network.
        trainer: Of the pass.
        clock: Measures where the time goes.
    """

    can_resume = True

    def __init__(
        self,
        module: Backbone,
        datamodule: OODDataModule,
        recording: Recording,
        probe: Probe,
        trainer: pl.Trainer,
        clock: Clock,
    ) -> None:
        self.clock, self.processes = clock, trainer.world_size
        self.verification = Verification(module, str(trainer.precision), decode_on_device=datamodule.decode_on_device)
        super().__init__(module, datamodule, recording, probe)
        done = {name: part.batches for name, part in recording.own_parts.items()}
        self.plan = RunPlan(self.probe.transform, finished=recording.cached, done=done, asked=clock.wait_for_data)

    @property
    def prediction_bytes(self) -> int:  # type: ignore[override]
        """Memory for logits and features of all images of this process."""
        images = sum(len(stream) for stream in self.datamodule.streams)
        return -(-images // self.processes) * 4 * (self.probe.facts.width + self.probe.facts.num_classes)

    def begin(self) -> None:
        """Determine the streams that remain to be read."""
        self.streams = self.datamodule.active_streams

    def ready(self) -> None:
        """Do nothing: this run reads all streams that the cache is missing."""

    def check(self, batch: Any, index: int) -> None:
        """Refuse images that differ in kind from the ID stream."""
        check_images(batch, self.probe.images, self.streams[index].name)
        self.clock.enter("backbone", images=len(batch["image"]))

    def take(self, outputs: Outputs, batch: Any, index: int, *, is_last: bool) -> None:
        """Check the outputs of a batch, and keep them."""
        self.clock.enter(OTHER)
        self.clock.read(batch.get("seconds", {}))
        if len(outputs):
            self.verification.check_logits(outputs, batch)
            check_labels(outputs, self.streams[index])
        super().take(outputs, batch, index, is_last=is_last)

    def finish(self) -> None:
        """Check that every image was read, and add the recorded streams to the cache."""
        group = cpu_group()
        for stream in self.streams:
            check_complete(stream, group)
        times = time_record(gather_objects(group, self.clock.state(wait=True)))
        self.verification.join(group)
        record = self.verification.record
        self._close({"time": times, **({"acceleration": record} if self.verification.options else {})}, group)

    def stop(self, error: BaseException) -> str:
        """Write the remaining rows if the user interrupts the run; after an error, only rows on disk are kept."""
        kept = "" if isinstance(error, Exception) else self.recording.end()
        return kept and f"{kept}, and the next recording resumes after them"


def _text(recording: Recording, data: OODDataModule) -> str:
    """Describe the streams in the cache, and those to be recorded."""
    names = [stream.name for stream in data.streams if stream.name in recording.cached]
    parts = [f"in the cache: {', '.join(names)}"] if names else []
    missing = [stream for stream in data.streams if stream.name not in recording.cached]
    sizes = {stream.name: f"{len(stream)} images" for stream in missing}
    sizes |= {name: f"{sizes[name]}, resuming after {images}" for name, images in recording.before.items()}
    parts += ["to record: " + ", ".join(f"{name} ({text})" for name, text in sizes.items())] if sizes else []
    parts += [f"recorded again: {problem}" for problem in recording.damaged]
    return "; ".join(parts + recording.repeated)


def _rows_of(outputs: Outputs, stream: Stream) -> Rows:
    none = torch.full((len(outputs),), -1)
    keys = [key.removeprefix(f"{stream.name}/") for key in outputs.keys or ()]
    labels, groups = (none if value is None else value for value in (outputs.labels, outputs.groups))
    return Rows(outputs.logits, outputs.features, labels, groups, keys)
