"""OODDetection: fit, score and evaluate detectors within one `trainer.predict`."""

import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor

from oodlit.callbacks.collection import Rows, gather
from oodlit.callbacks.preparation import check_memory, check_packages, select_detectors, take_facts
from oodlit.callbacks.record import run_record
from oodlit.datamodules import OODDataModule
from oodlit.datamodules.stream import Stream
from oodlit.detectors import BackboneFacts, Detector, FitOrigin, load, save
from oodlit.detectors.distributed import Group, cpu_group, gather_objects
from oodlit.detectors.fitting import make_statistics, name_detectors
from oodlit.detectors.statistics import Statistics, TrainSample, synchronize
from oodlit.errors import InvalidArgumentError
from oodlit.module import OODModule
from oodlit.outputs import Outputs
from oodlit.results import DatasetInfo, Results
from oodlit.roles import Role

__all__ = ["OODDetection"]

SAMPLE_CHUNK = 1024
"""Rows of the training sample that are scored at a time."""


class OODDetection(pl.Callback):
    """Fit detectors on the train stream, score every other stream, evaluate at the end; one forward pass per image.

    Before the first batch a probe of two ID images goes through the backbone: it tells which detectors apply.
    Hooks used: setup, on_predict_start, on_predict_batch_end, on_predict_end, teardown, on_exception.
    Collectives: one exchange when the fit ends, one when the run ends.

    Args:
        detectors: Detectors, or a mapping of names to detectors.
        fitted: Folder with fitted detectors (written by an earlier run, or by `oodlit.detectors.save`), in place of
            `detectors`; their backbone must be this one.
        output_dir: Folder for results, per-image scores, fitted detectors and thumbnails. None keeps all in memory.
        strict: True stops the run if a detector does not apply; False (default) leaves it out and reports the reason.
        train_thresholds: True passes over the training images for the thresholds of the detection error rate even
            if no detector has to be fitted. By default they are taken whenever the pass is made anyway.
        tpr: Share of ID images to accept, 0 < tpr <= 1; default 0.95.
        rule: "attained" (default) or "interpolated"; how the threshold is taken (see `oodlit.metrics.fpr_at_tpr`).
        unit_test_limit: FPR above which a unit test has failed; default 0.10.
        num_thumbnails: Accepted OOD images kept per detector for the report; default 12.

    Attributes:
        results: The `Results` of the last run, on every process.

    Raises:
        InvalidArgumentError: No detector, two of one name, or neither `detectors` nor `fitted`.

    Example:
        >>> from oodlit.detectors import MSP, Mahalanobis
        >>> OODDetection([MSP(), Mahalanobis()])
        OODDetection(msp, mahalanobis)
    """

    def __init__(
        self,
        detectors: Sequence[Detector] | Mapping[str, Detector] | None = None,
        *,
        fitted: str | Path | None = None,
        output_dir: str | Path | None = None,
        strict: bool = False,
        train_thresholds: bool = False,
        tpr: float = 0.95,
        rule: str = "attained",
        unit_test_limit: float = 0.10,
        num_thumbnails: int = 12,
    ) -> None:
        """Name the detectors; nothing else happens before the run."""
        super().__init__()
        if (detectors is None) == (fitted is None):
            raise InvalidArgumentError("OODDetection: give either detectors=[...] or fitted=FOLDER of an earlier fit")
        self._origin: FitOrigin | None = None
        if fitted is not None:
            self.detectors, self._origin = load(fitted)
        else:
            assert detectors is not None  # checked above
            self.detectors = name_detectors(detectors)
        self.output_dir = None if output_dir is None else Path(output_dir)
        self.strict = strict
        self.train_thresholds = train_thresholds
        self.evaluation: dict[str, Any] = {"tpr": tpr, "rule": rule, "unit_test_limit": unit_test_limit}
        self.num_thumbnails = num_thumbnails
        self.results: Results | None = None
        self._run: _Run | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check everything that can be wrong, before the first batch."""
        if stage != "predict":
            return
        trainer, module, datamodule = check_packages(
            "OODDetection", trainer, pl_module, getattr(trainer, "datamodule", None)
        )
        if datamodule.transform is None:
            datamodule.transform = module.transform
        module.give, module.hidden_layers = frozenset(), ()
        facts = take_facts(module, datamodule)
        applicable = select_detectors(self.detectors, facts, strict=self.strict)
        for name, reason in applicable.not_applicable.items():
            warnings.warn(f"detector {name!r} is left out: it {reason}", stacklevel=2)
        if self._origin is not None:
            own = FitOrigin(module.fingerprint, facts.width, facts.num_classes)
            self._origin.check(own, source="the saved fit")
        self.results = None
        self._run = _Run(trainer, module, datamodule, facts, applicable.detectors, applicable.not_applicable)
        self._run.prepare(train_thresholds=self.train_thresholds)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move fitted detectors to the device of the model."""
        for detector in self._current().detectors.values():
            detector.to(pl_module.device)

    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Feed the statistics, or score."""
        self._current().take(outputs, batch, dataloader_idx)

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Join the processes, evaluate, report."""
        self._finish()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Finish on a process that had no batch at all: Lightning skips the hooks of its loop."""
        self._finish()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Drop the state of the broken run."""
        self._run = None

    def _current(self) -> "_Run":
        assert self._run is not None, "setup runs first"
        return self._run

    def _finish(self) -> None:
        if self._run is None:
            return
        run, self._run = self._run, None
        self.results = run.finish(self.evaluation)
        run.module.give, run.module.hidden_layers = frozenset(), ()
        if run.trainer.is_global_zero:
            if self.output_dir is not None:
                self._write(run, self.results, self.output_dir)
            values = self.results.metrics_by_name()
            for logger in run.trainer.loggers:
                logger.log_metrics(values, step=0)
                logger.save()

    def _write(self, run: "_Run", results: Results, folder: Path) -> None:
        from oodlit.report.thumbnails import save_thumbnails  # noqa: PLC0415  # drawing is only needed here

        results.save(folder)
        if run.fit_is_ours:
            save(run.detectors, folder / "fitted", run.origin)
        if self.num_thumbnails > 0:
            save_thumbnails(results, folder, run.datamodule.read_images, per_detector=self.num_thumbnails)

    def __repr__(self) -> str:
        """Names of the detectors."""
        return f"OODDetection({', '.join(self.detectors)})"


class _Run:
    """State of one `trainer.predict`; a new one for every call, so that nothing leaks into the next."""

    def __init__(
        self,
        trainer: pl.Trainer,
        module: OODModule,
        datamodule: OODDataModule,
        facts: BackboneFacts,
        detectors: dict[str, Detector],
        not_applicable: dict[str, str],
    ) -> None:
        self.trainer, self.module, self.datamodule = trainer, module, datamodule
        self.facts, self.detectors, self.not_applicable = facts, detectors, not_applicable
        self.statistics = Statistics()
        self.fitting_done = False
        self.fit_is_ours = False
        self.group: Group = None
        self.skipped: list[tuple[str, str]] = []
        self.float64: set[str] = set()
        self.sample_rows: Rows | None = None
        self.seconds: dict[str, float] = {}
        self.clock = time.perf_counter()
        self.streams: tuple[Stream, ...] = ()
        self.rows: dict[str, Rows] = {}

    def prepare(self, *, train_thresholds: bool) -> None:
        """Decide whether the train stream is needed, what the module must give, and how much memory it takes."""
        to_fit = [d for d in self.detectors.values() if not d.is_fitted]
        has_train = self.facts.num_train > 0
        self.datamodule.use_train = has_train and (train_thresholds or any(d.required_statistics for d in to_fit))
        needs = frozenset().union(*(d.required_needs for d in self.detectors.values()))
        self.module.give = needs & {"images", "hidden", "model"}
        layers = (layer for d in self.detectors.values() for layer in getattr(d, "layers", ()))
        self.module.hidden_layers = tuple(dict.fromkeys(layers))
        self.streams = self.datamodule.active_streams
        self.rows = {s.name: Rows(s.name, list(self.detectors)) for s in self.streams if s.role is not Role.TRAIN}
        if self.datamodule.use_train:
            self.statistics = make_statistics(to_fit, extra=(TrainSample,))
            needed = check_memory(self.statistics, self.facts)
            rank_zero_info(
                f"oodlit: statistics of {self.facts.num_train} training images take up to {needed / 1e6:.1f} MB"
                " per process"
            )

    @property
    def origin(self) -> FitOrigin:
        """What the fit belongs to."""
        return FitOrigin(self.module.fingerprint, self.facts.width, self.facts.num_classes, self.statistics.num_samples)

    def take(self, outputs: Outputs, batch: Any, index: int) -> None:
        """One batch of stream number `index`."""
        stream = self.streams[index]
        self.skipped += batch.get("skipped", [])
        if len(outputs) == 0:
            return
        if stream.role is Role.TRAIN:
            self.statistics.update(outputs)
            return
        self.finish_fit()
        self.rows[stream.name].add(outputs, [self._score(name, outputs) for name in self.detectors])

    def _score(self, name: str, outputs: Outputs) -> Tensor:
        scores = self.detectors[name].score(outputs)
        if scores.dtype == torch.float64:
            self.float64.add(name)
        return scores

    def finish_fit(self) -> None:
        """The first of the two points where processes meet: reduce the statistics and fit."""
        if self.fitting_done:
            return
        self.fitting_done = True
        self._lap("train")
        self.group = cpu_group()
        synchronize(self.statistics.values(), self.group)
        head = None if self.facts.head_problem else self.module.head
        for detector in self.detectors.values():
            if not detector.is_fitted:
                detector.fit(self.statistics, head)
                detector.to(self.module.device)
                self.fit_is_ours = True
        self._lap("fit")

    def finish(self, evaluation: dict[str, Any]) -> Results:
        """The second point where processes meet: join the rows and evaluate."""
        self.finish_fit()
        self._score_train_sample()
        self._lap("score")
        wide = gather_objects(self.group, self.float64)
        float32 = set(self.detectors).difference(*wide)
        tables = [gather(rows, self.group, float32=sorted(float32)) for rows in self._all_rows()]
        skipped = sorted({tuple(s) for part in gather_objects(self.group, self.skipped) for s in part})
        record = run_record(self.trainer, self.module, self.datamodule, facts=self.facts, detectors=self.detectors)
        results = Results.from_scores(
            pd.concat(tables, ignore_index=True),
            [DatasetInfo(s.name, s.role, s.class_names, len(s)) for s in self.streams],
            list(self.detectors),
            run=record
            | {
                "not_applicable": self.not_applicable,
                "skipped": [{"key": key, "reason": reason} for key, reason in skipped],
                "evaluation": evaluation,
                "seconds": self.seconds,
            },
            **evaluation,
        )
        self._lap("evaluate")
        results.run["seconds"] = dict(self.seconds)
        if skipped:
            warnings.warn(
                f"{len(skipped)} images were skipped, first {skipped[0][0]}: {skipped[0][1]};"
                " all are listed in results.run['skipped']",
                stacklevel=2,
            )
        return results

    def _all_rows(self) -> list[Rows]:
        return [*([] if self.sample_rows is None else [self.sample_rows]), *self.rows.values()]

    def _score_train_sample(self) -> None:
        """Score this process's share of the training sample: thresholds of the detection error rate."""
        if TrainSample not in self.statistics or self.statistics.num_samples == 0:
            return
        name = next(s.name for s in self.streams if s.role is Role.TRAIN)
        sample = self.statistics[TrainSample]
        # Detectors that read images cannot score kept outputs; their thresholds stay undefined.
        able = [n for n, d in self.detectors.items() if not d.required_needs & {"images", "hidden", "model"}]
        self.sample_rows = Rows(name, able)
        keys = [f"{name}/sample-{value:016x}" for value in sample.column("hash").tolist()]
        share = slice(self.trainer.global_rank, None, self.trainer.world_size)
        mine, mine_keys = sample.outputs.select(share), keys[share]
        for start in range(0, len(mine) if able else 0, SAMPLE_CHUNK):
            rows = slice(start, start + SAMPLE_CHUNK)
            part = mine.select(rows).to(self.module.device)
            scores = [self._score(n, part) for n in able]
            self.sample_rows.add(Outputs(part.logits, part.features, labels=part.labels, keys=mine_keys[rows]), scores)

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + now - self.clock, 3)
        self.clock = now
