"""Content of a run for loggers: values, settings, the summary and figures, in a form that every logger accepts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from PIL import Image

from oodlit.results import Results
from oodlit.results.names import MODEL, distinct, safe
from oodlit.results.run_record import RunRecord

LONGEST = 250
"""Largest number of characters of a setting that MLflow accepts from Lightning."""

_ENTRIES = {
    "backbone": "backbone",
    "detector_settings": "detectors",
    "settings": "evaluation",
    "data": "data",
    "trainer": "trainer",
    "versions": "versions",
}
"""Entries of the record to log as settings, with the prefix of their name in a logger."""
_LEFT_OUT = {"transform_recipe", "arguments", "streams"}
"""Entries that are not logged, because other entries contain the same facts in short."""


Figures = Mapping[str, Callable[[], Image.Image]]
"""Functions that draw figures, by name."""


@dataclass(frozen=True)
class RunLog:
    """Content of a run for loggers.

    Args:
        values: Every value of the table by its name; NaN = undefined.
        settings: Network, transform, detectors, metrics, data, machine and versions by name: numbers and short texts.
        summary: Detectors against data sets and metrics, as of `Results.summary`; None = there is none.
        headline: The values of the summary by their names.
        figures: Gives the figures, if a logger has a place for them.
        markdown: Gives the summary as text, with the numbers of images.
    """

    values: Mapping[str, float]
    settings: Mapping[str, str | float]
    summary: pd.DataFrame | None = None
    headline: Mapping[str, float] = field(default_factory=dict)
    figures: Callable[[], Figures] = dict
    markdown: Callable[[], str] = str

    @classmethod
    def of(cls, results: Results, figures: Callable[[], Figures]) -> "RunLog":
        """Return the content of results for loggers."""
        summary, values = results.summary(), results.metrics_by_name()
        table = results.table
        shown = pd.MultiIndex.from_frame(table[["dataset", "metric"]]).isin(summary.columns)
        shown &= (table["ood_class"] == "") & (table["detector"] != MODEL)
        headline = {name: value for (name, value), is_shown in zip(values.items(), shown, strict=True) if is_shown}
        return cls(values, settings_of(results.run), summary, headline, figures, results.to_markdown)

    def table(self) -> pd.DataFrame:
        """The summary with one line of headings, `<dataset>/<metric>`, after a column `detector`."""
        assert self.summary is not None
        flat = self.summary.set_axis(["/".join(map(str, column)) for column in self.summary.columns], axis=1)
        return flat.rename_axis("detector").reset_index()


def settings_of(record: RunRecord) -> dict[str, str | float]:
    """The settings of a run as a flat mapping with short values, and distinct names such as `a/b`.

    Args:
        record: As of `results.run`.

    Example:
        >>> knn = {"class_path": "oodlit.detectors.KNN", "init_args": {"k": 3, "bank_size": None}}
        >>> settings_of(RunRecord.of({"detector_settings": {"my knn": knn}, "argv": ["run.py"]}))
        {'detectors/my_knn/class': 'oodlit.detectors.KNN', 'detectors/my_knn/k': 3, \
'detectors/my_knn/bank_size': 'None'}
    """
    entries = record.entries()
    chosen = {(name,): entries[entry] for entry, name in _ENTRIES.items() if entry in entries}
    leaves = [leaf for path, value in chosen.items() for leaf in _leaves(path, value)]
    for stream in record.data.streams:
        leaves += [(("data", stream.name, "role"), stream.role), (("data", stream.name, "images"), stream.images)]
    names = distinct("/".join(map(safe, path)) for path, _ in leaves)
    return dict(zip(names, (_short(value) for _, value in leaves), strict=True))


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Values of nested mappings with the keys that lead to them; objects are replaced by class and arguments."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    if "class_path" in value:
        value = {"class": value["class_path"], **value.get("init_args", {})}
    for name, inner in value.items():
        if name not in _LEFT_OUT:
            yield from _leaves((*path, str(name)), inner)


def _short(value: Any) -> str | float:
    if isinstance(value, (bool, int, float)):
        return value
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
