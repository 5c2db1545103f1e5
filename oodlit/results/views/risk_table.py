"""Operating points as a table for a paper."""

import math
from collections.abc import Sequence
from typing import Any

from oodlit.base.fractions import ShareLike
from oodlit.base.roles import Role
from oodlit.results.display_names import display_names
from oodlit.results.glossary import value_text
from oodlit.results.run_results import RunResults
from oodlit.results.views.operating import ood_set, operating_points
from oodlit.results.views.paper import PaperCell, PaperColumn, PaperTable, paper_table

_NOTE = (
    "Values in percent, if {prior:g} % of the images are unknown. Thresholds {wish}. Errors: accepted images that are"
    " unknown or have a wrong prediction. Joint AUGRC: mean fraction of undetected errors over all thresholds."
)
_WISHES = {
    "tpr": "accept at least {:g} % of the ID images",
    "coverage": "accept at least {:g} % of the images",
    "max_risk": "accept as many images as possible with at most {:g} % of errors",
}


def table_of(results: RunResults, *, prior: ShareLike | None = None, **options: Any) -> PaperTable:
    """Collect the operating points at a prior, or without one the headline metrics; see `risk_table`, `paper_table`."""
    return paper_table(results, **options) if prior is None else risk_table(results, prior=prior, **options)


def risk_table(
    results: RunResults, *, prior: ShareLike, detectors: Sequence[str] | None = None, intervals: bool = False, **at: Any
) -> PaperTable:
    """Collect the operating points of all OOD sets for a paper.

    Args:
        results: The run.
        prior: Assumed fraction of OOD images in the traffic, in [0, 1].
        detectors: Rows of the table, in this order; None = all.
        intervals: Whether errors have their confidence interval.
        at: `max_risk`, `coverage` or `tpr`; see `operating_points`.

    Raises:
        UnknownNameError: A detector is unknown.
        InvalidArgumentError: There is no OOD set, the ID images have no labels, or an option is invalid.
    """
    names = list(dict.fromkeys(results.resolve_detectors(*results.detectors if detectors is None else detectors)))
    sets = [info.name for info in results.datasets if info.role is Role.OOD and results.run.counts.get(info.name)]
    columns, notes = [], []
    for dataset in sets or [ood_set(results, None)]:
        points = operating_points(results, dataset, prior=prior, **at).set_index("detector").loc[names]
        ends = zip(points["risk_low"], points["risk_high"], strict=True)
        bounds = ["" if math.isnan(low) else f"{value_text(low)}, {value_text(high)}" for low, high in ends]
        bounds = bounds if intervals else [""] * len(names)
        augrc = points["joint_augrc"].tolist()
        best = min(augrc) if len(names) > 1 else None
        columns += [
            PaperColumn(dataset, "accepted", "", tuple(PaperCell(value_text(value)) for value in points["coverage"])),
            PaperColumn(dataset, "errors", "", tuple(map(PaperCell, map(value_text, points["risk"]), bounds))),
            PaperColumn(
                dataset, "joint AUGRC", "lower", tuple(PaperCell(f"{100 * v:.2f}", "", v == best) for v in augrc)
            ),
        ]
        notes += [f"-: {dataset}, {name}: {reason}." for name, reason in points["reason"].items() if reason]
    wish, value = next(
        ((wish, value) for wish, value in at.items() if value is not None), ("tpr", results.settings.tpr)
    )
    note = _NOTE.format(prior=100 * float(prior), wish=_WISHES[wish].format(100 * float(value)))
    shown = display_names(results.run)
    return PaperTable(tuple(shown[name] for name in names), tuple(columns), (note, *notes))
