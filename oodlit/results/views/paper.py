"""The table of a paper: detectors against headline metrics, with the best in bold and a footnote."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from msgspec import structs

from oodlit.base.checks import check_names
from oodlit.base.roles import Role
from oodlit.results.comparing.best import group_of_best
from oodlit.results.display_names import display_names
from oodlit.results.files.unfinished import interruption
from oodlit.results.glossary import MEAN, POOLED, entry_of, meaning, value_text
from oodlit.results.names import settings_text, some
from oodlit.results.run_results import RunResults
from oodlit.results.views.tables import summary

Place = tuple[str, str]
"""Data set and metric."""

AVERAGE = "average"
_ORDER = {Role.OOD: 0, Role.POOL: 2, Role.UNIT_TEST: 3, Role.SHIFT: 4, Role.ID: 5}
_HEADINGS = {"unit_test_failures": "failed tests", "id_auroc": "ID-AUROC"}
_ABBREVIATIONS = ("fpr", "auroc", "aupr", "der", "oscr", "aurc", "augrc")
_CHOSEN = re.compile(r"(?:part (\w+)\(.*?\): )?(\w+=[^\s,]+), chosen")
"""Start of a note of a fit that states a setting, such as "k=7, chosen for a bank of ...", and the part it is of."""


@dataclass(frozen=True)
class PaperCell:
    """A value of the table; NaN = undefined.

    Args:
        text: The value in percent, or a count; "-" if undefined.
        interval: Bounds as text, without brackets; empty if there are none.
        is_best: Whether it is the best, or not distinguishable from the best.
    """

    text: str
    interval: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class PaperColumn:
    """One metric of a data set, or of the average over data sets.

    Args:
        dataset: Name of the data set, or "average".
        metric: Heading, such as "FPR95".
        better: "lower", "higher" or "".
        cells: One per detector.
    """

    dataset: str
    metric: str
    better: str
    cells: tuple[PaperCell, ...]


@dataclass(frozen=True)
class PaperTable:
    """The table of a paper, ready to be written in any format.

    Args:
        names: Display names of the detectors.
        columns: In their order; columns of a data set are neighbors.
        notes: Sentences of the footnote.
    """

    names: tuple[str, ...]
    columns: tuple[PaperColumn, ...]
    notes: tuple[str, ...]


def paper_table(
    results: RunResults,
    metrics: Sequence[str] | None = None,
    *,
    detectors: Sequence[str] | None = None,
    intervals: bool = False,
) -> PaperTable:
    """Collect the table of a paper.

    Values are in percent or counts, with display names of detectors and the better direction of each metric. Several
    OOD sets have an average or, in a benchmark, its means over sets. Bold: the best of a column and, for FPR, AUROC
    and ID-AUROC, detectors that are not distinguishable from it, see `oodlit.results.group_of_best`. The footnote
    states the numbers of images, the rule of the threshold, the meaning of metrics, the settings of detectors, and why
    values are undefined.

    Args:
        results: The results.
        metrics: See `Results.summary`.
        detectors: Rows of the table, in this order; None = all. The best is the best of these.
        intervals: Whether values have their confidence interval.

    Raises:
        UnknownNameError: A detector or metric is unknown.
    """
    check_names("table", "metrics", metrics)
    if detectors is not None:
        check_names("table", "detectors", detectors)
        run = structs.replace(results.run, detectors=list(dict.fromkeys(results.resolve_detectors(*detectors))))
        results = RunResults(results.scores, results.table, run, results.estimates)
    wide = summary(results, metrics)
    found: list[Any] = wide.columns.tolist()
    places: list[Place] = sorted(found, key=lambda place: _ORDER.get(results.dataset(place[0]).role, 1))
    ood = [place for place in places if results.dataset(place[0]).role is Role.OOD]
    bases = dict.fromkeys(metric.removeprefix(MEAN) for _, metric in ood)
    there = {*zip(results.table["dataset"], results.table["metric"], strict=True)}
    means = [(name, base) for name in results.settings.aggregates for base in bases if (name, base) in there]
    places[len(ood) : len(ood)] = means
    columns = [_column(results, place, intervals=intervals) for place in places]
    columns[len(ood) : len(ood)] = [] if means else _averages(results, wide, ood)
    names = display_names(results.run)
    notes = [wide.attrs["note"], *_notes(results, places, columns, intervals=intervals)]
    notes += [*settings_note(results, names), *_undefined(results, places, names)]
    return PaperTable(tuple(names.values()), tuple(columns), tuple(" ".join(note.split()) for note in notes))


def heading(metric: str) -> str:
    """The heading of a metric; means over classes have that of the metric itself.

    Example:
        >>> heading("mean_fpr95"), heading("der99"), heading("pooled_auroc"), heading("my_metric")
        ('FPR95', 'DER99', 'pooled AUROC', 'my_metric')
    """
    name = metric.removeprefix(MEAN)
    prefix, base = ("pooled ", name.removeprefix(POOLED)) if name.startswith(POOLED) else ("", name)
    is_short = any(re.fullmatch(rf"{short}[\d.]*", base) for short in _ABBREVIATIONS)
    return prefix + (base.upper() if is_short else _HEADINGS.get(base, base))


def _column(results: RunResults, place: Place, *, intervals: bool) -> PaperColumn:
    dataset, metric = place
    rows = results.table[(results.table["dataset"] == dataset) & (results.table["metric"] == metric)]
    rows = rows[rows["ood_class"] == ""].set_index("detector").reindex(list(results.detectors))
    bounds = zip(rows["ci_low"], rows["ci_high"], strict=True) if intervals else [(math.nan, math.nan)] * len(rows)
    return _made(results, place, rows["value"], list(bounds), results.settings.aggregates.get(dataset, [dataset]))


def _averages(results: RunResults, wide: pd.DataFrame, places: Sequence[Place]) -> Iterator[PaperColumn]:
    """The average of each metric that several OOD sets have."""
    for base in dict.fromkeys(metric.removeprefix(MEAN) for _, metric in places):
        own = [place for place in places if place[1].removeprefix(MEAN) == base]
        if len(own) > 1:
            values = wide[own].mean(axis=1, skipna=False)
            yield _made(results, (AVERAGE, base), values, [(math.nan, math.nan)] * len(wide), [name for name, _ in own])


def _made(
    results: RunResults, place: Place, values: pd.Series, bounds: Sequence[tuple[float, float]], sets: Sequence[str]
) -> PaperColumn:
    dataset, metric = place
    entry = entry_of(metric)
    better, is_count = (entry.better, entry.is_count) if entry else ("", False)
    best = _best(results, metric, values, better, sets)
    text = partial(value_text, is_count=is_count)
    marked = {text(float(values[name])) for name in best if len(best) == 1}  # equal as shown
    cells = []
    for name, value, (low, high) in zip(values.index, values, bounds, strict=True):
        shown = text(float(value))
        interval = "" if math.isnan(value) or math.isnan(low) else f"{text(low)}, {text(high)}"
        cells.append(PaperCell(shown, interval, name in best or shown in marked))
    return PaperColumn(dataset, heading(metric), better, tuple(cells))


def _best(results: RunResults, metric: str, values: pd.Series, better: str, sets: Sequence[str]) -> set[str]:
    """The best detector, and those that are not distinguishable from it where this can be tested.

    Nothing is best if no detector is distinguishable from the best one.
    """
    defined = values.dropna()
    if not better or len(defined) < 2:
        return set()
    best = {str(defined.idxmin() if better == "lower" else defined.idxmax())}
    if not _is_tested(results, metric, sets):
        return best
    table = group_of_best(results, list(sets), metric)
    group = best | (set(table.loc[table["in_group"], "detector"]) & set(defined.index))
    return group if len(group) < len(defined) else set()


def _is_tested(results: RunResults, metric: str, sets: Sequence[str]) -> bool:
    """Whether `group_of_best` can compare detectors by this metric of these sets."""
    roles = {results.dataset(name).role for name in sets}
    base = metric.removeprefix(MEAN)
    return (roles == {Role.OOD} and base in (results.settings.fpr_name, "auroc")) or base == "id_auroc"


def _notes(results: RunResults, places: list[Place], table: list[PaperColumn], *, intervals: bool) -> Iterator[str]:
    run, confidence = results.run, f"{100 * results.settings.confidence:.4g} %"
    if run.dry_run:
        yield f"This run read only some of the images ({run.dry_run})."
    if missing := interruption(run):
        yield f"Unfinished: {missing}."
    yield from _meanings(results, places)
    if any(cell.is_best for column in table for cell in column.cells):
        yield (
            "Bold marks the best value. For ID-AUROC, and for FPR and AUROC of OOD sets, it also marks values that are"
            f" not distinguishable from the best on these images (paired one-sided test, Bonferroni, {confidence})."
        )
    plain = [column.cells for column in table if column.better and not any(cell.is_best for cell in column.cells)]
    if any(sum(cell.text != "-" for cell in cells) > 1 for cells in plain):
        yield "In columns with several values and no bold, no detector is distinguishable from the best."
    for name, sets in results.settings.aggregates.items():
        if any(column.dataset == name for column in table):
            yield f"{name} is the mean over {', '.join(sets)}, each computed from all images of the set together."
    if intervals:
        yield f"Brackets show the {confidence} confidence interval, where a value has one."


def _meanings(results: RunResults, places: Sequence[Place]) -> Iterator[str]:
    """The unit of the columns, and the meaning of metrics other than FPR and AUROC."""
    known = {heading(metric): (entry, metric) for _, metric in places if (entry := entry_of(metric))}
    counts = [f", except {name}" for name, (entry, _) in known.items() if entry.is_count]
    grouped = [info.name for info in results.datasets if info.role is Role.OOD and info.class_names]
    means = f" Values of {', '.join(grouped)} are means over the OOD classes." if grouped else ""
    yield f"Values are in percent{''.join(counts)}.{means}"
    for name, (entry, metric) in known.items():
        if entry.name not in ("fpr", "auroc"):
            yield f"{name}: {meaning(metric, results.settings)}"


def settings_note(results: RunResults, names: Mapping[str, str]) -> Iterator[str]:
    """Settings of these detectors that are not None, and what the fit chose for the others."""
    shown = []
    for name in names:
        config = results.run.detector_settings.get(name)
        own = settings_text(config.init_args) if config else ""
        found = map(_CHOSEN.match, results.run.fit_notes.get(name, []))
        chosen = [" ".join(filter(None, match.groups())) for match in found if match]
        if text := ", ".join(filter(None, [own, *chosen])):
            shown.append(f"{names[name]} {text}")
    if shown:
        yield f"Settings: {'; '.join(shown)}."


def _undefined(results: RunResults, places: Sequence[Place], names: Mapping[str, str]) -> Iterator[str]:
    """The reasons of dashes, with the detectors of each."""
    found: dict[tuple[str, str], list[str]] = {}
    for value in results.run.undefined:
        if value.ood_class == "" and value.detector in names and (value.dataset, value.metric) in places:
            key = (f"{heading(value.metric)} on {value.dataset}", value.reason)
            found.setdefault(key, []).append(names[value.detector])
    for (what, reason), own in found.items():
        who = "all detectors" if len(own) == len(names) else some(own, 5)
        yield f"Undefined, shown as a dash: {what} for {who} ({reason.rstrip('.')})."
