"""Choose, fit and score detectors on boxes in memory."""

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from oodlit.backbones.heads import gives
from oodlit.base.errors import DataError, NonFiniteScoreError, RequirementError
from oodlit.base.outputs import BackboneFacts, Head, Outputs
from oodlit.detectors.contract.detector import Detector
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.objects.detections import Detections
from oodlit.scoring.scoring import Scoring

_BATCH = 4096
_VERIFIED = 256
"""Number of boxes of a data set that verify the head."""


def applicable(detectors: Mapping[str, Detector], facts: BackboneFacts) -> tuple[dict[str, Detector], dict[str, str]]:
    """Return the applicable detectors, and the reasons why the remaining ones are skipped, with a warning for each.

    Raises:
        RequirementError: None applies.
    """
    reasons = {name: reason for name, detector in detectors.items() if (reason := detector.why_not(facts))}
    if detectors and len(reasons) == len(detectors):
        listing = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise RequirementError(f"none of {len(detectors)} detectors is applicable ({listing}); choose others")
    for name, reason in reasons.items():
        warnings.warn(f"detector {name!r} is skipped: it {reason}", stacklevel=3)
    return {name: detector for name, detector in detectors.items() if name not in reasons}, reasons


def facts_of(parts: Mapping[str, Outputs | None], *, name: str, num_train: int, head: Head | None) -> BackboneFacts:
    """Describe the network by the outputs of the boxes of several data sets."""
    logits, features = (_held(parts, kind) for kind in _GIVEN)
    given = [kind for kind, held in zip(_GIVEN, (logits, features), strict=True) if held]
    return BackboneFacts(
        name=name,
        width=next((part.shape[1] for part in features.values()), 0),
        num_classes=next((part.shape[1] for part in logits.values()), 0),
        head_problem="" if head is not None else f"{name} has none",
        signed_features=any(bool((part < 0).any()) for part in features.values()),
        num_train=num_train,
        available=frozenset({"labels", *given}),
    )


_GIVEN = ("logits", "features")


def _held(parts: Mapping[str, Outputs | None], kind: str) -> dict[str, Tensor]:
    """Return logits or features of the data sets that have them."""
    return {name: value for name, part in parts.items() if (value := getattr(part, kind, None)) is not None}


def check_alike(detectors: Mapping[str, Detector], parts: Mapping[str, Outputs | None]) -> None:
    """Check that all data sets have what detectors read, in vectors of one length.

    Raises:
        DataError: Outputs are missing or their lengths differ.
    """
    for kind in _GIVEN:
        readers = [name for name, detector in detectors.items() if kind in detector.required_needs]
        lengths = {name: held.shape[1] for name, held in _held(parts, kind).items()}
        if readers and (missing := [name for name in parts if name not in lengths]):
            raise DataError(
                f"{missing[0]}: the boxes have no {kind}, but {', '.join(readers[:5])} require them (present in:"
                f" {', '.join(lengths) or 'none'}); add them to the predictions, or choose other detectors"
            )
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{length} in {name}" for name, length in lengths.items())
            raise DataError(f"{kind} of the boxes differ in length: {shown}; all boxes must come from one network")


def check_head(head: Head, parts: Mapping[str, Outputs | None]) -> None:
    """Check that the class layer computes the logits of the boxes from their features.

    Raises:
        DataError: It belongs to another network.
    """
    layer = nn.Linear(head.width, head.num_classes)
    layer.load_state_dict({"weight": head.weight, "bias": head.offset})
    logits = _held(parts, "logits")
    for name, features in _held(parts, "features").items():
        if features.shape[1] != head.width:
            raise DataError(f"head: expects {head.width} features, but the boxes of {name} have {features.shape[1]}")
        if name in logits and not gives(layer, features[:_VERIFIED], logits[name][:_VERIFIED]):
            raise DataError(
                f"head: weight and bias do not reproduce the logits of {name} from the features; expected weight"
                " (classes, features) and bias of the class layer, without background, in the order of the logits"
            )


def fit_detectors(scoring: Scoring, rows: Outputs | None, head: Head | None) -> None:
    """Fit detectors on rows of outputs; those without a fit only receive the head. A detector that fails is dropped."""
    statistics = make_statistics(list(scoring.detectors.values()))
    if statistics and rows is not None:
        for start in range(0, len(rows), _BATCH):
            statistics.update(rows.select(slice(start, start + _BATCH)))
    for name in scoring.active:
        scoring.fit(name, statistics, head, "train")


def score_boxes(scoring: Scoring, detections: Detections, dataset: str) -> dict[str, Tensor]:
    """Score all boxes with every detector, higher = more in-distribution, each of shape (boxes,).

    A detector that fails or returns NaN is dropped, here and for the data sets that follow.
    """
    parts: dict[str, list[Tensor]] = {name: [torch.zeros(0)] for name in scoring.active}
    for start in range(0, 0 if detections.outputs is None else len(detections), _BATCH):
        assert detections.outputs is not None  # otherwise the range is empty
        outputs = detections.outputs.select(slice(start, start + _BATCH))
        for name, scores in scoring.score(outputs, dataset).items():
            if wrong := int(scores.isnan().sum()):
                error = NonFiniteScoreError(f"it returned NaN for {wrong} of {len(scores)} boxes")
                scoring.leave_out(name, error, dataset, outputs)
            parts[name].append(scores.detach().cpu())
    return {name: torch.cat(parts[name]) for name in scoring.active}
