"""AdaSCALE: scaling by how peaked features are, adapted to how far a step of the image moves them."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_choice, check_positive
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import exact_number
from oodlit.base.outputs import Head, Model, Outputs
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.input_gradients import gradient_levels, input_gradient, towards_prediction
from oodlit.detectors.formulas.peakedness import mean_bias, scaled_energy, sum_ratio
from oodlit.detectors.formulas.percentile import check_percentile
from oodlit.detectors.formulas.shaping import LARGEST_EXPONENT, largest_mask
from oodlit.detectors.statistics import ScalarSample, Statistics, shares_below


@dataclass(frozen=True)
class Shift:
    """q = Co + weight * Q: how active the largest features of an image are after a step, and how far they move.

    Args:
        pixels: Percentage of image entries to move, those with the smallest gradient of the largest logit.
        step: Step size in the normalized image, along the sign of the gradient.
        shifted: Percentage of the features, the largest ones, whose absolute changes are summed in Q.
        active: Percentage of the features, the largest ones, whose positive parts after the step are summed in Co.
        weight: Factor of Q.
    """

    pixels: float
    step: float
    shifted: float
    active: float
    weight: float

    def __call__(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        """Return values of q, float64, in two forward passes and one backward pass.

        Raises:
            InvalidArgumentError: Features, images or the model are missing, as in training outputs built by hand.
        """
        features, images, model = outputs.require("features"), outputs.require("images"), outputs.model
        if model is None:
            raise InvalidArgumentError(
                "AdaSCALE requires access to the network, but Outputs.model is missing; pass Outputs(..., model=module)"
            )
        moved = model.features(images + self._step(images, model)).to(features.dtype)
        shift = (features - moved).abs() * _largest(features, self.shifted)
        level = moved.clamp(min=0) * _largest(features, self.active)
        q: Tensor = level.sum(dim=1, dtype=torch.float64) + self.weight * shift.sum(dim=1, dtype=torch.float64)
        return q

    def _step(self, images: Tensor, model: Model) -> Tensor:
        _, gradient = input_gradient(model, images, towards_prediction)
        levels = gradient_levels(gradient)
        smallest = _largest(-levels, self.pixels) & (levels > 0)  # zero gradients have no direction
        return self.step * (smallest.view_as(images) * gradient.sign()).to(images.dtype)


def _largest(values: Float[Tensor, "batch entries"], percent: float) -> Tensor:
    """Return which entries are the largest `percent` % of each row, rounded down."""
    return largest_mask(values, _count(values.shape[1], percent))


def _count(entries: int, percent: float) -> int:
    share = exact_number(percent)
    assert share is not None  # checked by the constructor
    return int(entries * share / 100)


@final
class AdaSCALE(Detector):
    """S = LSE(W (x exp(r)) + b), r = s1 / s2: s1 the sum of max(x, 0), s2 that of its k largest entries; k by image.

    k is chosen for each image from a number q: k = D - round(D p / 100), p = low + (1 - F(q)) (high - low),
    with F(q) the fraction of training images whose q is not larger.

    q measures how far the features move under a small step: 5 % of the pixel values, those with the smallest
    gradient of the predicted logit, move by 0.5 along this gradient. Then q = Co + 10 Q:

    - Q is the sum of the changes of the largest 1 % of the features.
    - Co is the sum of the positive parts of the largest 5 % of the features after the step.

    Both numbers of features are rounded down, so Q is 0 with fewer than 100 features. Variant "l" scales the
    logits as `LTS` does: S = c + LSE(r^2 (z - c)), c the mean bias.

    Requires two extra forward passes and one backward pass per image. The fit requires them for a sample of
    5000 training images, chosen by the hash of their keys. Equal gradients are ordered by pixel.

    Args:
        variant: "a" (default) scales features, "l" logits.
        low: Percentile p for the most unusual q, default 80.
        high: p for the least unusual q, low <= high <= 100, default 85. The authors tuned both on OOD data; the
            defaults are theirs for a ResNet-50 on ImageNet.
        pixels: Percentage of pixel values to move, above 0, default 5.
        step: Step size in the normalized image, > 0, default 0.5.
        shifted: Percentage of the features in Q, above 0, default 1.
        active: Percentage of the features in Co, above 0, default 5.
        weight: Factor of Q, >= 0, default 10.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> AdaSCALE.preset("l-imagenet-regnet")
        AdaSCALE(variant='l', low=60.0)
    """

    needs = frozenset({"logits", "features", "head", "images", "model"})
    assumes_non_negative = True
    statistics = (ScalarSample,)
    invariances = frozenset({"class_permutation"})
    presets: ClassVar = {
        "a-imagenet-resnet50": {"variant": "a", "low": 80.0, "high": 85.0},
        "l-imagenet-resnet50": {"variant": "l", "low": 80.0, "high": 85.0},
        "a-imagenet-regnet": {"variant": "a", "low": 60.0, "high": 90.0, "active": 30.0},
        "l-imagenet-regnet": {"variant": "l", "low": 60.0, "high": 85.0},
    }
    tuned_presets: ClassVar = frozenset(presets)
    reference = Reference(
        "AdaSCALE: Adaptive Scaling for OOD Detection",
        "S. Regmi",
        "arXiv",
        2025,
        "https://arxiv.org/abs/2503.08023",
        "the distribution F is computed from training images, whereas the authors use ID validation images; to"
        " follow the authors, pass outputs of held-out images to `fit`. In variant l, the mean of the bias is not"
        " scaled, whereas the authors scale it. If no feature is positive, r = 1, not 0 / 0. Gradients are rounded"
        " to 2^-20 of the largest before the smallest ones are chosen, unlike in the authors' code. Q and Co are"
        " sums over the same numbers of features in the fit and in scoring (settings shifted and active), as in"
        " OpenOOD; the authors' later program swaps the two numbers in scoring only",
    )
    extra_passes = 2

    def __init__(
        self,
        variant: Literal["a", "l"] = "a",
        low: float = 80.0,
        high: float = 85.0,
        pixels: float = 5.0,
        step: float = 0.5,
        shifted: float = 1.0,
        active: float = 5.0,
        weight: float = 10.0,
    ) -> None:
        super().__init__()
        check_choice("AdaSCALE", "variant", variant, ("a", "l"))
        check_positive("AdaSCALE", step=step)
        check_positive("AdaSCALE", weight=weight, or_zero=True)
        self.variant, self.step, self.weight = variant, step, weight
        self.low, self.high = (check_percentile("AdaSCALE", percent) for percent in (low, high))
        if self.low > self.high:
            raise InvalidArgumentError(f"AdaSCALE: expected low <= high, got low={low}, high={high}")
        self.pixels, self.shifted, self.active = (
            check_percentile("AdaSCALE", percent, small=True) for percent in (pixels, shifted, active)
        )
        check_positive("AdaSCALE", pixels=self.pixels, shifted=self.shifted, active=self.active)
        self.scalar = Shift(self.pixels, step, self.shifted, self.active, weight)

    def _fit(self, statistics: Statistics, head: Head) -> None:
        self.keep(weight_of_head=head.weight.double().clone(), bias=head.offset.double().clone())
        self.keep(constant=mean_bias(head), sample=statistics[ScalarSample].values(self.scalar))
        width = head.weight.shape[1]
        for name, effect in (("shifted", "the movement of features"), ("active", "the activity of features")):
            if _count(width, percent := getattr(self, name)) == 0:
                self.note(f"{name}={percent:g} % of {width} features is less than one feature, so {effect} counts as 0")

    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        features = outputs.require("features")
        q = outputs.memo(self.scalar, partial(self.scalar, outputs))
        percent = self.low + (1 - shares_below(self.sample, q)) * (self.high - self.low)
        width = features.shape[1]
        ratio = sum_ratio(features, (width - (width * percent / 100).round()).clamp(min=1).long())
        if self.variant == "l":
            return scaled_energy(outputs.require("logits"), ratio, self.constant)
        scaled = features.double() * ratio.clamp(max=LARGEST_EXPONENT).exp()[:, None]
        return torch.addmm(self.bias, scaled, self.weight_of_head.T).logsumexp(dim=1)
