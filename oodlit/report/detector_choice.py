"""Which detector to choose: the group of the best detectors, the fastest of them, and detectors that coincide."""

import math
from collections.abc import Iterable, Sequence

from oodlit.base.roles import Role
from oodlit.report.headline import percent_text, share_text, two_digits
from oodlit.report.section import Shown
from oodlit.results.comparing.same_order import SameOrder

MANY = 8
"""Maximum number of names in a sentence; the table marks all of them."""


def answers(shown: Shown) -> list[str]:
    """The best detectors by FPR and AUROC over all OOD sets, and the fastest one among the best by both."""
    names = [info.name for info in shown.sets(Role.OOD)]
    lines, groups = [], []
    settings = shown.results.settings
    for metric, label in ((settings.fpr_name, f"FPR at {share_text(settings.tpr)} TPR"), ("auroc", "AUROC")):
        table = shown.group(metric, *names)
        if table is None or len(table) < 2 or math.isnan(table["value"].iloc[0]):
            continue
        members = table.loc[table["in_group"], "detector"].tolist()
        groups.append(set(members))
        where = f"on {names[0]}" if len(names) == 1 else f"as the mean of {len(names)} OOD sets"
        best, value = table["detector"].iloc[0], percent_text(table["value"].iloc[0])
        start = f"By {label} {where}, the best of {len(table)} detectors is {best} ({value})"
        others = [name for name in members if name != best]
        if not others:
            lines.append(f"{start}, and all others are significantly worse.")
        elif len(members) == len(table):
            lines.append(f"{start}, and no other detector is significantly worse on these images.")
        else:
            count = "one other is" if len(others) == 1 else f"{len(others)} others are"
            lines.append(f"{start}; {count} not significantly worse: {listed(others)}.")
    if len(groups) == 2 and (line := _quickest(shown, groups[0] & groups[1])):
        lines.append(line)
    return lines


def _quickest(shown: Shown, names: set[str]) -> str:
    """The fastest detector of a group, or of those that fail the fewest unit tests if there are any."""
    timed = {name: ms for name, ms in shown.costs.items() if name in names and not math.isnan(ms)}
    if not timed or len(names) < 2:
        return ""
    passing, how = _fewest_failures(shown, timed)
    first = min(passing, key=lambda name: timed[name])
    cost = f"{two_digits(timed[first])} ms per image"
    if not how:
        return f"The fastest of the {len(names)} that are among the best by both is {first}: {cost}."
    start = f"Of the {len(names)} that are among the best by both"
    if len(passing) == 1:
        return f"{start}, only {first} {how.replace('pass', 'passes').replace('fail', 'fails')}: {cost}."
    return f"{start}, {len(passing)} {how}; the fastest of these is {first}: {cost}."


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


def listed(names: Sequence[str]) -> str:
    """Join names for a sentence, at most a few of them.

    Example:
        >>> listed(["a", "b", "c"]), listed([str(i) for i in range(20)])
        ('a, b and c', '0, 1, 2, 3, 4, 5, 6, 7 and 12 more')
    """
    if len(names) > MANY + 1:
        return f"{', '.join(names[:MANY])} and {len(names) - MANY} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _digits(correlation: float) -> str:
    """Format a correlation below 1 with enough digits to show that it is not 1.

    Example:
        >>> _digits(0.99999988), _digits(0.99994)
        ('0.9999998', '0.99994')
    """
    places = min(max(4, math.ceil(-math.log10(1 - correlation))), 16)
    return f"{math.floor(correlation * 10**places) / 10**places:.{places}f}"
