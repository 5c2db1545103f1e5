"""The runs of boxes that sections compare."""

from collections.abc import Mapping
from functools import cached_property

from oodlit.metrics.entry import MetricEntry
from oodlit.objects.metrics.registry import box_metrics
from oodlit.objects.results import ObjectResults, main_metrics
from oodlit.report.several import Several
from oodlit.results import RunColumn

_SETTINGS = ("rule", "tpr", "iou", "rules", "points", "recall")


class SeveralBoxes(Several):
    """The runs of boxes of a page that are compared."""

    runs: Mapping[str, ObjectResults]
    quality = "map"

    @cached_property
    def columns(self) -> list[RunColumn]:
        """Headline values of all splits, with the reason if they cannot be compared."""
        metrics = main_metrics(next(iter(self.runs.values())).settings)
        splits = dict.fromkeys(name for results in self.runs.values() for name in results.splits)
        reasons = {name: self._difference(name) for name in splits}
        return [RunColumn(name, metric, reasons[name]) for name in splits for metric in metrics]

    @property
    def conclusions(self) -> list[str]:
        """The run with the highest AP_U of most detectors on every split."""
        lines = []
        for column in self.like:
            values = self.values(column).dropna(axis="columns")
            if column.metric == "ap_u" and values.shape[1]:
                wins = values.idxmax(axis="index").value_counts()
                share = f"{wins.iloc[0]} of {values.shape[1]} detectors (no significance test)"
                lines.append(f"{wins.index[0]} has the highest ap_u on {column.dataset} with {share}.")
        return lines

    def entry(self, column: RunColumn) -> MetricEntry:
        """The metric of a column."""
        return box_metrics(next(iter(self.runs.values())).settings)[column.metric]

    def place(self, column: RunColumn) -> int:
        """Position of the metric: AP_U first, then as in the headline."""
        names = main_metrics(next(iter(self.runs.values())).settings)
        return -1 if column.metric == "ap_u" else names.index(column.metric)

    def label(self, column: RunColumn) -> str:
        """Name of the split and of the metric."""
        return f"{column.dataset}: {column.metric}"

    def _difference(self, split: str) -> str:
        """Why the values of a split cannot be compared; empty if they can."""
        (title, first), *others = self.runs.items()
        for other, results in others:
            for setting in _SETTINGS:
                one, two = getattr(first.settings, setting), getattr(results.settings, setting)
                if one != two:
                    return f"the setting {setting} is {one} in {title} and {two} in {other}"
            if first.id_dataset.name != results.id_dataset.name:
                return f"the ID set is {first.id_dataset.name} in {title} and {results.id_dataset.name} in {other}"
            for name in (first.id_dataset.name, split):
                if _annotated(first, name) != _annotated(results, name):
                    return f"the images or objects of {name} differ between {title} and {other}"
        return ""


def _annotated(results: ObjectResults, dataset: str) -> list[tuple[str, int]]:
    """Keys and numbers of objects of the images of a data set."""
    rows = results.images[results.images["dataset"] == dataset]
    return list(zip(rows["key"], rows["objects"].tolist(), strict=True))
