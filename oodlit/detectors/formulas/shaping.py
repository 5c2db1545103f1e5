"""Reshaping of features before the head, shared by ReAct, ASH, SCALE, VRA and DICE."""

from abc import abstractmethod
from typing import TypeAlias, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oodlit.base.checks import all_finite, check_usual, is_traced
from oodlit.base.errors import InvalidArgumentError, RequirementError
from oodlit.base.fractions import exact_number
from oodlit.base.outputs import BackboneFacts, Features, Head, Logits, Outputs, Scores
from oodlit.detectors.contract.detector import Detector
from oodlit.detectors.contract.placement import follow
from oodlit.detectors.contract.registry import GivenDetector, as_detector, detector_hint
from oodlit.detectors.formulas.softmax import logsumexp_
from oodlit.detectors.statistics import Statistics, TrainSample

LARGEST_EXPONENT = 500.0
"""Bound on the exponent of a feature scale, which keeps logits finite in float64."""


Shaped: TypeAlias = tuple[Features, Scores | None]
"""New features, and the logarithm of a scale per row (None = 1)."""


class Shaping(Detector):
    """Base class of detectors that change features or head before another detector scores the new logits.

    Subclasses implement `_shape`, and `_prepare` if they have state.

    Args:
        then: Detector that scores the new logits, or its name; None = `Energy()`.
    """

    needs = frozenset({"features", "head"})
    invariances = frozenset({"class_permutation"})
    then: Detector | None
    """Detector that scores the new logits; None = `Energy()`."""

    def __init__(self, then: GivenDetector = None) -> None:
        super().__init__()
        self.then = checked_then(self, then, "logits", "features")

    def _prepare(self, statistics: Statistics, head: Head) -> None:  # most subclasses have state, two have none
        """Derive the state; the buffers `weight` and `bias` already contain the head and may be replaced."""

    @final
    def _note_negative(self, statistics: Statistics) -> None:
        if float(statistics[TrainSample].column("features", ordered=False).amin()) < 0:
            self.note(f"features have negative values; {type(self).__name__} was proposed for non-negative ones")

    @abstractmethod
    def _shape(self, features: Features) -> Shaped:
        """Return new features, and the logarithm of a scale per row (None = 1)."""

    @final
    def _fit(self, statistics: Statistics, head: Head) -> None:
        self.keep(weight=head.weight.clone(), bias=head.offset.clone())
        self._prepare(statistics, head)

    @final
    def _score(self, outputs: Outputs) -> Scores:
        features, exponents = self._shape(outputs.require("features"))
        # exp of a ratio of sums soon exceeds float32: scale the logits instead of the features, in float64.
        factors = None if exponents is None else exponents.double().clamp(max=LARGEST_EXPONENT).exp()[:, None]
        shaped = features if factors is None else features * factors
        if isinstance(self.then, Shaping):  # it computes its own logits
            follow(self.then, features.device)
            return self.then._score(Outputs(features=shaped))
        logits = self._affine(features, self.bias) if factors is None else self._affine(features) * factors + self.bias
        return logsumexp_(logits) if self.then is None else self.then.score(Outputs(logits, shaped))

    @final
    def _affine(self, features: Features, bias: Float[Tensor, " classes"] | None = None) -> Logits:
        dtype = torch.promote_types(features.dtype, self.weight.dtype)
        offset = self.weight.new_zeros(()) if bias is None else bias
        logits = torch.addmm(offset.to(dtype), features.to(dtype), self.weight.T.to(dtype))
        if is_traced() or all_finite(logits):
            return logits
        # Features near the limit of float32 overflow in a sum that fits in float64.
        return torch.addmm(offset.double(), features.double(), self.weight.T.double())


def checked_then(owner: Detector, then: object, *reads: str) -> Detector | None:
    """Return the detector `then` of `owner`, checked to score without a fit the outputs that `owner` changes.

    Args:
        owner: Gets the `log_probability` of `then`.
        then: A detector, its name, or None.
        reads: What `then` may read: "logits" and possibly "features". With "features", it may also be a `Shaping`.

    Raises:
        InvalidArgumentError: It requires a fit, or reads more.
    """
    name, more = type(owner).__name__, "features" in reads
    found: Detector | None = as_detector(then, f"detector in {name}(then=...)")
    is_alone = isinstance(found, Detector) and not found.required_statistics and found.required_needs.issubset(reads)
    if found is None or is_alone or (more and isinstance(found, Shaping)):
        owner.log_probability = found is not None and found.log_probability
        return found
    raise InvalidArgumentError(
        f"{name}: expected then=... to be a detector that requires no fit and reads only {' and '.join(reads)}, such as"
        f" Energy(){', or one that changes features, such as ASH()' if more else ''}, got"
        f" {found!r}{detector_hint(found)}"
    )


def non_negative_features(detector: object, facts: BackboneFacts) -> str:
    """Requirement: features without negative values, as after a ReLU."""
    return (
        (f"requires non-negative features, but the features of {facts.name} can be negative")
        if facts.signed_features
        else ""
    )


def check_non_negative(owner: object, features: Features) -> None:
    """Raise if a feature is negative.

    Raises:
        RequirementError: A feature is negative.
    """
    if not is_traced() and features.numel() and not check_usual(~(features.amin() < 0)):
        raise RequirementError(
            f"{owner!r} requires non-negative features, as after a ReLU, but got {float(features.min()):.3g}"
        )


def num_kept(width: int, percentile: float) -> int:
    """Return how many of `width` features remain without `percentile` %: width - round(width p / 100), at least one.

    Example:
        >>> num_kept(2048, 90.0), num_kept(3, 90.0)
        (205, 1)
    """
    exact = exact_number(percentile)
    assert exact is not None  # checked by the constructor
    return max(1, width - round(width * exact / 100))


def largest_mask(values: Features, k: int) -> Bool[Tensor, "batch features"]:
    """Return True at exactly the k largest entries of each row, k >= 0; among equal entries the first ones.

    Example:
        >>> import torch
        >>> largest_mask(torch.tensor([[1.0, 3.0, 1.0, 1.0]]), 2)
        tensor([[ True,  True, False, False]])
    """
    if k == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    # Unsorted: only the smallest value is used.
    threshold = values.topk(k, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
    mask = values >= threshold
    tied = mask.sum(dim=1) > k
    if is_traced():
        above, equal = values > threshold, values == threshold
        return above | (equal & (equal.cumsum(dim=1) <= k - above.sum(dim=1, keepdim=True)))
    if not check_usual(~tied.any()):
        rows, limits = values[tied], threshold[tied]
        above, equal = rows > limits, rows == limits
        room = k - above.sum(dim=1, keepdim=True)
        mask[tied] = above | (equal & (equal.cumsum(dim=1) <= room))
    return mask
