"""Detectors on boxes that lie in memory: which apply, their fit, their scores."""

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from oodlit.detectors.contract.detector import Detector
from oodlit.detectors.contract.fitting import fit
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.objects.detections import Detections
from oodlit.outputs import BackboneFacts, Head, Outputs

__all__ = ["applicable", "facts_of", "fit_detectors", "score_boxes"]

_BATCH = 4096


def applicable(detectors: Mapping[str, Detector], facts: BackboneFacts) -> tuple[dict[str, Detector], dict[str, str]]:
    """Detectors that apply to boxes with these outputs, and why the others do not; the latter are warned of.

    Raises:
        RequirementError: None applies.
    """
    reasons = {name: reason for name, detector in detectors.items() if (reason := detector.why_not(facts))}
    if detectors and len(reasons) == len(detectors):
        listing = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise RequirementError(f"none of {len(detectors)} detectors applies ({listing}); choose others")
    for name, reason in reasons.items():
        warnings.warn(f"detector {name!r} is left out: it {reason}", stacklevel=3)
    return {name: detector for name, detector in detectors.items() if name not in reasons}, reasons


def facts_of(outputs: Outputs | None, *, name: str, num_train: int, head: Head | None) -> BackboneFacts:
    """What is known of the network behind rows of outputs."""
    given = (
        {"labels"}
        if outputs is None
        else {"labels"} | {n for n in ("logits", "features") if getattr(outputs, n) is not None}
    )
    features = None if outputs is None else outputs.features
    logits = None if outputs is None else outputs.logits
    return BackboneFacts(
        name=name,
        width=0 if features is None else features.shape[1],
        num_classes=0 if logits is None else logits.shape[1],
        head_problem="" if head is not None else f"{name} has none",
        signed_features=features is not None and bool((features < 0).any()),
        num_train=num_train,
        available=frozenset({"labels", *given}),
    )


def fit_detectors(detectors: Mapping[str, Detector], rows: Outputs | None, head: Head | None) -> None:
    """Fit detectors on rows of outputs; those that need no fit are only given the head."""
    cuts = range(0, 0 if rows is None else len(rows), _BATCH)
    fit(
        list(detectors.values()),
        [rows.select(slice(start, start + _BATCH)) for start in cuts if rows is not None],
        head,
    )


def score_boxes(detectors: Mapping[str, Detector], detections: Detections) -> dict[str, Tensor]:
    """OOD scores of all boxes by detector, higher = more in-distribution, each of shape (boxes,).

    Raises:
        InvalidArgumentError: The boxes have neither logits nor features.
    """
    if detectors and len(detections) and detections.outputs is None:
        raise InvalidArgumentError("the boxes have neither logits nor features for detectors to score")
    scores: dict[str, list[Tensor]] = {name: [torch.zeros(0)] for name in detectors}
    for start in range(0, len(detections), _BATCH):
        assert detections.outputs is not None  # checked above
        outputs = detections.outputs.select(slice(start, start + _BATCH))
        for name, detector in detectors.items():
            scores[name].append(detector.score(outputs).detach().cpu())
    return {name: torch.cat(parts) for name, parts in scores.items()}
