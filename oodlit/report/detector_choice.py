"""Which detector to choose: the group of the best detectors, one of them, and detectors that coincide."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from oodlit.base.roles import Role
from oodlit.report.headline import Column, mean_rates, percent_text, share_text, two_digits
from oodlit.report.section import ChosenDetector, Fact, Shown, listed
from oodlit.results.comparing.same_order import SameOrder

CLEARLY_FASTER = 0.5
"""Largest fraction of the time of the detector with the lowest FPR for which another one is preferred. Detectors that
are not distinguishable may still differ by many points of FPR, which a smaller difference of time does not outweigh."""


def choose(shown: Shown) -> ChosenDetector | None:
    """Choose the lowest FPR of the detectors that are not distinguishable from the best by FPR and AUROC.

    Values are averaged over all OOD sets. Detectors that fail the fewest unit tests come first. If no detector is among
    the best by both metrics, the FPR decides. One that takes at most half the time, network included, is preferred.

    Returns:
        The choice; None without OOD sets, with one detector, and if all values are undefined.
    """
    if not (tables := _tables(shown)):
        return None
    groups = [set(table.loc[table["in_group"], "detector"]) for table in tables.values()]
    both = set.intersection(*groups)
    rates = next(iter(tables.values())).set_index("detector")["value"]  # lowest first
    members = [name for name in rates.index if name in (both or groups[0])]
    passing, how = _fewest_failures(shown, members)
    times = _answer_times(shown)
    lowest = min(passing, key=lambda name: (rates[name], times[name]))
    detector = next((name for name in passing if times[name] <= CLEARLY_FASTER * times[lowest]), lowest)
    where, count, unit = _where(shown), len(passing), shown.unit
    best = f"{percent_text(rates[lowest])} {where}"
    equal = [name for name in passing if rates[name] == rates[lowest] and name != lowest]
    faster = ", but it is faster" if all(times[lowest] < times[name] for name in equal) else ""
    same = f", equal to that of {shown.listed(equal)}{faster}" if equal else ""
    rule = f"not significantly worse than the best by {' and by '.join(list(tables) if both else list(tables)[:1])}"
    which = f"{unit}s that {f'fail {how} and ' if how else ''}are {rule}"
    short = f"one of {len(members)} {unit}s that are {rule}" if members[1:] else ""
    text = f"it is the only {unit} that is {rule} ({where})"
    if count > 1:
        text = f"it has the lowest FPR of the {count} {which}. Its FPR is {best}{same}"
    elif members[1:]:
        text = f"of the {len(members)} {unit}s that are {rule} ({where}), it alone fails {how}"
    if detector != lowest:
        text = (
            f"it takes {two_digits(times[detector])} ms per image with the network, at most half the time of {lowest}"
            f" ({two_digits(times[lowest])} ms). Its FPR is {percent_text(rates[detector])} {where}. Of the {count}"
            f" {which}, {lowest} has the lowest FPR: {best}"
        )
    alike, failing = [name for name in passing if name != detector], [n for n in members if n not in passing]
    lists = [shown.listed(alike), f"with more failed unit tests: {shown.listed(failing)}" if failing else ""]
    others = f" Also not significantly worse: {'; '.join(filter(None, lists))}." if any(lists) else ""
    return ChosenDetector(detector, short, f"Choose {detector}: {text}.", others)


def answer_tile(shown: Shown, rates: Sequence[Column]) -> Fact:
    """The detector to choose with its FPR on the OOD set, or its mean FPR over several; else the lowest FPR."""
    results, choice = shown.results, choose(shown)
    means = mean_rates(results, rates)
    for table in list(_tables(shown).values())[:1]:  # the values that the sentences have: others differ by rounding
        means |= dict(zip(table["detector"], table["value"], strict=True))
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
    columns = [column.cells for column in shown.columns if column.is_count][:1]
    failed = {name: cell.sort for cells in columns for name, cell in zip(shown.results.detectors, cells, strict=True)}
    counted = [name for name in names if not math.isnan(failed.get(name, math.nan))]
    least = min((failed[name] for name in counted), default=0)
    how = "the fewest unit tests" if least else "no unit test"
    return ([name for name in counted if failed[name] == least], how) if counted else (list(names), "")


def _answer_times(shown: Shown) -> dict[str, float]:
    """Milliseconds per image of the network and the detector; NaN = one of them was not measured."""
    run = shown.results.run
    network = 0.0 if shown.pairs else run.time.backbone_ms  # times of pairs include it
    added = math.nan if network is None else network
    return {name: added + run.ms_per_image.get(name, math.nan) for name in shown.detectors}


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
