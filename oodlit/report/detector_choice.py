"""Which detector to choose: the group of the best detectors, the fastest of them, and detectors that coincide."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from oodlit.base.roles import Role
from oodlit.report.headline import Column, mean_rates, percent_text, share_text, two_digits
from oodlit.report.section import Fact, Shown, listed
from oodlit.report.thumbnails import ThumbnailStyles
from oodlit.results import Results
from oodlit.results.comparing.same_order import SameOrder
from oodlit.results.displayed import displayed


class ChosenDetector(NamedTuple):
    """The detector to choose.

    Args:
        detector: Its name.
        short: Why, in a few words.
        sentence: Why, in a sentence.
    """

    detector: str
    short: str
    sentence: str


def choose(shown: Shown) -> ChosenDetector | None:
    """Choose the fastest detector that is not distinguishable from the best by FPR and AUROC over all OOD sets.

    Detectors that fail the fewest unit tests come first. If none is among the best by both metrics, the FPR decides.
    Without measured times, the lowest FPR decides.

    Returns:
        The choice; None without OOD sets, with one detector, and if all values are undefined.
    """
    tables = _tables(shown)
    if not tables:
        return None
    groups = [set(table.loc[table["in_group"], "detector"]) for table in tables.values()]
    both = set.intersection(*groups)
    best = both or groups[0]
    labels = list(tables) if both else list(tables)[:1]
    members = [name for name in next(iter(tables.values()))["detector"] if name in best]
    passing, how = _fewest_failures(shown, members)
    timed = [name for name in passing if not math.isnan(shown.costs[name])]
    detector = min(timed, key=lambda name: shown.costs[name]) if timed else passing[0]
    text = f"no other {shown.unit} is significantly better by {' or '.join(labels)} {_where(shown)}"
    alone = len(passing) == 1
    if how and len(members) > 1:
        how = how.replace("pass", "passes").replace("fail", "fails")
        text += f", and only this one of the {len(members)} best {how}" if alone else f". It {how}"
    quickest = f"the {'fastest' if timed else 'best'} of {len(passing)}"
    if not alone:
        cost = f" ({two_digits(shown.costs[detector])} ms per image)" if timed else ""
        text += f"{' and' if how else ', and it'} is {quickest} such {shown.unit}s{cost}"
    short = f"{quickest} {shown.unit}s that are not distinguishable from the best"
    return ChosenDetector(detector, "" if alone else short, f"Choose {detector}: {text}.")


def chosen_sentence(results: Results) -> str:
    """Which detector to choose, and why, as on the page of the run; empty if there is no choice."""
    choice = choose(Shown(displayed(results), ThumbnailStyles({}, "")))
    return choice.sentence if choice else ""


def answer_tile(shown: Shown, rates: Sequence[Column]) -> Fact:
    """The detector to choose with its FPR on the OOD set, or its mean FPR over several; else the lowest FPR."""
    results, choice = shown.results, choose(shown)
    means = mean_rates(results, rates)
    name = choice.detector if choice else shown.detectors[0]
    if math.isnan(means[name]):
        places = {(column.dataset, column.metric) for column in rates}
        reasons = (one.reason for one in results.run.undefined if (one.dataset, one.metric) in places)
        return Fact("Lowest FPR", "undefined", next(reasons, ""))
    cell = rates[0].cells[results.detectors.index(name)]
    alone = f"{cell.text} {cell.interval} on {rates[0].dataset}"
    value = alone if len(rates) == 1 else f"{percent_text(means[name])}, mean of {len(rates)} OOD sets"
    if choice is None:
        return Fact("Lowest FPR", name, value)
    return Fact(f"{shown.unit} to choose".capitalize(), name, "; ".join(filter(None, (f"FPR {value}", choice.short))))


def answers(shown: Shown) -> list[str]:
    """The best detectors by FPR and by AUROC over all OOD sets."""
    lines = []
    for label, table in _tables(shown).items():
        members = table.loc[table["in_group"], "detector"].tolist()
        best, value = table["detector"].iloc[0], percent_text(table["value"].iloc[0])
        start = f"By {label} {_where(shown)}, the best of {len(table)} {shown.unit}s is {best} ({value})"
        others = [name for name in members if name != best]
        if not others:
            lines.append(f"{start}, and all others are significantly worse.")
        elif len(members) == len(table):
            lines.append(f"{start}, and no other {shown.unit} is significantly worse on these images.")
        else:
            count = "one other is" if len(others) == 1 else f"{len(others)} others are"
            lines.append(f"{start}; {count} not significantly worse: {shown.listed(others)}.")
    return lines


def _tables(shown: Shown) -> dict[str, pd.DataFrame]:
    """Comparisons with the best detector over all OOD sets by label of the metric, those with a defined best value."""
    names = [info.name for info in shown.sets(Role.OOD)]
    settings = shown.results.settings
    labels = {f"FPR at {share_text(settings.tpr)} TPR": settings.fpr_name, "AUROC": "auroc"}
    tables = {label: shown.group(metric, *names) for label, metric in labels.items()}
    return {
        label: table
        for label, table in tables.items()
        if table is not None and len(table) > 1 and not math.isnan(table["value"].iloc[0])
    }


def _where(shown: Shown) -> str:
    names = [info.name for info in shown.sets(Role.OOD)]
    return f"on {names[0]}" if len(names) == 1 else f"averaged over {len(names)} OOD sets"


def _fewest_failures(shown: Shown, names: Iterable[str]) -> tuple[list[str], str]:
    """Detectors that fail the fewest unit tests, with a description; all of them without unit tests."""
    column = next((column for column in shown.columns if column.is_count), None)
    failed = {} if column is None else dict(zip(shown.results.detectors, (c.sort for c in column.cells), strict=True))
    counted = [name for name in names if not math.isnan(failed.get(name, math.nan))]
    if not counted:
        return list(names), ""
    least = min(failed[name] for name in counted)
    how = "fail the fewest unit tests" if least else "pass all unit tests"
    return [name for name in counted if failed[name] == least], how


def coinciding(shown: Shown) -> list[str]:
    """One line for each set of detectors that order all images alike, with the reason if it is known."""
    groups: dict[str, list[SameOrder]] = {}
    for pair in shown.same:
        groups.setdefault(pair.detector, []).append(pair)
    lines = []
    for first, pairs in groups.items():
        names = [first, *(pair.other for pair in pairs)]
        least = min(pair.rank_correlation for pair in pairs)
        order = "the same order" if least == 1 else f"nearly the same order (rank correlation {_digits(least)})"
        text = f"{listed(names)} put all {pairs[0].n} images in {order}"
        lines.append(". ".join([text, *_reasons(shown, names)]) + ".")
    return lines


def _reasons(shown: Shown, names: Sequence[str]) -> list[str]:
    """Known reasons why some of these detectors order images alike."""
    recorded = shown.results.run.overview
    return [
        f"{name} and {other}: {reason}"
        for name in names
        if name in recorded
        for other, reason in recorded[name].same_order_as.items()
        if other in names
    ]


def _digits(correlation: float) -> str:
    """Format a correlation below 1 with enough digits to show that it is not 1.

    Example:
        >>> _digits(0.99999988), _digits(0.99994)
        ('0.9999998', '0.99994')
    """
    places = min(max(4, math.ceil(-math.log10(1 - correlation))), 16)
    return f"{math.floor(correlation * 10**places) / 10**places:.{places}f}"
