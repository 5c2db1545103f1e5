r"""From the tables of boxes, images and objects to the table of metrics.

Legacy metrics (AUROC, FPR) are per box and know no objects; open-set metrics say what becomes of the objects. Both
stand side by side, each with t\*, tau and the numbers of boxes, objects and images that it is made from.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from oodlit.metrics.auroc import auroc_of
from oodlit.metrics.entry import Value
from oodlit.metrics.fpr import fpr_of
from oodlit.metrics.numerics.ranking import rank
from oodlit.metrics.uncertainty.intervals import wilson_interval
from oodlit.objects.metrics.boxes_above import Scene
from oodlit.objects.metrics.open_set import OpenSet
from oodlit.objects.metrics.resampling import RankedBoxes, interval, open_set_replicates, ranking_replicates, resample
from oodlit.objects.metrics.settings import ObjectSettings
from oodlit.objects.metrics.thresholds import unknown_threshold
from oodlit.objects.metrics.wilderness import ClassifiedBoxes, wilderness_of
from oodlit.objects.results.tables import Tables
from oodlit.results.evaluation.table_rows import COLUMNS
from oodlit.results.info import DatasetInfo, id_dataset
from oodlit.results.names import MODEL
from oodlit.roles import Role

__all__ = ["METRICS", "OBJECT_COLUMNS", "evaluate_tables"]

OBJECT_COLUMNS = (*COLUMNS, "n_objects", "n_images", "t_star", "tau", "iou", "rules")
"""Columns of the table. `n_id` and `n_ood` count boxes from t* on; `rule` is the one that gave tau."""

METRICS = {
    "auroc": "chance that a box of an ID image scores higher than one of these images; ties count half",
    "fpr": "share of the boxes of these images accepted at the threshold that keeps {share} % of the ID boxes",
    "auroc_hit": "auroc of boxes that hit an annotated object, on both sides",
    "fpr_hit": "fpr{share} of boxes that hit an annotated object, on both sides",
    "ap_u": "average precision of the boxes called unknown, ranked by the confidence of the detector",
    "p_u": "share of the boxes called unknown that find an unknown object, each object once",
    "r_u": "share of the unknown objects that are found",
    "nose": "share of the unknown objects that are hit by boxes called ID alone",
    "nose_boxes": "boxes called ID on unknown objects, duplicates included, per unknown object (as published)",
    "dismissed": "share of the unknown objects that no box hits",
    "aose": "number of unknown objects that are hit by boxes called ID alone",
    "aose_boxes": "number of boxes called ID on unknown objects, duplicates included",
    "wi": "wilderness impact: boxes of ID classes on unknown objects per box of these classes, at recall {recall}",
    "no_boxes": "share of the images without a box from t* on",
    "map": "mean average precision of the ID classes, over IoU .5:.95 (all boxes)",
    "map50": "mean average precision of the ID classes, at IoU .5 (all boxes)",
}
"""What the names in the column `metric` mean."""

HIGHER_IS_BETTER = frozenset({"auroc", "auroc_hit", "ap_u", "p_u", "r_u", "map", "map50"})


@dataclass
class Evaluated:
    """The table of metrics, and what has to be said about it.

    Args:
        rows: One per value, by `OBJECT_COLUMNS`.
        taus: Threshold of every detector.
        undefined: One entry with its reason for every NaN.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    taus: dict[str, float] = field(default_factory=dict)
    undefined: list[dict[str, str]] = field(default_factory=list)

    @property
    def table(self) -> pd.DataFrame:
        """The rows as a table."""
        floats = dict.fromkeys(("value", "ci_low", "ci_high", "t_star", "tau", "iou"), "float64")
        counts = dict.fromkeys(("n_id", "n_ood", "n_objects", "n_images"), "int64")
        return pd.DataFrame(self.rows, columns=list(OBJECT_COLUMNS)).astype(floats | counts)


def evaluate_tables(
    tables: Tables,
    datasets: Sequence[DatasetInfo],
    detectors: Sequence[str],
    class_names: Sequence[str],
    settings: ObjectSettings,
    *,
    id_quality: Mapping[str, float] | None = None,
) -> Evaluated:
    """Every metric of every detector on every data set.

    Args:
        tables: As `make_tables` gives them.
        datasets: One with role ID, and the OOD splits.
        detectors: Names of the columns of scores.
        class_names: The ID classes; empty = not known.
        settings: How to compute.
        id_quality: Mean average precision, `map`, `map50` and `map50/<class>`; see `oodlit.objects.id_quality`.
    """
    known = Scene.of(tables, id_dataset(datasets).name, tuple(class_names), settings)
    evaluation = _Evaluation(settings, known, id_dataset(datasets), tuple(class_names))
    evaluation.add_quality(id_quality or {})
    splits = {
        info.name: Scene.of(tables, info.name, tuple(class_names), settings)
        for info in datasets
        if info.role is Role.OOD
    }
    for name, split in {evaluation.info.name: known, **splits}.items():
        evaluation.add_coverage(name, split)
    for detector in detectors:
        evaluation.result.taus[detector], evaluation.no_tau[detector] = evaluation.tau(detector)
        for name, split in splits.items():
            evaluation.add_split(detector, name, split)
    return evaluation.result


@dataclass(eq=False)
class _Evaluation:
    """The ID set with the settings, and the rows made so far."""

    settings: ObjectSettings
    known: Scene
    info: DatasetInfo
    class_names: tuple[str, ...]
    result: Evaluated = field(default_factory=Evaluated)
    no_tau: dict[str, str] = field(default_factory=dict)

    def tau(self, detector: str) -> tuple[float, str]:
        """The threshold that is given or by the rule, or NaN with the reason why there is none."""
        if (given := self.settings.given_tau(detector)) is not None:
            return given, ""
        scores = torch.from_numpy(self.known.scores(detector))
        if not len(scores):
            return math.nan, "there is no ID box"
        if self.settings.tau_rule == "normal" and not bool(scores.isfinite().all()):
            return math.nan, "ID scores are infinite, which have no mean"
        return unknown_threshold(scores, rule=self.settings.tau_rule or "quantile", tpr=self.settings.tpr), ""

    @cached_property
    def drawn(self) -> np.ndarray:
        """How often every ID image is drawn."""
        return self._draws(self.info.name, self.known)

    def add_quality(self, quality: Mapping[str, float]) -> None:
        """Mean average precision of the ID classes."""
        for name, value in quality.items():
            metric, _, of_class = name.partition("/")
            reason = f"no object of {of_class or 'any class'} is annotated"
            self._add(MODEL, self.info.name, metric, Value(value, reason=reason), self.known, group=of_class, cut=False)

    def add_coverage(self, dataset: str, scene: Scene) -> None:
        """Share of the images of a data set without a box."""
        n, empty = len(scene.images), len(scene.images) - len(np.unique(scene.image))
        ends = wilson_interval(empty, n, confidence=self.settings.confidence)
        value = Value(empty / n, ends) if n else Value(math.nan, reason="there is no image")
        self._add(MODEL, dataset, "no_boxes", value, scene)

    def add_split(self, detector: str, dataset: str, split: Scene) -> None:
        """All metrics of a detector on an OOD split."""
        drawn = self._draws(dataset, split)
        every = np.ones(len(self.known), dtype=bool), np.ones(len(split), dtype=bool)
        self._add_legacy(detector, dataset, split, drawn, *every)
        if self.known.is_annotated:
            self._add_legacy(detector, dataset, split, drawn, self.known.hits, split.hits, suffix="_hit")
        tau = self.result.taus[detector]
        if math.isnan(tau):
            nothing = Value(math.nan, reason=f"tau: {self.no_tau[detector]}")
            for metric in ("ap_u", "p_u", "r_u", "nose", "nose_boxes", "dismissed", "aose", "aose_boxes", "wi"):
                if metric == "dismissed":  # what no box hits is a matter of the boxes alone
                    found = split.open_set(detector, math.inf)
                    self._add_open_set(detector, dataset, split, found, drawn, only=metric)
                else:
                    self._add(detector, dataset, metric, nothing, split)
            return
        self._add_open_set(detector, dataset, split, split.open_set(detector, tau), drawn)
        self._add(detector, dataset, "wi", self._wilderness(detector, split, tau), split)

    def _add_legacy(
        self,
        detector: str,
        dataset: str,
        split: Scene,
        drawn: np.ndarray,
        inside: np.ndarray,
        outside: np.ndarray,
        suffix: str = "",
    ) -> None:
        """AUROC and FPR of some boxes of the ID images against some of the split."""
        id_scores, scores = self.known.scores(detector)[inside], split.scores(detector)[outside]
        ranking = rank(torch.from_numpy(id_scores), torch.from_numpy(scores))
        counts = len(id_scores), len(scores)
        fpr_name = self.settings.fpr_name
        if reason := ranking.missing():
            reason = reason.replace("score", "box that hits an object" if suffix else "box")
            for metric in ("auroc", fpr_name):
                self._add(detector, dataset, metric + suffix, Value(math.nan, reason=reason), split, counts=counts)
            return
        values = {"auroc": auroc_of(ranking), "fpr": fpr_of(ranking, tpr=self.settings.tpr, rule="attained")}
        draws = ranking_replicates(
            RankedBoxes(id_scores, self.known.image[inside], self.drawn),
            RankedBoxes(scores, split.image[outside], drawn),
            tpr=self.settings.tpr,
        )
        for metric, name in (("auroc", "auroc"), ("fpr", fpr_name)):
            value = self._with_interval(values[metric], draws[metric], split)
            self._add(detector, dataset, name + suffix, value, split, counts=counts)

    def _add_open_set(
        self, detector: str, dataset: str, split: Scene, found: OpenSet, drawn: np.ndarray, *, only: str = ""
    ) -> None:
        """Values at a threshold with their intervals; one of them alone, if it is named."""
        published = self.settings.is_published
        values = {
            "ap_u": found.ap_u(self.settings.points, each_box=published),
            "p_u": found.p_u(),
            "r_u": found.r_u(),
            "nose": found.nose(),
            "nose_boxes": found.nose_boxes(),
            "dismissed": found.dismissed_share(),
        }
        if published and not len(found.ranked):
            values["p_u"] = Value(0.0)
        rows = split.counted
        draws = open_set_replicates(found, split.image[rows], split.objects.image, drawn, each_box=published)
        for metric, value in values.items():
            if only not in ("", metric):
                continue
            known = metric in draws and not (metric == "ap_u" and self.settings.points == "11")
            told = self._with_interval(value.value, draws[metric], split) if known else value
            self._add(detector, dataset, metric, told._replace(reason=value.reason), split)
        if only:
            return
        self._add(detector, dataset, "aose", Value(float(found.aose)), split)
        self._add(detector, dataset, "aose_boxes", Value(float(found.is_error.sum())), split)

    def _wilderness(self, detector: str, split: Scene, tau: float) -> Value:
        if not (self.known.is_annotated and self.class_names):
            return Value(math.nan, reason="the objects of the ID set are not known")
        if not len(split.objects):
            return Value(math.nan, reason="no unknown object is annotated")
        scenes = (self.known, split)
        if any((scene.boxes["prediction"] < 0).any() for scene in scenes):
            return Value(math.nan, reason="the predicted classes of the boxes are not known")
        called = [scene.scores(detector) >= tau for scene in scenes]
        own, classes = self.known.best_of_class, self.known.objects.classes
        assert classes is not None  # `objects_of` gives them
        known = np.where(self.known.reaches(own), own.objects, -1)
        none = np.zeros(int(called[0].sum()), dtype=bool)
        boxes = ClassifiedBoxes(
            np.concatenate([scene.confidence[rows] for scene, rows in zip(scenes, called, strict=True)]),
            np.concatenate([s.boxes["prediction"].to_numpy()[rows] for s, rows in zip(scenes, called, strict=True)]),
            np.concatenate([known[called[0]], np.full(int(called[1].sum()), -1)]),
            np.concatenate([none, split.hits[called[1]]]),
            np.bincount(classes, minlength=len(self.class_names)),
        )
        return wilderness_of(boxes, recall=self.settings.recall)

    def _with_interval(self, value: float, draws: np.ndarray, split: Scene) -> Value:
        if not self.settings.bootstrap:
            return Value(value)
        ends = interval(draws, confidence=self.settings.confidence, value=value, n_images=len(split.images))
        return Value(value, ends)

    def _draws(self, dataset: str, scene: Scene) -> np.ndarray:
        # The seed depends on the name of the set, not on its position: other sets do not change its intervals.
        seed = self.settings.seed + zlib.crc32(dataset.encode())
        return resample(len(scene.images), repetitions=self.settings.bootstrap, seed=seed)

    def _add(
        self,
        detector: str,
        dataset: str,
        metric: str,
        value: Value,
        scene: Scene,
        *,
        group: str = "",
        cut: bool = True,
        counts: tuple[int, int] | None = None,
    ) -> None:
        """Append one value; a NaN comes with its reason."""
        n_id, n_ood = counts or (len(self.known), 0 if scene is self.known else len(scene))
        of_detector = detector != MODEL
        low, high = value.interval
        self.result.rows.append(
            {
                "detector": detector,
                "dataset": dataset,
                "ood_class": group,
                "metric": metric,
                "value": value.value,
                "n_id": n_id,
                "n_ood": n_ood,
                "ci_low": low,
                "ci_high": high,
                "rule": self.settings.rule if of_detector else "",
                "n_objects": len(scene.objects),
                "n_images": len(scene.images),
                "t_star": self.settings.t_star if cut else math.nan,
                "tau": self.result.taus[detector] if of_detector else math.nan,
                "iou": self.settings.iou if of_detector else math.nan,
                "rules": self.settings.rules if of_detector else "",
            }
        )
        if math.isnan(value.value):
            where = {"detector": detector, "dataset": dataset, "ood_class": group, "metric": metric}
            self.result.undefined.append(where | {"reason": value.reason or "the definition has no answer"})
