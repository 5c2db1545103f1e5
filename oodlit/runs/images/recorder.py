"""The recorder of image runs: a row is an image."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from msgspec import structs
from torch import Tensor

from oodlit._lightning import pl
from oodlit.base.errors import DataError
from oodlit.base.outputs import Outputs
from oodlit.base.processes.distributed import Group, gather_objects
from oodlit.base.roles import Role
from oodlit.datamodules.sets import descriptions
from oodlit.datamodules.stream import Stream
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.detectors.statistics import Statistics, TrainSample
from oodlit.detectors.statistics.feature_bank import Copies
from oodlit.results import DatasetInfo, Finding, Results, Settings
from oodlit.results.files import storage
from oodlit.results.files.class_sums import estimates
from oodlit.results.files.image_features import write_features
from oodlit.results.info import check_aggregates
from oodlit.results.run_record import ImageRunRecord
from oodlit.results.views.sampled_images import accepted_by_most, sampled_images
from oodlit.runs.datasets import dataset_infos
from oodlit.runs.images.duplicates import Digests
from oodlit.runs.images.nearest_training import TrainingKeys, features_of, image_features
from oodlit.runs.images.pool_rows import PoolRows
from oodlit.runs.images.rows import ImageRows, check_labels, gather
from oodlit.runs.loggers import RunLog, figures_of
from oodlit.runs.record import run_record
from oodlit.runs.run_checks import check_images, check_memory, place_bank
from oodlit.runs.scored import ScoredRun
from oodlit.runs.start import Start
from oodlit.scoring.clock import OTHER
from oodlit.scoring.scoring import Scoring

SAMPLE_CHUNK = 1024
"""Rows of the training sample to score at a time."""


def join_scores(rows: Iterable[ImageRows], scoring: Scoring, group: Group) -> pd.DataFrame:
    """Join the scores of all processes."""
    active = scoring.active
    float32 = set(active).difference(*gather_objects(group, scoring.float64))
    return pd.concat([gather(part, group, detectors=active, float32=float32) for part in rows], ignore_index=True)


def join_estimates(
    pools: Sequence[PoolRows],
    datasets: Iterable[DatasetInfo],
    detectors: Sequence[str],
    confidences: Mapping[str, str],
    group: Group,
) -> pd.DataFrame | None:
    """Compute the severities of the classes of all pools from the sums of all processes; None without a pool."""
    infos, found = {info.name: info for info in datasets}, []
    for rows in pools:
        rows.check_once(group)
        parts = gather_objects(group, rows.sums.frame(detectors=detectors))
        found.append(estimates(parts, infos[rows.dataset], detectors, confidences))
    return pd.concat(found, ignore_index=True) if found else None


def unlisted(pools: Sequence[PoolRows], group: Group) -> list[Finding]:
    """Findings about pools whose images differ from the images listed in the split."""
    findings = []
    for rows in pools:
        parts = gather_objects(group, (rows.num_unused, rows.first_unused, rows.num_used))
        unused = sum(number for number, _, _ in parts)
        first = min((key for _, key, _ in parts if key), default="")
        lacking = getattr(rows.stream.split, "num_listed", 0) - sum(used for _, _, used in parts)
        texts = {
            f"the split of {rows.dataset!r} leaves {unused} images unused (first: {first!r})": unused,
            f"the split of {rows.dataset!r} lists {lacking} images that were not found": lacking,
        }
        findings += [Finding("split", text) for text, number in texts.items() if number > 0]
    return findings


def masked_accuracy(rows: Mapping[str, ImageRows], scores: pd.DataFrame, group: Group) -> dict[str, tuple[int, int]]:
    """Numbers of correct predictions and of labeled images, for sets that contain only some of the ID classes."""
    masked = {name: part.masked_correct for name, part in rows.items() if part.subset is not None}
    labelled = scores[scores["label"] >= 0]
    parts = gather_objects(group, masked)
    return {n: (sum(part[n] for part in parts), int((labelled["dataset"] == n).sum())) for n in masked}


class ImageOptions(NamedTuple):
    """Arguments of `OODDetection` that only image runs have.

    Args:
        evaluation: Settings of the metrics.
        train_thresholds: Whether training images are read even if no detector is fitted.
        log_figures: Figures that loggers get.
        bank: Where copies of the bank of training images are kept.
        explain: Number of accepted OOD images per set whose nearest training images are kept; 0 = keep no features.
    """

    evaluation: Settings
    train_thresholds: bool
    log_figures: bool | Sequence[str]
    bank: Copies
    explain: int


class ImageRecorder(ScoredRun):
    """State of one `trainer.predict` over images; every call creates a new recorder.

    Args:
        start: What is known of the run.
        images: Arguments that are about images.
    """

    def __init__(self, start: Start, images: ImageOptions) -> None:
        self.is_recorded = "model" not in start.choice.facts.available
        than = "reading recorded features" if self.is_recorded else "the backbone"
        super().__init__(start, train_thresholds=images.train_thresholds, than=than)
        self.images = images
        self.one_shape = True
        """Whether all images of this process had the shape of the probe's images after the transform."""
        self.digests = Digests()
        self.training_keys = TrainingKeys()

    def make_rows(self) -> dict[str, ImageRows]:
        """Empty rows by data set; all training images together are one set.

        Raises:
            InvalidArgumentError: A pool has fewer classes than the network, or a mean over data sets is not possible.
        """
        rows: dict[str, ImageRows] = {}
        check_aggregates(self.images.evaluation, self.datasets())
        for info in self.datasets():
            able = list(self.detectors) if info.role is not Role.TRAIN else self._able_to_score_samples()
            if info.role is Role.POOL:
                stream = next(s for s in self.streams if s.name == info.name)
                of_scores = {name: detector.confidences for name, detector in self.detectors.items()}
                rows[info.name] = PoolRows(info.name, able, stream=stream, confidences=of_scores)
            else:
                rows[info.name] = ImageRows(info.name, able, self._subset(info))
        return rows

    def make_statistics(self) -> Statistics:
        """Empty statistics for the fit.

        Raises:
            RequirementError: There is too little memory.
        """
        facts, to_fit = self.choice.facts, self.choice.to_fit
        statistics = make_statistics(to_fit, extra=(TrainSample,))
        self.bank = place_bank(statistics, facts, self.trainer, self.images.bank)
        needed = check_memory(statistics, facts, to_fit, processes=self.trainer.num_devices)
        pl.utilities.rank_zero_info(
            f"oodlit: the fit on {facts.num_train} training images takes up to {needed / 1e6:.1f} MB of memory"
            f" per process{'; ' * bool(self.bank)}{self.bank}"
        )
        return statistics

    def datasets(self) -> list[DatasetInfo]:
        """All streams, training streams as one."""
        return dataset_infos(self.streams, self.choice.facts.num_classes)

    def more_state(self) -> dict[str, Any]:
        """Whether all images have the same shape, and the digests of the images."""
        return {"one_shape": self.one_shape, "digests": self.digests.state()}

    def restore_more(self, state: dict[str, Any]) -> None:
        """Restore the values of `more_state`."""
        self.one_shape &= state.get("one_shape", False)
        self.digests.restore(state.get("digests", {}))

    def check(self, batch: Any, index: int) -> None:
        """Refuse images that differ in kind from the ID stream, and note images of another shape."""
        images, like = batch["image"], self.choice.images
        check_images(batch, like, self.reading[index].name)
        self.one_shape &= not len(images) or images.shape[1:] == like.shape[1:]
        self.digests.add(self.reading[index], images)
        super().check(batch, index)

    def take_training(self, outputs: Outputs, stream: Stream) -> None:
        """Feed one batch of training images to the statistics."""
        if len(outputs):
            check_labels(outputs, stream)
            self.clock.enter("statistics")
            self.statistics.update(outputs)
            if self.images.explain:
                self.training_keys.add(outputs.keys)
            self.clock.enter(OTHER)

    def take_test(self, outputs: Outputs, batch: Any, stream: Stream) -> None:
        """Score one batch."""
        if not len(outputs):
            return
        self.finish_fit()
        scores = self.scoring.score(outputs, stream.name)
        self.verification.check_scores(outputs, scores, batch, self.detectors)
        check_labels(outputs, stream)  # not earlier: it waits for the device
        self.add(stream.name, outputs, scores, outputs)

    def close_streams(self, over: Sequence[Stream]) -> None:
        """Save the rows of finished streams of this process, so that they can be read if the run fails."""
        if self.output is not None and self.fitting_done:
            for name in dict.fromkeys(self.train_name if s.role is Role.TRAIN else s.name for s in over):
                rows = self.rows[name]
                active = [detector for detector in rows.detectors if detector not in self.scoring.failed]
                sums = rows.sums.frame if isinstance(rows, PoolRows) else None
                self.output.keep_scores(name, rows.frame, sums, detectors=active)

    def check_fit_rows(self) -> int:
        """Count the training images of all processes.

        Raises:
            DataError: Detectors wait for training images, and none came.
        """
        number = self.statistics.num_samples
        if self.statistics and number == 0 and any(d.required_statistics for d in self.choice.to_fit):
            first = f"; first: {self.skipped[0][0]}, {self.skipped[0][1]}" if self.skipped else ""
            raise DataError(
                f"none of the {self.choice.facts.num_train} training images of {self.train_name!r} could be used"
                f" ({len(self.skipped)} were skipped on this process{first}); detectors cannot be fitted"
            )
        return number

    def after_fit(self) -> None:
        """Score this process's part of the training sample, for the thresholds of the detection error rate."""
        if TrainSample not in self.statistics or self.statistics.num_samples == 0:
            return
        name, sample, able = self.train_name, self.statistics[TrainSample], self._able_to_score_samples()
        keys = [f"{name}/sample-{value:016x}" for value in sample.column("hash").tolist()]
        share = slice(self.trainer.global_rank, None, self.trainer.world_size)
        mine, mine_keys = sample.outputs.select(share), keys[share]
        for start in range(0, len(mine) if able else 0, SAMPLE_CHUNK):
            rows = slice(start, start + SAMPLE_CHUNK)
            part = mine.select(rows).to(self.module.device)
            outputs = Outputs(part.logits, part.features, labels=part.labels, keys=mine_keys[rows])
            self.add(name, outputs, self.scoring.score(outputs, name, able), outputs)

    def record(self) -> ImageRunRecord:
        """The record of the run, without results."""
        record = self.with_common(run_record(self.trainer, self.module, self.datamodule, self.choice))
        return structs.replace(
            record, settings=self.images.evaluation, confidences=self._confidences() if self._pools() else {}
        )

    def evaluate(self) -> Results:
        """Join the rows of all processes, and compute every metric."""
        pools, active = self._pools(), self.scoring.active
        scores = join_scores(self.rows.values(), self.scoring, self.group)
        severities = join_estimates(pools, self.datasets(), active, self._confidences(), self.group)
        run = self.record()
        one_shape = all(gather_objects(self.group, self.one_shape))
        shared = self.digests.findings(self.streams, self.group)
        run = structs.replace(
            run,
            backbone=structs.replace(run.backbone, one_shape=one_shape),
            masked_accuracy=masked_accuracy(self.rows, scores, self.group),
            findings=[*run.findings, *unlisted(pools, self.group), *shared],
        )
        self.training_keys.join(self.group)
        self.clock.enter("metrics")
        results = Results.from_scores(
            scores, self.datasets(), active, run=run, estimates=severities, **self.images.evaluation.to_json()
        )
        cost, time = self.measured()
        if self.is_recorded:  # no network ran
            time = structs.replace(time, backbone_ms=None)
        known = structs.replace(results.run, ms_per_image=cost, time=time)
        return results.with_record(known.with_entries(self.start.more_record()))

    def findings(self) -> Iterable[Finding]:
        """Findings: what makes the numbers doubtful or confirms them."""
        return [finding for finding in self.results.findings if not finding.is_good]

    def is_of(self, folder: Path, key: str) -> bool:
        """Whether a folder contains the results of this run: equal scores and settings."""
        results = Results.load(folder)
        classes = results.settings.classes  # known at the end alone
        return results.run.key == key and results.settings == replace(self.images.evaluation, classes=classes)

    def write(self, folder: Path, **options: Any) -> Path:
        """Write the results to a folder."""
        made = self.results
        return storage.write(folder, table=made.table, scores=made.scores, run=made.run, parts=made.parts, **options)

    def draw(self, folder: Path) -> None:
        """Draw the page; before that, keep features of the images on it."""
        if self.images.explain and not self.is_recorded and TrainSample in self.statistics:
            sample = self.statistics[TrainSample]
            if sample.num_samples and "features" in sample.fields:
                keys, inside = sampled_images(self.results), self.results.id_dataset.name
                found = features_of(self.module, self.datamodule, self.choice.transform, keys)
                explained = [
                    key
                    for name, own in keys.items()
                    for key in accepted_by_most(self.results, name, own, self.images.explain * (name != inside))
                ]
                write_features(folder, image_features(sample, self.training_keys, found, explained))
        super().draw(folder)

    def run_log(self) -> RunLog:
        """Values, settings, summary and figures."""
        return RunLog.of(self.results, partial(figures_of, self.results, self.images.log_figures))

    def _pools(self) -> list[PoolRows]:
        return [rows for rows in self.rows.values() if isinstance(rows, PoolRows)]

    def _confidences(self) -> dict[str, str]:
        """What the severities are means of."""
        return {name: "exp(score)" if d.log_probability else "score" for name, d in self.detectors.items()}

    def _subset(self, info: DatasetInfo) -> Tensor | None:
        """Classes that a known data set contains, if it contains only some of the ID classes."""
        known = descriptions().get(info.name)
        if known is None or not known.label_subset or not self.choice.facts.num_classes:  # no logits, no prediction
            return None
        return torch.tensor(sorted(known.label_subset))

    def _able_to_score_samples(self) -> list[str]:
        """Detectors that score saved outputs; detectors that read images cannot, and have undefined thresholds."""
        return [n for n, d in self.detectors.items() if not d.required_needs & {"images", "hidden", "model"}]
