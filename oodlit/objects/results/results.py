r"""Results of boxes: tables of a run, and every metric for any t\*, tau and overlap, without the network."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from msgspec import structs

from oodlit.base.checks import check_items
from oodlit.base.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.base.roles import Role
from oodlit.base.text.singular import singular
from oodlit.objects.metrics.quality import has_id_quality, id_quality
from oodlit.objects.metrics.scored_boxes import ScoredBoxes
from oodlit.objects.metrics.settings import ObjectSettings
from oodlit.objects.results.box_findings import box_findings
from oodlit.objects.results.evaluation import evaluate_tables
from oodlit.objects.results.record import BoxRunRecord
from oodlit.objects.results.tables import ObjectSet, Tables, make_tables, scored_boxes
from oodlit.results.any_results import AnyResults
from oodlit.results.files import storage
from oodlit.results.names import MODEL


@dataclass(frozen=True, eq=False)
class ObjectResults(AnyResults):
    """Boxes with their scores, the objects, and the table of metrics.

    Args:
        boxes: One row per box; see `oodlit.objects.results.tables.Tables`.
        images: One row per image, including those without boxes.
        objects: One row per annotated object.
        table: One row per value: `detector, dataset, ood_class, metric, value, n_id, n_ood, ci_low, ci_high, rule,
            n_objects, n_images, t_star, tau, iou, rules`.
        run: What else is known about the run; see `BoxRunRecord`.
    """

    boxes: pd.DataFrame
    images: pd.DataFrame
    objects: pd.DataFrame
    table: pd.DataFrame
    run: BoxRunRecord = field(default_factory=BoxRunRecord)
    _scored: dict[str, ScoredBoxes] = field(default_factory=dict, init=False, repr=False)

    # --- making ---------------------------------------------------------------------------------------------------

    @classmethod
    def from_sets(
        cls,
        sets: Sequence[ObjectSet],
        *,
        class_names: Sequence[str] = (),
        settings: ObjectSettings | None = None,
        run: BoxRunRecord | Mapping[str, Any] | None = None,
    ) -> "ObjectResults":
        """Compute every metric from predicted boxes and annotated objects.

        Args:
            sets: One with role ID, and the OOD splits; all with scores of the same detectors.
            class_names: The ID classes in the order of the logits; empty = unknown.
            settings: How to compute.
            run: What is known about the run, as a record or its entries; computed entries replace these.

        Raises:
            InvalidArgumentError: Roles, names or lengths are wrong.
            DataError: An image has no annotations, or an ID object has a class that the network does not know.
            NonFiniteScoreError: A score is NaN.
        """
        check_items("ObjectResults", "sets", sets, ObjectSet)
        detectors = list(dict.fromkeys(name for entry in sets for name in entry.scores))
        tables = make_tables(sets, detectors, class_names)
        notes, quality = list(tables.notes), {}
        known = next(entry for entry in sets if entry.info.role is Role.ID)
        if known.annotations is not None and class_names:
            if not has_id_quality():
                notes.append("mean average precision was not computed; it requires: pip install 'oodlit[objects]'")
            elif len(known.detections) and int(known.detections.classes.min()) < 0:
                notes.append("mean average precision was not computed: some boxes have no predicted class")
            else:
                quality = id_quality(known.detections.to("cpu"), known.annotations)
        given = run if isinstance(run, BoxRunRecord) else BoxRunRecord.of(run or {})
        datasets = [entry.info for entry in sets]
        record = structs.replace(
            given,
            datasets=datasets,
            findings=[*given.findings, *box_findings(tables, datasets, class_names)],
            detectors=detectors,
            class_names=list(class_names),
            id_quality=quality,
            notes=notes,
        )
        return cls._of(tables, record, settings or ObjectSettings())

    @classmethod
    def _of(cls, tables: Tables, run: BoxRunRecord, settings: ObjectSettings) -> "ObjectResults":
        found = evaluate_tables(
            tables, run.datasets, run.detectors, run.class_names, settings, id_quality=run.id_quality
        )
        record = structs.replace(
            run,
            settings=settings,
            thresholds={detector: {"tau": tau} for detector, tau in found.taus.items()},
            undefined=found.undefined,
        )
        return cls(tables.boxes, tables.images, tables.objects, found.table, record)

    def recompute(self, **changes: Any) -> "ObjectResults":
        r"""Evaluate the same boxes with other settings.

        Args:
            changes: Changed fields of `ObjectSettings`: `t_star`, `tau`, `tau_rule`, `iou`, `rules`, ...

        Raises:
            InvalidArgumentError: A setting is unknown or not allowed, or t* is below the least confidence of the boxes
                that the run kept.
        """
        settings, least = self.settings.changed(**changes), self.run.min_confidence
        if least is not None and settings.t_star < least:
            raise InvalidArgumentError(
                f"expected t_star to be at least {least:g}, the lowest confidence that the run kept, got"
                f" t_star={settings.t_star:g}; run again with a lower ObjectModule(min_confidence=...)"
            )
        return self._of(self.tables, self.run, settings)

    def scored_boxes(self, dataset: str) -> ScoredBoxes:
        r"""Return the boxes of a data set above t\*, matched with objects; computed once.

        Raises:
            UnknownNameError: There is no such data set.
        """
        self.dataset(dataset)
        if dataset not in self._scored:
            self._scored[dataset] = scored_boxes(self.tables, dataset, self.class_names, self.settings)
        return self._scored[dataset]

    # --- content --------------------------------------------------------------------------------------------

    @property
    def tables(self) -> Tables:
        """The tables that the metrics are computed from."""
        return Tables(self.boxes, self.images, self.objects, list(self.run.notes))

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the OOD splits."""
        return tuple(info.name for info in self.datasets if info.role is Role.OOD)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The ID classes in the order of the logits."""
        return tuple(self.run.class_names)

    @property
    def settings(self) -> ObjectSettings:
        """Settings of the metrics."""
        return self.run.settings

    def threshold(self, detector: str) -> float:
        """Return tau of a detector: boxes with a lower score are called unknown.

        Raises:
            UnknownNameError: There is no such detector.
        """
        (detector,) = self.resolve_detectors(detector)
        return self.run.thresholds[detector]["tau"]

    def reason(self, metric: str, *, dataset: str, detector: str = MODEL, ood_class: str = "") -> str:
        """Return why a value is NaN; empty if it is not."""
        address = (detector, dataset, ood_class, metric)
        return next((e.reason for e in self.run.undefined if structs.astuple(e)[:4] == address), "")

    def side_by_side(self, dataset: str) -> pd.DataFrame:
        r"""Return the metrics of one split, one row per detector, with t\*, tau and counts.

        Raises:
            UnknownNameError: There is no such split.
        """
        UnknownNameError.check("OOD split", dataset, self.splits)
        rows = self.table[(self.table["dataset"] == dataset) & (self.table["detector"] != MODEL)]
        wide = rows.pivot(index="detector", columns="metric", values="value").reindex(index=list(self.detectors))
        of_all = rows[rows["metric"] == "auroc"].set_index("detector")
        wide = wide[list(dict.fromkeys(rows["metric"]))]
        for name in ("t_star", "tau", "n_id", "n_ood", "n_objects", "n_images"):
            wide[name] = of_all[name]
        return wide.rename_axis(columns=None)

    # --- files ----------------------------------------------------------------------------------------------------

    def save(
        self, directory: str | os.PathLike[str], *, add: Callable[[Path], None] | None = None, keep: Path | None = None
    ) -> Path:
        """Write the tables and `run.json` atomically: `load` returns the old results or the new ones at any time.

        Args:
            directory: Folder to write; parents are created.
            add: Writes further files of the run (page, thumbnails) to the folder it receives; None = keep existing
                files.
            keep: A path that is not removed, such as the fitted detectors that the run used.
        """
        parts = {storage.IMAGES: self.images, storage.OBJECTS: self.objects}
        return storage.write(
            directory, table=self.table, scores=self.boxes, run=self.run, parts=parts, add=add, keep=keep
        )

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "ObjectResults":
        """Load saved results.

        Raises:
            DataError: A file is missing, unreadable, or does not belong to the others, or the rows are images.
        """
        if storage.is_complete(directory) and storage.kind_of(directory) != "objects":
            raise DataError(f"{directory}: expected results of boxes, got results of images; use oodlit.Results.load")
        table, boxes, run, parts = storage.read(directory, BoxRunRecord)
        return cls(boxes, parts[storage.IMAGES], parts[storage.OBJECTS], table, run)

    def __repr__(self) -> str:
        """Counts, never values."""
        return singular(
            f"ObjectResults({len(self.boxes)} boxes, {len(self.images)} images, {len(self.objects)} objects,"
            f" {len(self.detectors)} detectors, {len(self.splits)} splits)"
        )
