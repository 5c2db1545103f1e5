"""WeiPer+KLD: histograms of the features and of logits under perturbed weights."""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_choice, check_ints, check_positive, check_seed, is_traced
from oodlit.base.outputs import BackboneFacts, Features, Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.histograms import Bins, InPlaceBins, divergence, smoothed
from oodlit.detectors.formulas.perturbed_head import PerturbedHead, PerturbedLogits, size_of, table_of_cosines
from oodlit.detectors.statistics import Statistics, TrainSample

LEAST, LEAST_OF_LOGITS = 0.01, 0.025
"""Added to every bin of the histograms of features and logits."""
ROWS = 256
"""Training images whose perturbed logits are computed at a time."""
MANY_CLASSES = 200
"""Number of classes from which logits are perturbed by default."""
LOG2_E = 1 / math.log(2)
SMALLEST = -60.0
"""Logits farther below the largest count for nothing; their exponentials would be subnormal, which is slow."""
MOST_BYTES = 2**31
"""Maximum size for keeping the perturbed weights."""
_IMAGENET = {"logits_weight": 2.5, "smooth": 40, "smooth_logits": 15}


@final
class WeiPer(Detector):
    """S = -(K + l1 K~) + l2 * mean max softmax: K of the feature histogram, K~ of logits under perturbed weights.

    K = KL(p || q) + KL(q || p). q is the histogram of the D features of the image, with bins from the smallest
    to the largest training feature; p is the mean histogram of the training images. q is smoothed by a moving
    average, p is not. K~ is the same for the logits of `copies` of the head, w + d |w| n / |n|, with a normal n
    per copy and class. The mean in S is over the copies. Values outside the bins only count in the total.
    Classes that the head masks are left out.

    The training images are read twice, so a sample is used. With `perturb="weights"`, scoring an image costs `copies`
    products with the head, in float64. The draws follow from the seed and are not part of the saved fit. Memory: the
    perturbed weights, 1.6 GB for 2048 features and 1000 classes; above 2 GiB they are drawn again for every batch,
    which takes ten times as long.

    With `perturb="logits"`, z + d |w| |x| g replaces the logits, g the cosine of a random direction with a fixed one.
    For a single image, this has the same distribution, at the cost of one product and copies x classes
    additions. All images share the draws of g, which are saved with the fit (8 x copies x classes bytes). The
    rankings of both forms agree as closely as those of two seeds.

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
        seed: Seed of n or g, 0 to 2^32 - 1, default 0.
        perturb: "weights" or "logits". None (default) = "logits" from 200 classes on.

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
        "by default, uses mean histograms of 1,000 training images, whereas the authors use 300,000; draws the"
        " perturbations once, whereas the authors' program draws them again for every batch",
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
        perturb: Literal["weights", "logits"] | None = None,
    ) -> None:
        super().__init__()
        check_ints("WeiPer", copies=copies, bins=bins, smooth=smooth, smooth_logits=smooth_logits, images=images)
        check_seed("WeiPer", seed)
        weights = {"strength": strength, "logits_weight": logits_weight, "softmax_weight": softmax_weight}
        check_positive("WeiPer", **weights, or_zero=True)
        self.copies, self.strength, self.bins, self.images, self.seed = copies, strength, bins, images, seed
        self.logits_weight, self.softmax_weight = logits_weight, softmax_weight
        self.smooth, self.smooth_logits = smooth, smooth_logits
        if perturb is not None:
            check_choice("WeiPer", "perturb", perturb, ("weights", "logits"))
        self.perturb = perturb
        self._head: PerturbedHead | PerturbedLogits | None = None

    def kept_bytes(self, facts: BackboneFacts) -> int:
        """Return the memory of the perturbed weights, or of one copy; that of the table if logits are perturbed."""
        if self._is_cheap(facts.num_classes):
            return size_of(facts.num_classes, self.copies)
        all_of_them = size_of(facts.width * facts.num_classes, self.copies)
        return all_of_them if all_of_them <= MOST_BYTES else size_of(facts.width * facts.num_classes, 1)

    def _fit(self, statistics: Statistics, head: Head) -> None:
        unmasked = head.unmasked.to(dtype=torch.float64)
        self.keep(weight=unmasked.weight, bias=unmasked.offset)
        if self._is_cheap(len(unmasked.weight)):
            classes, width = unmasked.weight.shape
            table = table_of_cosines(self.copies, classes, width, self.seed)
            self.keep(table=table.to(unmasked.weight.device))
        elif hasattr(self, "table"):  # of an earlier fit
            del self.table
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
        self, features: Features
    ) -> tuple[Float[Tensor, "batch bins"], Float[Tensor, "batch bins"], Float[Tensor, " batch"]]:
        """Return the histograms of features and perturbed logits, and the mean over copies of the largest softmax."""
        own, of_logits = Bins(self.range, self.bins), Bins(self.range_of_logits, self.bins)
        head = self._perturbed()
        if isinstance(head, PerturbedLogits) and features.device.type == "cpu" and not is_traced():
            return own.counts(features) / features.shape[1], *self._one_by_one(features, head)
        counts = features.new_zeros(features.shape[0], self.bins)
        softmax = features.new_zeros(features.shape[0])
        for z in self._logits(features):
            counts += of_logits.counts(z.flatten(1))
            softmax += z.softmax(dim=2).amax(dim=2).sum(dim=1)
        num_logits = self.copies * len(self.weight)
        return own.counts(features) / features.shape[1], counts / num_logits, softmax / self.copies

    def _logits(self, features: Features) -> Iterator[Float[Tensor, "batch copies classes"]]:
        head = self._perturbed()
        return head.logits(features, self.bias) if isinstance(head, PerturbedHead) else head.logits(features)

    def _one_by_one(self, features: Features, head: PerturbedLogits) -> tuple[Float[Tensor, "batch bins"], Scores]:
        """Return the histograms of logits and the mean largest softmax, image by image in the same memory.

        Allocating the logits of all images takes several times as long as their computation.
        """
        counts = features.new_empty(len(features), self.bins)
        softmax = features.new_empty(len(features))
        values, below = torch.empty_like(self.table), torch.empty_like(self.table)
        ratios = below.float()  # powers are far faster in float32, and exact to 1e-6 for differences
        bins = InPlaceBins(self.range_of_logits, self.bins, tuple(self.table.shape))
        for i, (logits, reach) in enumerate(zip(*head.parts(features), strict=True)):
            torch.addcmul(logits, reach, self.table, out=values)
            counts[i] = bins.count(values)
            torch.sub(values, values.amax(dim=1, keepdim=True), out=below)
            softmax[i] = ratios.copy_(below).clamp_(min=SMALLEST).mul_(LOG2_E).exp2_().sum(dim=1).reciprocal_().mean()
        return counts / self.table.numel(), softmax

    def _is_cheap(self, num_classes: int) -> bool:
        return num_classes >= MANY_CLASSES if self.perturb is None else self.perturb == "logits"

    def _perturbed(self) -> PerturbedHead | PerturbedLogits:
        # After a fit or on another device; traced code was scored before.
        if self._head is None or (not is_traced() and self._head.weight is not self.weight):
            if hasattr(self, "table"):
                self._head = PerturbedLogits(self.weight, self.bias, self.table, self.strength)
            else:
                self._head = PerturbedHead(
                    self.weight, copies=self.copies, strength=self.strength, seed=self.seed, most_bytes=MOST_BYTES
                )
        return self._head
