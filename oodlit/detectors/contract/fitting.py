"""Fit any number of detectors in one pass over the training set."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor

from oodlit.base.errors import FingerprintError, InvalidArgumentError
from oodlit.base.fingerprint import difference
from oodlit.base.outputs import BackboneFacts, Head, Outputs
from oodlit.base.text.resolve import names_in
from oodlit.detectors.contract.detector import Detector
from oodlit.detectors.contract.registry import as_detector, detector_hint
from oodlit.detectors.statistics import Statistic, Statistics

GivenDetectors: TypeAlias = Detector | str | Sequence[Detector | str] | Mapping[str, Detector | str]
"""Detectors or their names: one, several, or by names for the results."""


def fit(detectors: Sequence[Detector], batches: Iterable[Outputs], head: Head | None = None) -> None:
    """Fit detectors on the training set, in a single pass for any number of detectors.

    Args:
        detectors: Detectors to fit; train-free ones only receive the head.
        batches: Outputs of the training images, with labels if a detector requires them, in any order and batch size.
        head: The linear head of the classifier, if a detector requires it.

    Raises:
        RequirementError: The head or the training images are missing.
        InvalidArgumentError: Not a list of detectors, or not batches of outputs.
        FingerprintError: The batches come from several backbones.

    Example:
        >>> import torch
        >>> from oodlit.detectors import Mahalanobis
        >>> batches = [Outputs(features=torch.randn(64, 8), labels=torch.arange(64) % 4) for _ in range(3)]
        >>> detector = Mahalanobis()
        >>> fit([detector], batches)
        >>> detector.score(Outputs(features=torch.zeros(2, 8))).shape
        torch.Size([2])
    """
    _check_lists(detectors, batches)
    for detector in detectors:
        detector.require_head(head)
    statistics = make_statistics(detectors)
    backbone = ""
    if statistics:
        for outputs in batches:
            if not isinstance(outputs, Outputs):
                raise InvalidArgumentError(
                    f"fit: expected batches of Outputs, got {type(outputs).__name__}; write Outputs(logits, features)"
                )
            if what := difference(backbone, outputs.backbone):
                raise FingerprintError(
                    f"fit: expected all training batches from one backbone and transform, but {what} differs between"
                    " batches; compute the outputs of all training images with the same OODModule"
                )
            backbone = outputs.backbone or backbone
            statistics.update(outputs)
    for detector in detectors:
        detector.fit(statistics, head)
        detector.fitted_on = backbone


def make_statistics(detectors: Sequence[Detector], extra: Sequence[type[Statistic]] = ()) -> Statistics:
    """Create empty statistics, one per type: all that `detectors` require, and the `extra` ones with all fields."""
    kinds = dict.fromkeys([*(k for d in detectors for k in d.required_statistics), *extra])
    parts = _parts(detectors)
    return Statistics(k.for_detectors([] if k in extra else [p for p in parts if k in p.statistics]) for k in kinds)


def estimate_bytes(statistics: Statistics, facts: BackboneFacts, detectors: Iterable[Detector] = ()) -> int:
    """Estimate the memory of the statistics of a training set and of the fitted detectors, in bytes."""
    sizes = {"width": facts.width, "num_classes": facts.num_classes, "num_train": facts.num_train}
    of_statistics = sum(statistic.estimate_bytes(**sizes) for statistic in statistics.values())
    return of_statistics + sum(part.kept_bytes(facts) for part in _parts(detectors))


def _parts(detectors: Iterable[Detector]) -> list[Detector]:
    """Return the detectors with all detectors nested in them."""
    return [part for detector in detectors for part in detector.modules() if isinstance(part, Detector)]


def name_detectors(detectors: GivenDetectors | Sequence[object] | Mapping[str, object]) -> dict[str, Detector]:
    """Name detectors for tables and files: by a mapping, or by key, with changed settings if keys repeat.

    Names of detectors, see `find`, are built with their default settings.

    Raises:
        UnknownNameError: There is no such detector.
        InvalidArgumentError: Two names are equal, an entry is not a detector, or there are no entries.

    Example:
        >>> from oodlit.detectors import KNN, MSP
        >>> list(name_detectors([MSP(), KNN(k=10), KNN(k=50)]))
        ['msp', 'knn[k=10]', 'knn[k=50]']
        >>> list(name_detectors(["KNN", "Mahalanobis++"])), list(name_detectors("knn,msp")), list(name_detectors(MSP()))
        (['knn', 'mahalanobis_plus_plus'], ['knn', 'msp'], ['msp'])
    """
    if isinstance(detectors, Detector | str):
        detectors = names_in(detectors) if isinstance(detectors, str) else [detectors]
    given = detectors.values() if isinstance(detectors, Mapping) else detectors
    items = [_check(as_detector(d)) for d in given]
    if not items:
        raise InvalidArgumentError("expected at least one detector, such as oodlit.detectors.MSP()")
    if isinstance(detectors, Mapping):
        return dict(zip(detectors, items, strict=True))
    keys = [d.key() for d in items]
    names = [
        f"{key}[{detector.extra_repr()}]" if keys.count(key) > 1 and detector.extra_repr() else key
        for key, detector in zip(keys, items, strict=True)
    ]
    if repeated := sorted({n for n in names if names.count(n) > 1}):
        raise InvalidArgumentError(
            f"two detectors are named {repeated[0]!r}; pass a mapping of names to detectors to keep both"
        )
    return dict(zip(names, items, strict=True))


def _check(item: object) -> Detector:
    if isinstance(item, Detector):
        return item
    raise InvalidArgumentError(f"expected an oodlit.detectors.Detector, got {item!r}{detector_hint(item)}")


def _check_lists(detectors: object, batches: object) -> None:
    """Refuse detectors and batches that are not lists."""
    if isinstance(detectors, Detector | Mapping | str | Iterator) or not isinstance(detectors, Iterable):
        how = "list(detectors.values())" if isinstance(detectors, Mapping) else "[detector]"
        raise InvalidArgumentError(
            f"fit: expected a list of detectors, got {detectors!r}; write fit({how}, batches, head)"
        )
    for item in detectors:
        _check(item)
    if isinstance(batches, Outputs | Tensor) or not isinstance(batches, Iterable):
        raise InvalidArgumentError(
            f"fit: expected a list of Outputs, got {type(batches).__name__}; write fit(detectors, [outputs], head)"
        )
