"""BATS: clip activations to their typical range."""

from typing import ClassVar, final

from oodlit.base.checks import check_positive
from oodlit.base.outputs import Features, Head
from oodlit.detectors.contract import GivenDetector, Reference
from oodlit.detectors.formulas.shaping import Shaped, Shaping
from oodlit.detectors.statistics import ClassMoments, Statistics


@final
class BATS(Shaping):
    """S = `then` on the logits of x': every feature clipped to its mean +- l times its standard deviation.

    Mean and standard deviation of each feature are over the training images. A feature that is constant in training
    is replaced by that constant. Choose l for your network and data: on normal features, the default clips 29 % of
    the values, and l = 3.25 clips 0.1 %.

    Args:
        spread: l > 0. Default 1.05, the value in the authors' code for a ViT on ImageNet. For CIFAR-10, the code has
            3.25. It does not state on which data they were chosen.
        then: Detector that scores the new logits, or its name; None (default) = `Energy()`.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> BATS.preset("cifar10")
        BATS(spread=3.25)
    """

    statistics = (ClassMoments,)
    presets: ClassVar = {"imagenet": {"spread": 1.05}, "cifar10": {"spread": 3.25}}
    tuned_presets: ClassVar = frozenset(presets)
    reference = Reference(
        "Boosting Out-of-distribution Detection with Typical Features",
        "Y. Zhu",
        "NeurIPS",
        2022,
        "https://arxiv.org/abs/2210.04200",
        "computes mean and standard deviation of the input of the head from the training images, whereas the authors'"
        " code reads them from files, and the paper uses those stored in batch normalization; the authors' code"
        " does not state how the setting 'spread' (their lambda) was chosen, so their values count as tuned on OOD"
        " data",
    )

    def __init__(self, spread: float = 1.05, then: GivenDetector = None) -> None:
        super().__init__(then)
        check_positive("BATS", spread=spread)
        self.spread = spread

    def _prepare(self, statistics: Statistics, head: Head) -> None:
        moments = statistics[ClassMoments]
        mean, reach = moments.mean, self.spread * moments.variances.sqrt()
        self.keep(floor=mean - reach, cap=mean + reach)

    def _shape(self, features: Features) -> Shaped:
        return features.clamp(self.floor.to(features.dtype), self.cap.to(features.dtype)), None
