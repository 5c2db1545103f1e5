"""WeiPer+KLD: histograms of the features and of logits under perturbed weights."""

from collections.abc import Iterator
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_int, check_positive, check_seed, is_traced
from oodlit.base.outputs import BackboneFacts, Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.histograms import Bins, divergence, smoothed
from oodlit.detectors.formulas.perturbed_head import PerturbedHead, size_of
from oodlit.detectors.statistics import Statistics, TrainSample

LEAST, LEAST_OF_LOGITS = 0.01, 0.025
"""Added to every bin of the histograms of features and logits."""
ROWS = 256
"""Training images whose perturbed logits are computed at a time."""
MOST_BYTES = 2**31
"""Maximum size for keeping the perturbed weights."""
_IMAGENET = {"logits_weight": 2.5, "smooth": 40, "smooth_logits": 15}


@final
class WeiPer(Detector):
    """S = -(K + l1 K~) + l2 * mean max softmax: K of the feature histogram, K~ of logits under perturbed weights.

    K = KL(p || q) + KL(q || p), with q the histogram of the image's D features between the smallest and the largest
    training feature, and p the mean histogram of the training images; q is smoothed by a moving average, p is not. K~
    is the same for the logits of `copies` of the head, w + d |w| n / |n| with a normal n per copy and class. The mean
    is over the copies. Values outside the bins only count in the total. Classes masked by the head are left out.

    The training images are read twice, so a sample is used. Scoring an image costs `copies` products with the head, in
    float64. The draws follow from the seed and are not part of the saved fit. Memory: the perturbed weights, 1.6 GB for
    2048 features and 1000 classes; above 2 GiB they are drawn again for every batch, which takes ten times as long.

    Args:
        copies: r, at least 1, default 100.
        strength: d >= 0, default 2.4. This and the settings down to `smooth_logits` were tuned by the authors on OOD
            data; the defaults are theirs for a ResNet-50 on ImageNet.
        bins: n, at least 1, default 100.
        logits_weight: l1 >= 0, default 2.5.
        softmax_weight: l2 >= 0, default 0.25.
        smooth: Number of bins for averaging q, at least 1, default 40; an even number reaches one bin farther up.
        smooth_logits: The same for logits, default 15.
        images: Number of training images for the mean histograms, default 1000.
        seed: Seed of n, 0 to 2^32 - 1, default 0.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> WeiPer.preset("imagenet-vit")
        WeiPer(strength=2.0, bins=80, softmax_weight=0.1)
    """

    needs = frozenset({"features", "head"})
    statistics = (TrainSample,)
    sample_fields = frozenset({"features"})
    presets: ClassVar = {
        "imagenet-resnet50": {"strength": 2.4, "bins": 100, "softmax_weight": 0.25, **_IMAGENET},
        "imagenet-vit": {"strength": 2.0, "bins": 80, "softmax_weight": 0.1, **_IMAGENET},
        "cifar10-resnet18": {"strength": 1.8, "softmax_weight": 0.1, "smooth": 4, "smooth_logits": 15},
        "cifar100-resnet18": {
            "strength": 2.4,
            "logits_weight": 0.1,
            "softmax_weight": 1.0,
            "smooth": 4,
            "smooth_logits": 40,
        },
    }
    tuned_presets: ClassVar = frozenset(presets)
    reference = Reference(
        "WeiPer: OOD Detection using Weight Perturbations of Class Projections",
        "M. Granz",
        "NeurIPS",
        2024,
        "https://arxiv.org/abs/2405.17164",
        "uses mean histograms of 1000 training images, whereas the authors use 300,000; draws the"
        " perturbations once, whereas the authors average several draws",
    )

    def __init__(
        self,
        copies: int = 100,
        strength: float = 2.4,
        bins: int = 100,
        logits_weight: float = 2.5,
        softmax_weight: float = 0.25,
        smooth: int = 40,
        smooth_logits: int = 15,
        images: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__()
        counts = {"copies": copies, "bins": bins, "smooth": smooth, "smooth_logits": smooth_logits, "images": images}
        for name, value in counts.items():
            check_int("WeiPer", name, value)
        check_seed("WeiPer", seed)
        weights = {"strength": strength, "logits_weight": logits_weight, "softmax_weight": softmax_weight}
        for name, number in weights.items():
            check_positive("WeiPer", name, number, or_zero=True)
        self.copies, self.strength, self.bins, self.images, self.seed = copies, strength, bins, images, seed
        self.logits_weight, self.softmax_weight = logits_weight, softmax_weight
        self.smooth, self.smooth_logits = smooth, smooth_logits
        self._head: PerturbedHead | None = None

    def kept_bytes(self, facts: BackboneFacts) -> int:
        """Return the memory of the perturbed weights, or of one copy."""
        all_of_them = size_of(facts.width * facts.num_classes, self.copies)
        return all_of_them if all_of_them <= MOST_BYTES else size_of(facts.width * facts.num_classes, 1)

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        assert head is not None  # checked by `fit`
        unmasked = head.unmasked.to(dtype=torch.float64)
        self.keep(weight=unmasked.weight, bias=unmasked.offset)
        features = statistics[TrainSample].column("features")
        parts = torch.split(features[: self.images].to(head.weight.device).double(), ROWS)
        self.keep(range=torch.stack([features.amin(), features.amax()]).double().to(head.weight.device))
        low, high = self.weight.new_tensor([float("inf"), -float("inf")]).unbind()
        for z in (block for part in parts for block in self._logits(part)):
            low, high = torch.minimum(low, z.amin()), torch.maximum(high, z.amax())
        # Rounding may make the largest training logit larger when it is computed again in another batch.
        margin = 1e-9 * (high - low)
        self.keep(smooths_up=torch.tensor(True), range_of_logits=torch.stack([low - margin, high + margin]))
        own, of_logits = zip(*(self._histograms(part)[:2] for part in parts), strict=True)
        self.keep(typical=torch.cat(own).mean(dim=0), typical_of_logits=torch.cat(of_logits).mean(dim=0))

    def _score(self, outputs: Outputs) -> Scores:
        own, of_logits, softmax = self._histograms(outputs.require("features").double())
        far = divergence(self.typical, self._smoothed(own, self.smooth), LEAST)
        of_logits = self._smoothed(of_logits, self.smooth_logits)
        far_of_logits = divergence(self.typical_of_logits, of_logits, LEAST_OF_LOGITS)
        return self.softmax_weight * softmax - far - self.logits_weight * far_of_logits

    def _smoothed(self, histograms: Float[Tensor, "batch bins"], width: int) -> Float[Tensor, "batch bins"]:
        if hasattr(self, "smooths_up"):
            return smoothed(histograms, width)
        return smoothed(histograms.flip(1), width).flip(1)  # a fit of an earlier version keeps its scores

    def _histograms(
        self, features: Float[Tensor, "batch features"]
    ) -> tuple[Float[Tensor, "batch bins"], Float[Tensor, "batch bins"], Float[Tensor, " batch"]]:
        """Return the histograms of features and perturbed logits, and the mean over copies of the largest softmax."""
        own, of_logits = Bins(self.range, self.bins), Bins(self.range_of_logits, self.bins)
        counts = features.new_zeros(features.shape[0], self.bins)
        softmax = features.new_zeros(features.shape[0])
        for z in self._logits(features):
            counts += of_logits.counts(z.flatten(1))
            softmax += z.softmax(dim=2).amax(dim=2).sum(dim=1)
        num_logits = self.copies * len(self.weight)
        return own.counts(features) / features.shape[1], counts / num_logits, softmax / self.copies

    def _logits(self, features: Float[Tensor, "batch features"]) -> Iterator[Float[Tensor, "batch copies classes"]]:
        # After a fit or on another device; traced code was scored before.
        if self._head is None or (not is_traced() and self._head.weight is not self.weight):
            self._head = PerturbedHead(
                self.weight, copies=self.copies, strength=self.strength, seed=self.seed, most_bytes=MOST_BYTES
            )
        return self._head.logits(features, self.bias)
