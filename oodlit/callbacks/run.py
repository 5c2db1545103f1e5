"""The state of one `trainer.predict`: fit, score, join, evaluate."""

import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor

from oodlit.atomic import write_bytes
from oodlit.callbacks.checks import check_memory, check_train_size
from oodlit.callbacks.choice import Choice
from oodlit.callbacks.record import Record, joined, run_record
from oodlit.callbacks.rows import ImageRows, check_labels, gather
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.stream import Stream
from oodlit.detectors import FitOrigin
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.detectors.statistics import Statistics, TrainSample, synchronize
from oodlit.distributed import Group, cpu_group, gather_objects
from oodlit.errors import DataError, OodlitError
from oodlit.module import OODModule
from oodlit.outputs import Outputs
from oodlit.results import DatasetInfo, Results, Settings
from oodlit.results.storage import UNEVALUATED
from oodlit.roles import Role

__all__ = ["Run"]

SAMPLE_CHUNK = 1024
"""Rows of the training sample that are scored at a time."""


class Run:
    """State of one `trainer.predict`; a new one for every call, so that nothing leaks into the next."""

    def __init__(self, trainer: pl.Trainer, module: OODModule, datamodule: OODDataModule, choice: Choice) -> None:
        self.trainer, self.module, self.datamodule, self.choice = trainer, module, datamodule, choice
        self.facts, self.detectors, self.to_fit = choice.facts, choice.detectors, choice.to_fit
        self.statistics = Statistics()
        self.fitting_done = self.is_fitted = False
        self.group: Group = None
        self.skipped: list[tuple[str, str]] = []
        self.float64: set[str] = set()
        self.sample_rows: ImageRows | None = None
        self.seconds: dict[str, float] = {}
        self.clock = time.perf_counter()
        self.streams: tuple[Stream, ...] = ()
        self.rows: dict[str, ImageRows] = {}

    def prepare(self) -> None:
        """Make room for statistics and rows, once it is known which streams are read.

        Raises:
            RequirementError: There are too few training images, or too little memory.
        """
        self.streams = self.datamodule.active_streams
        names = list(self.detectors)
        self.rows = {s.name: ImageRows(s.name, names) for s in self.streams if s.role is not Role.TRAIN}
        if any(s.role is Role.TRAIN for s in self.streams):
            check_train_size(self.to_fit, self.facts.num_train)
            self.statistics = make_statistics(self.to_fit, extra=(TrainSample,))
            needed = check_memory(self.statistics, self.facts, processes=self.trainer.num_devices)
            rank_zero_info(
                f"oodlit: statistics of {self.facts.num_train} training images take up to {needed / 1e6:.1f} MB"
                " per process"
            )

    @property
    def num_images(self) -> int:
        """Images of all streams of this run."""
        return sum(len(stream) for stream in self.streams)

    @property
    def origin(self) -> FitOrigin:
        """What the fit belongs to."""
        return FitOrigin(self.choice.fingerprint, self.facts.width, self.facts.num_classes, self.statistics.num_samples)

    def origin_after(self, before: FitOrigin | None) -> FitOrigin | None:
        """What the detectors belong to when this run has ended, whole or not.

        Args:
            before: What they belonged to before it.
        """
        if self.is_fitted:
            for detector in self.to_fit:
                detector.fitted_on = self.choice.fingerprint
            return before if self.choice.kept else self.origin
        if not self.fitting_done:
            return before
        for detector in self.to_fit:  # broken within the fit: some are of this run, some of an earlier one
            detector._fitted = False
        return None

    @property
    def train_name(self) -> str:
        """Name of the training images in results: what is kept of them does not tell several streams apart."""
        return "+".join(s.name for s in self.streams if s.role is Role.TRAIN)

    def check(self, batch: Any, index: int) -> None:
        """Refuse images of another kind than those of the ID stream, before they reach the network.

        Raises:
            DataError: Number of axes or channels differs, or integers stand for floating-point values.
        """
        images, like = batch["image"], self.choice.images
        kinds = [(i.ndim, tuple(i.shape[1:-2]), i.is_floating_point()) for i in (images, like)]
        if len(images) and kinds[0] != kinds[1]:
            raise DataError(
                f"stream {self.streams[index].name!r}: the images from {batch['key'][0]!r} on have shape"
                f" {tuple(images.shape[1:])} and dtype {images.dtype}, those of the ID stream {tuple(like.shape[1:])}"
                f" and {like.dtype}; all streams must go through the same transform"
            )

    def take(self, outputs: Outputs, batch: Any, index: int) -> None:
        """One batch of stream number `index`."""
        stream = self.streams[index]
        self.skipped += batch.get("skipped", [])
        if len(outputs) == 0:
            return
        check_labels(outputs, stream)
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
        if self.statistics and self.statistics.num_samples == 0:
            self._refuse_without_training()
        head = None if self.facts.head_problem else self.module.head
        for detector in self.to_fit:
            detector.fit(self.statistics, head)
        self.is_fitted = True
        self._lap("fit")

    def _refuse_without_training(self) -> None:
        """A message with the reason, where detectors wait for training images and none came."""
        if not any(d.required_statistics for d in self.to_fit):
            return
        first = f", first {self.skipped[0][0]}: {self.skipped[0][1]}" if self.skipped else ""
        raise DataError(
            f"none of the {self.facts.num_train} training images of {self.train_name!r} could be used"
            f" ({len(self.skipped)} were skipped on this process{first}); detectors cannot be fitted"
        )

    def finish(self, evaluation: Settings, *, record: Record, rescue: Path | None) -> Results:
        """The second point where processes meet: join the rows and evaluate.

        Args:
            evaluation: Settings of the metrics.
            record: Gives further entries of the record.
            rescue: Where the scores go if they cannot be evaluated, so that the pass over the images is not lost.
        """
        self.finish_fit()
        self._score_train_sample()
        self._lap("score")
        scores, skipped = self._join()
        datasets = self._datasets()
        try:
            results = Results.from_scores(scores, datasets, list(self.detectors), **evaluation.to_json())
        except OodlitError as error:
            if rescue is None or not self.trainer.is_global_zero:
                raise
            file = rescue / UNEVALUATED
            write_bytes(file, scores.to_parquet(index=False))
            raise type(error)(f"{error} - the scores of this run are kept in {file}") from error
        self._lap("evaluate")
        if skipped:
            warnings.warn(
                f"{len(skipped)} images were skipped, first {skipped[0][0]}: {skipped[0][1]};"
                " all are listed in results.run['skipped']",
                stacklevel=2,
            )
        known = {
            **run_record(self.trainer, self.module, self.datamodule, self.choice),
            "not_applicable": self.choice.not_applicable,
            "fit_notes": {name: list(d.notes) for name, d in self.detectors.items() if d.notes},
            "skipped": [{"key": key, "reason": reason} for key, reason in skipped],
            "seconds": dict(self.seconds),
        }
        return replace(results, run=joined(known, record()) | results.run)

    def _join(self) -> tuple[pd.DataFrame, list[tuple[str, str]]]:
        """Scores and skipped images of all processes."""
        wide = gather_objects(self.group, self.float64)
        float32 = sorted(set(self.detectors).difference(*wide))
        tables = [gather(rows, self.group, float32=float32) for rows in self._all_rows()]
        skipped = {(key, reason) for part in gather_objects(self.group, self.skipped) for key, reason in part}
        return pd.concat(tables, ignore_index=True), sorted(skipped)

    def _datasets(self) -> list[DatasetInfo]:
        """All streams, training streams as one."""
        train = [s for s in self.streams if s.role is Role.TRAIN]
        joined = [DatasetInfo(self.train_name, Role.TRAIN, train[0].class_names, sum(map(len, train)))] if train else []
        others = (s for s in self.streams if s.role is not Role.TRAIN)
        return [*joined, *(DatasetInfo(s.name, s.role, s.class_names, len(s)) for s in others)]

    def _all_rows(self) -> list[ImageRows]:
        return [*([] if self.sample_rows is None else [self.sample_rows]), *self.rows.values()]

    def _score_train_sample(self) -> None:
        """Score this process's share of the training sample: thresholds of the detection error rate."""
        if TrainSample not in self.statistics or self.statistics.num_samples == 0:
            return
        name, sample = self.train_name, self.statistics[TrainSample]
        # Detectors that read images cannot score kept outputs; their thresholds stay undefined.
        able = [n for n, d in self.detectors.items() if not d.required_needs & {"images", "hidden", "model"}]
        self.sample_rows = ImageRows(name, able)
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
