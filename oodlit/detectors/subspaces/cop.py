"""Kernel PCA with the cosine kernel."""

from typing import ClassVar, final

from torch import Tensor

from oodlit.base.outputs import Head, Outputs
from oodlit.detectors.contract import Reference
from oodlit.detectors.formulas.principal_axes import KernelPCA, check_share
from oodlit.detectors.statistics import Statistics, UnitMoments


@final
class CoP(KernelPCA):
    """S = -|(I - UU')(f - mean)|, f = x / |x|; U the fewest principal axes of f that reach a fraction of its variance.

    Mean and covariance are over the training images; a zero feature vector stays zero.

    Args:
        variance: The fraction, between 0 and 1. Default 0.99, the authors' value for a ResNet-50 on ImageNet; they use
            others for other networks, and do not state on which data they chose them.

    Raises:
        InvalidArgumentError: `variance` is out of range.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> train = torch.tensor([[1.0, 0.0, 0.0], [3.0, 3.0, 0.0], [0.0, 2.0, 0.0]])
        >>> detector = CoP(variance=0.9)
        >>> fit([detector], [Outputs(features=train, labels=torch.zeros(3, dtype=torch.int64))])
        >>> inside, outside = detector.score(Outputs(features=torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])))
        >>> bool(inside > outside)
        True
    """

    needs = frozenset({"features"})
    statistics = (UnitMoments,)
    invariances = frozenset({"feature_rotation", "feature_scale", "class_permutation"})
    presets: ClassVar = {
        "imagenet-resnet50": {"variance": 0.99},
        "imagenet-resnet50-supcon": {"variance": 0.7},
        "cifar10-resnet18": {"variance": 0.85},
    }
    tuned_presets: ClassVar = frozenset(presets)
    reference = Reference(
        "Kernel PCA for Out-of-Distribution Detection",
        "K. Fang",
        "NeurIPS",
        2024,
        "https://arxiv.org/abs/2402.02949",
        "the authors' product of the reconstruction error and another score is not offered; axes of equal"
        " variance are kept or removed together, and at least one axis is removed; the authors do not state how they"
        " chose the fractions of the presets, so the presets count as tuned on OOD data",
    )

    def __init__(self, variance: float = 0.99) -> None:
        super().__init__()
        self.variance = check_share("CoP", "variance", variance)

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        self._keep_rest(statistics[UnitMoments], self.variance)

    def _rows(self, outputs: Outputs) -> Tensor:
        return UnitMoments.rows_of(outputs)
