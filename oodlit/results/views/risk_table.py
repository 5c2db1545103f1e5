"""Operating points as a table for a paper."""

import math
from collections.abc import Sequence
from typing import Any

from oodlit.base.fractions import ShareLike
from oodlit.base.roles import Role
from oodlit.results.display_names import display_names
from oodlit.results.glossary import three_digits, value_text
from oodlit.results.run_results import RunResults
from oodlit.results.views.operating import ood_set, operating_points
from oodlit.results.views.paper import PaperCell, PaperColumn, PaperTable, paper_table, settings_note

_NOTE = (
    "Values are in percent, except thresholds. They assume that {prior:g} % of the images are OOD. Thresholds {wish}."
    " TPR: share of ID images that are accepted. Accepted: share of all images that are accepted. Errors: OOD images"
    " and wrong predictions, as a share of the accepted images. Joint AUGRC: share of undetected errors, averaged over"
    " the accepted share. Images: {counts}."
)
_WISHES = {
    "tpr": "accept at least {:g} % of the ID images",
    "coverage": "accept at least {:g} % of the images",
    "max_risk": "accept as many images as possible with at most {:g} % errors among them",
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
    every = display_names(results.run)
    shown = {name: every[name] for name in names}
    columns, notes = [], []
    for dataset in sets or [ood_set(results, None)]:
        points = operating_points(results, dataset, prior=prior, **at).set_index("detector").loc[names]
        pairs = zip(points["risk_low"], points["risk_high"], strict=True)
        bounds = ["" if math.isnan(low) else f"{value_text(low)}, {value_text(high)}" for low, high in pairs]
        bounds = bounds if intervals else [""] * len(names)
        augrc = points["joint_augrc"].tolist()
        least = [value == min(augrc) and len(names) > 1 for value in augrc]
        thresholds = ["-" if math.isnan(value) else f"{value:.4g}" for value in points["threshold"]]
        shares = {"TPR": points["tpr"], "accepted": points["coverage"], "errors": points["risk"]}
        columns.append(PaperColumn(dataset, "threshold", "", tuple(map(PaperCell, thresholds))))
        for heading, values in shares.items():
            ends = bounds if heading == "errors" else [""] * len(names)
            columns.append(PaperColumn(dataset, heading, "", tuple(map(PaperCell, map(value_text, values), ends))))
        cells = map(PaperCell, map(three_digits, augrc), [""] * len(names), least)
        columns.append(PaperColumn(dataset, "joint AUGRC", "lower", tuple(cells)))
        reasons = zip(shown.values(), points["reason"], strict=True)
        notes += [f"Undefined, shown as a dash: {dataset} for {name} ({reason})." for name, reason in reasons if reason]
    wish, value = next(((k, wished) for k, wished in at.items() if wished is not None), ("tpr", results.settings.tpr))
    counts = ", ".join(f"{name} n = {len(results.images(name))}" for name in (results.id_dataset.name, *sets))
    note = _NOTE.format(prior=100 * float(prior), wish=_WISHES[wish].format(100 * float(value)), counts=counts)
    return PaperTable(tuple(shown.values()), tuple(columns), (note, *settings_note(results, shown), *notes))
