"""Detectors made of other detectors, shared by Combined and SIRC."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from oodlit.base.checks import check_ints, is_traced
from oodlit.base.errors import InvalidArgumentError, NotFittedError, RequirementError
from oodlit.base.outputs import Head, Outputs, Scores, version_of
from oodlit.detectors.contract.detector import Detector
from oodlit.detectors.contract.registry import detector_hint
from oodlit.detectors.statistics import Statistics, TrainSample

PRESERVED = frozenset({"logit_shift", "feature_affine", "feature_rotation", "class_permutation"})
"""Invariances that preserve scores, so that a combination has them if all of its parts do."""
RECORDED = frozenset({"logits", "features", "head", "labels"})
"""Inputs of detectors that can score the sample of the training images."""
ROWS = 1024
"""Images of the sample to score at a time."""


class Combination(Detector):
    """Base class of detectors made of other detectors, its parts.

    Parts are fitted with it on the same statistics. A part that also runs alone, or in another combination, is computed
    once per batch.

    Args:
        parts: The parts, detectors with different settings.
        size: Number of training images that the parts score in the fit.

    Raises:
        InvalidArgumentError: A part is not a detector, or it occurs twice; or `size` is not positive.
    """

    _seen: tuple[Any, ...] = ()

    def __init__(self, parts: Sequence[Detector], size: int) -> None:
        super().__init__()
        owner = type(self).__name__
        check_ints(owner, size=size)
        for part in parts:
            if not isinstance(part, Detector):
                raise InvalidArgumentError(f"{owner}: expected detectors as parts, got {part!r}{detector_hint(part)}")
        if twice := [repr(part) for place, part in enumerate(parts) if repr(part) in map(repr, parts[:place])]:
            raise InvalidArgumentError(f"{owner}: expected every part once, got {twice[0]} twice")
        for place, part in enumerate(parts):
            self.add_module(f"part_{place}", part)
        self.size = size
        self.extra_passes = sum(part.extra_passes for part in parts)
        self.invariances = PRESERVED.intersection(*(part.invariances for part in parts))

    @final
    def _check_recorded(self, way_out: str) -> None:
        """Raise if a part cannot score the sample of the training images.

        Raises:
            InvalidArgumentError: It reads images, hidden activations or the network.
        """
        for part in self.nested_detectors():
            if unknown := sorted(part.required_needs - RECORDED):
                raise InvalidArgumentError(
                    f"{type(self).__name__}: expected parts that read only logits and features, got {part!r}, which"
                    f" reads {', '.join(unknown)}; {way_out}"
                )

    @final
    def _check_parts(self) -> None:
        """Raise if a part was fitted or calibrated after this detector, whose state refers to earlier scores.

        Raises:
            NotFittedError: It was.
        """
        if is_traced():
            return
        own = next(self.buffers(recurse=False))  # another one after a fit, a load, or a move to another device
        now = own, version_of(own), [p.fit_id for p in self.modules() if isinstance(p, Detector) and p is not self]
        if self._seen and own is self._seen[0] and now[1] == self._seen[1] and now[2] != self._seen[2]:
            raise NotFittedError(
                f"{self!r}: a part was fitted or calibrated after the combination, which still uses the earlier scores;"
                ' fit the combination again, and call calibrate if it has calibration="validation"'
            )
        self._seen = now

    @final
    def _score_part(self, part: Detector, outputs: Outputs) -> Scores:
        """Return the scores of a part, float64, once per batch."""
        return (part.unchecked_score(outputs) if is_traced() else part.score(outputs)).double()

    @final
    def _score_sample(self, part: Detector, statistics: Statistics, head: Head | None) -> Scores:
        """Score the first `size` rows of the sample of the training images, float64; once per fit.

        Raises:
            RequirementError: A score is NaN.
        """

        def compute() -> Tensor:
            sample = statistics[TrainSample].outputs
            count = min(self.size, len(sample))
            pieces = (sample.select(slice(at, min(at + ROWS, count))) for at in range(0, count, ROWS))
            return torch.cat([part.score(piece.to(device)).double() for piece in pieces])

        device = "cpu" if head is None else head.weight.device
        scores = statistics.memo(("scores of the sample", part.identity, self.size), compute)
        if scores.isnan().any():
            raise RequirementError(f"{self!r}: {part!r} returns NaN for training images; use another detector instead")
        return scores
