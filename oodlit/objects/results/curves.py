"""Open-set metrics at other thresholds tau."""

from typing import NamedTuple

import numpy as np
import torch

from oodlit.base.errors import UnknownNameError
from oodlit.metrics.numerics.acceptance import acceptance_threshold
from oodlit.metrics.numerics.ranking import as_sorted
from oodlit.objects.metrics.open_set_error import nose_of
from oodlit.objects.metrics.unknown_boxes import ap_u_of, p_u_of, r_u_of
from oodlit.objects.results.results import ObjectResults

CURVES = ("r_u", "nose", "p_u", "ap_u")


class TauPoint(NamedTuple):
    """The metrics at one threshold.

    Args:
        kept: Share of the ID boxes that the threshold keeps at least.
        tau: The threshold.
        values: Values by metric; NaN if undefined.
    """

    kept: float
    tau: float
    values: dict[str, float]


def tau_curve(results: ObjectResults, detector: str, dataset: str, *, points: int = 21) -> list[TauPoint]:
    """Compute `r_u`, `nose`, `p_u` and `ap_u` of a split for thresholds that keep from all to half of the ID boxes.

    The share of ID boxes makes detectors with different scales of scores comparable.

    Args:
        results: Boxes with scores.
        detector: Name of the scores.
        dataset: Name of the OOD split.
        points: Number of thresholds, evenly spaced in the kept share.

    Returns:
        From the lowest threshold to the highest; empty if there are no ID boxes.

    Raises:
        UnknownNameError: There is no such detector or split.
    """
    (detector,) = results.resolve_detectors(detector)
    UnknownNameError.check("OOD split", dataset, results.splits)
    known, split = results.scored_boxes(results.id_dataset.name), results.scored_boxes(dataset)
    scores = as_sorted(torch.from_numpy(known.scores(detector)))
    if not len(scores):
        return []
    found = []
    for kept in np.linspace(1.0, 0.5, points).round(6).tolist():
        tau = acceptance_threshold(scores, tpr=kept)
        at = split.open_set(detector, tau)
        area = ap_u_of(at, results.settings.points, each_box=results.settings.is_published)
        values = (r_u_of(at).value, nose_of(at).value, p_u_of(at).value, area)
        found.append(TauPoint(kept, tau, {name: value.value for name, value in zip(CURVES, values, strict=True)}))
    return found
