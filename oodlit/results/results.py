"""Results of a run: compute, load, save, compare and show them without a GPU."""

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from msgspec import structs

from oodlit.base.checks import check_names
from oodlit.base.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.base.json_files import to_json
from oodlit.base.roles import Role
from oodlit.base.text.warn import warn
from oodlit.metrics.settings import Settings
from oodlit.results.comparing.against import against
from oodlit.results.comparing.best import group_of_best
from oodlit.results.comparing.detectors import compare
from oodlit.results.evaluation.metric_table import evaluate
from oodlit.results.files import storage, unfinished
from oodlit.results.files.score_table import checked, checked_estimates, count_notes
from oodlit.results.files.storage import UNFINISHED
from oodlit.results.files.unfinished import FinishedStreams, UnfinishedRunWarning
from oodlit.results.findings import find
from oodlit.results.info import DatasetInfo, check_classes, id_dataset
from oodlit.results.published import published_table
from oodlit.results.record_parts import Unfinished
from oodlit.results.run_record import ImageRunRecord
from oodlit.results.run_results import RunResults
from oodlit.results.views import export, pools, tables
from oodlit.results.views.operating import operating_points
from oodlit.results.views.pooling import pool
from oodlit.results.views.risk_table import table_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Results(RunResults):
    """Results of a run, with methods to compute, save, compare and show them; see `RunResults` for the content.

    Example:
        >>> from oodlit import Role
        >>> frame = pd.DataFrame({"key": ["val/0", "val/1", "near/0"], "dataset": ["val", "val", "near"],
        ...     "group": [-1, -1, 0], "label": [0, 1, -1], "prediction": [0, 0, 1], "msp": [0.9, 0.5, 0.7]})
        >>> datasets = [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD, ("seven",))]
        >>> results = Results.from_scores(frame, datasets, ["msp"], bootstrap=0)
        >>> results.value("mean_auroc", dataset="near", detector="msp")
        0.5
    """

    @classmethod
    def from_scores(
        cls,
        scores: pd.DataFrame,
        datasets: Sequence[DatasetInfo],
        detectors: Sequence[str],
        *,
        run: ImageRunRecord | Mapping[str, Any] | None = None,
        tpr: float = 0.95,
        rule: str = "attained",
        unit_test_limit: float = 0.10,
        bootstrap: int = 1000,
        seed: int = 0,
        confidence: float = 0.95,
        der: Sequence[float] = (0.95, 0.99),
        classes: Mapping[str, Sequence[str]] | None = None,
        prior: float | Sequence[float] = (),
        aggregates: Mapping[str, Sequence[str]] | None = None,
        controls: bool = False,
        full_spectrum: Sequence[str] = (),
        estimates: pd.DataFrame | None = None,
    ) -> "Results":
        """Compute every metric from per-image scores.

        Args:
            scores: One row per image, in any order; see `RunResults`.
            datasets: All data sets; exactly one has role ID.
            detectors: Names of the score columns.
            run: What is known about the run, as a record or as entries of one; what is computed here replaces it.
            tpr: Share of ID images that the threshold accepts, in (0, 1].
            rule: "attained" or "interpolated"; see `oodlit.metrics.acceptance_threshold`.
            unit_test_limit: Largest FPR with which a unit test passes.
            bootstrap: Repetitions for the intervals of means and AUROC; 0 = none. Shares always have Wilson intervals.
            seed: Seed of the bootstrap.
            confidence: Nominal coverage of intervals.
            der: Shares of correctly classified training images that the thresholds of DER accept.
            classes: By data set, the OOD classes to use; other data sets are complete.
            prior: Assumed fractions of OOD images in the traffic, in [0, 1]; adds risk and coverage at each.
            aggregates: OOD sets of each mean over data sets, by the name of the mean: {"near": ["ssb_hard", "ninco"]}.
            controls: Whether findings include the controls, see `oodlit.results.controls`.
            full_spectrum: Shifted sets that the full-spectrum metrics require; () = all that the run has.
            estimates: Severities of the classes of pools, whose test images are in `scores`; see `RunResults`.

        Raises:
            InvalidArgumentError: Columns, roles or settings are invalid.
            DataError: A key occurs twice in a data set, or a group is out of range.
            NonFiniteScoreError: A score is NaN.
            UnknownNameError: A data set or class is unknown.
        """
        check_names("Results", "detectors", detectors)
        chosen = (classes or {}, prior, aggregates or {}, controls, full_spectrum)
        settings = Settings(tpr, rule, unit_test_limit, bootstrap, seed, confidence, der, *chosen)
        id_dataset(datasets)
        check_classes(settings, datasets)
        frame = checked(scores, datasets, detectors)
        severities = checked_estimates(estimates, datasets, detectors)
        evaluation = evaluate(frame, datasets, detectors, settings, severities)
        counts = {info.name: int((frame["dataset"] == info.name).sum()) for info in datasets}
        if severities is not None:
            once = severities[severities["detector"] == severities["detector"].iloc[0]]
            for name, number in once.groupby("dataset")["n_estimation"].sum().items():
                counts[str(name)] += int(number)
        record = structs.replace(
            run if isinstance(run, ImageRunRecord) else ImageRunRecord.of(run or {}),
            datasets=list(datasets),
            detectors=list(detectors),
            settings=settings,
            counts=counts,
            thresholds=evaluation.thresholds,
            undefined=evaluation.undefined,
            notes=evaluation.notes + count_notes(counts, datasets),
            pools=evaluation.pools,
        )
        results = cls(frame, evaluation.table, record, severities)
        return results.with_record(structs.replace(record, findings=find(results)))

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "Results":
        """Read saved results, or the finished data sets of an interrupted run.

        If the folder has both complete results and data sets of a newer, interrupted run, the complete results are
        read; the newer data sets are in its subfolder `unfinished`.

        Warns:
            UnfinishedRunWarning: The run, or a newer one, was interrupted or is still running.

        Raises:
            DataError: A file is missing, unreadable, or does not belong to the others, or no data set was finished.
        """
        beside = Path(directory) / UNFINISHED
        if not storage.is_complete(directory):
            for folder in (beside, Path(directory)):
                if (found := unfinished.read(folder)) is not None:
                    return cls._from_finished_streams(found, folder, Path(directory))
        elif (beside / storage.RUN).is_file():
            warn(
                f"{directory}: a newer run {unfinished.state(Path(directory))}; the earlier, complete"
                f" run is used. The finished data sets of the newer run are in {beside}",
                UnfinishedRunWarning,
            )
        table, scores, run, parts = storage.read(directory, ImageRunRecord)
        if run.kind != "images":
            raise DataError(
                f"{directory}: expected results of images, got results of boxes; load them with"
                f" oodlit.objects.ObjectResults.load. {Path(directory) / storage.TABLE} has all values, and 'oodlit"
                f" objects report {directory}' writes the HTML report"
            )
        return cls(scores, table, run, parts.get(storage.ESTIMATES))

    @classmethod
    def _from_finished_streams(cls, found: FinishedStreams, folder: Path, place: Path) -> "Results":
        names = ", ".join(info.name for info in found.datasets)
        if not any(info.role is Role.ID for info in found.datasets):
            raise DataError(
                f"{folder}: the run {unfinished.state(place)}. Nothing can be evaluated yet, because the ID set is not"
                f" complete (finished data sets: {names}). Wait for the run or resume it, or reuse its fit with"
                " OODDetection(fitted=...)"
            )
        warn(
            f"{folder}: the run {unfinished.state(place)}; finished data sets: {names}; missing:"
            f" {', '.join(found.missing) or 'table.csv'}",
            UnfinishedRunWarning,
        )
        run = structs.replace(
            found.run,
            processes=0,
            unfinished=Unfinished(found.missing, unfinished.is_running(place)),
            not_applicable=found.run.not_applicable | found.left_out,
        )
        settings = found.run.settings.to_json() | {"classes": {}}
        return cls.from_scores(
            found.scores, found.datasets, found.detectors, run=run, estimates=found.estimates, **settings
        )

    def with_record(self, run: ImageRunRecord) -> "Results":
        """The same results with another record."""
        return Results(self.scores, self.table, run, self.estimates)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write `table.csv`, `scores.parquet` and `run.json`.

        At any moment, even after a crash, `load` returns the old or the new results; other files stay.
        """
        storage.write(directory, table=self.table, scores=self.scores, run=self.run, parts=self.parts)

    def recompute(self, **changes: Any) -> "Results":
        """Evaluate the same scores with other settings; all other settings stay unchanged.

        Args:
            changes: Keyword arguments of `from_scores`: `tpr`, `rule`, `unit_test_limit`, `bootstrap`, `seed`,
                `confidence`, `der`, `classes`, `prior`, `aggregates`, `controls`.

        Returns:
            New results; `run` keeps what is known about this run.

        Raises:
            InvalidArgumentError: A setting is unknown or invalid.
            UnknownNameError: A data set or class is unknown.
        """
        known, names = self.settings.to_json(), sorted(field.name for field in fields(self.settings))
        if unknown := sorted(set(changes) - set(names)):
            raise InvalidArgumentError(f"recompute has no setting {', '.join(unknown)}; settings: {', '.join(names)}")
        given = {"run": self.run, "estimates": self.estimates, **known, **changes}
        return Results.from_scores(self.scores, self.datasets, self.detectors, **given)

    def summary(self, metrics: Sequence[str] | None = None) -> pd.DataFrame:
        """A table of detectors against the headline values of every data set.

        Args:
            metrics: Names of set-level metrics; None = the FPR and AUROC of OOD sets (mean over classes for sets with
                classes), failed unit tests, and DER of shifted sets.

        Returns:
            One row per detector, columns (data set, metric); `attrs["note"]` states the numbers of images and the rule.

        Raises:
            UnknownNameError: No data set has such a metric.
        """
        check_names("summary", "metrics", metrics)
        return tables.summary(self, metrics)

    def per_class(self, dataset: str, metric: str | None = None) -> pd.DataFrame:
        """A table of one metric for every OOD class (unit test, kind of shift) of a data set.

        Args:
            dataset: Name of the data set.
            metric: Name of a metric with values per class; None = the FPR.

        Returns:
            One row per class, a column per detector, and the number `n` of images; a pool has a row per level, no `n`.

        Raises:
            UnknownNameError: The table has no such data set or metric.
        """
        return tables.per_class(self, dataset, metric)

    def unit_tests(self) -> pd.DataFrame:
        """A table of the FPR of all unit tests: rows (data set, test), one column per detector."""
        return tables.unit_tests(self)

    def severities(self, dataset: str, detector: str | None = None) -> pd.DataFrame:
        """A table of the classes of a pool from the easiest to the hardest, by detector.

        Args:
            dataset: Name of the pool.
            detector: One detector; None = all.

        Returns:
            One row per detector and class: `detector, ood_class, severity, standard_error, auroc, fpr<N>, n_estimation,
            n_test, levels, confidence`. `levels` is text such as "s3 s4", empty for a class between levels.

        Raises:
            UnknownNameError: The data set or detector is unknown.
            InvalidArgumentError: The data set is not a pool, or a class has no estimation or no test images.
        """
        return pools.severities(self, dataset, detector)

    def levels(self, dataset: str) -> pd.DataFrame:
        """A table of the levels of a pool for all detectors, from the easiest to the hardest classes.

        Returns:
            One row per detector and level s0, s1, ...: `detector, level, auroc, auroc_low, auroc_high, fpr<N>,
            fpr<N>_low, fpr<N>_high, severity, n_classes, n_test`. `severity` is the mean over the classes of the level;
            `attrs["id_confidence"]` is the mean confidence of ID images by detector.

        Raises:
            UnknownNameError: There is no such data set.
            InvalidArgumentError: The data set is not a pool.
        """
        return pools.levels(self, dataset)

    def compare(self, detector: str, *others: str, **options: Any) -> pd.DataFrame:
        """Compare detectors, paired over OOD classes; see `oodlit.results.compare`."""
        return compare(self, detector, *others, **options)

    def against(self, table: str, *, model: str | None = None, classes: bool = False) -> pd.DataFrame:
        """Compare this run with a published table.

        A difference requires that the network is one of the models in the table and that both values follow the same
        rule: the TPR, the mean over classes or over images, the sets, their classes and numbers of images, the settings
        of the detector. Otherwise it is NaN, with a reason. A network that is not in the table still has a rank among
        its models. If the table uses another threshold rule, the FPR is recomputed by it from the scores, without an
        interval.

        Args:
            table: Name of the table; `oodlit list published` shows all.
            model: Name of the network in the table; None (default) = detected by weights and transform, if the table
                states timm's name of the weights.
            classes: True adds the figures of OOD classes and unit tests.

        Returns:
            One row per common detector, data set and metric: `detector, dataset, ood_class, metric, ours,
            ci_low, ci_high, published, difference, model, rank, of, quantile, reason, printed_as, rule, source`.
            Values are shares; `difference` is ours - published. `rank` is the rank among the other published models of
            this detector, 1 = best of `of`; `quantile` is the share of them that is worse. If there is no row,
            `attrs["left_out"]` states why.

        Raises:
            UnknownNameError: The table or the model is unknown.
        """
        return against(self, published_table(table), model=model, classes=classes)

    def group_of_best(
        self, datasets: str | Sequence[str], metric: str | None = None, *, confidence: float | None = None
    ) -> pd.DataFrame:
        """Detectors that are not distinguishable from the best one; see `oodlit.results.group_of_best`."""
        return group_of_best(self, datasets, metric, confidence=confidence)

    def pooled(self, datasets: Sequence[str], *, name: str = "pooled") -> "Results":
        """Join several OOD sets into one set without classes.

        Images with the same key after the name of the data set, the same prediction and the same scores are shared.
        Shared images are counted once, with a warning.

        Args:
            datasets: Names of OOD sets, at least two.
            name: Name of the new set.

        Returns:
            Results with the ID set, training and shifted sets, and the pooled set.

        Raises:
            InvalidArgumentError: A set is not an OOD set, or fewer than two sets are given.
        """
        check_names("pooled", "datasets", datasets)
        scores, infos, settings = pool(self, datasets, name)
        run = {"pooled": list(datasets)}
        return Results.from_scores(scores, infos, self.detectors, run=run, **settings.to_json())

    def operating_points(self, dataset: str | None = None, **options: Any) -> pd.DataFrame:
        """Compare the detectors for an assumed fraction of OOD images; see `oodlit.results.operating_points`."""
        return operating_points(self, dataset, **options)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the table as CSV, with numbers that read back exactly.

        Raises:
            InvalidArgumentError: The folder does not exist, or the path is a folder. All exports raise this error.
        """
        self._written(self.table.to_csv(index=False, lineterminator="\n"), path)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the table as Parquet."""
        export.write_export(path, self.table.to_parquet(index=False))

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table as a JSON list of records (NaN = null); written to `path` if given."""
        return self._written(to_json(self.table.to_dict("records")), path)

    def to_latex(self, path: str | os.PathLike[str] | None = None, **options: Any) -> str:
        """The table of a paper for LaTeX, with the package booktabs; written to `path` if given.

        Args:
            path: File to write; None = none.
            options: See `oodlit.results.views.paper.paper_table`: `metrics`, `detectors`, `intervals`. With `prior`:
                operating points, see `oodlit.results.views.risk_table.risk_table`.

        Raises:
            UnknownNameError: A detector or metric is unknown.
        """
        return self._written(export.latex_of(table_of(self, **options)), path)

    def to_markdown(self, path: str | os.PathLike[str] | None = None, **options: Any) -> str:
        """The table of a paper as a GitHub table; see `to_latex`."""
        return self._written(export.markdown_of(table_of(self, **options)), path)

    def plot(self, kind: str = "fpr_per_class", **options: Any) -> "Figure":
        """Draw a figure of `oodlit.results.plots` by its name.

        Args:
            kind: "fpr_per_class", "class_distribution", "roc", "score_histograms", "unit_tests", "accuracy_fpr",
                "severity_curve" or "severity_correlation".
            options: Passed to that function.

        Raises:
            UnknownNameError: The figure is unknown.
        """
        plots = importlib.import_module("oodlit.results.plots")  # matplotlib is loaded only for figures
        UnknownNameError.check("figure", kind, plots.FIGURES)
        figure: Figure = plots.FIGURES[kind](self, **options)
        return figure

    def _written(self, text: str, path: str | os.PathLike[str] | None) -> str:
        if path is not None:
            export.write_export(path, text.encode())
        return text
