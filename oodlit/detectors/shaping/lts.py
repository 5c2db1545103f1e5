"""LTS: scale logits by how peaked the features are."""

from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from oodlit.base.outputs import Head, Outputs
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.peakedness import mean_bias, scaled_energy, sum_ratio
from oodlit.detectors.formulas.percentile import check_percentile
from oodlit.detectors.formulas.shaping import num_kept
from oodlit.detectors.statistics import Statistics


@final
class LTS(Detector):
    """S = c + LSE(r^2 (z - c)), r = s1 / s2: s1 the sum of max(x, 0), s2 that of its largest entries; c the mean bias.

    s2 has D - round(D p / 100) entries, at least one. c is a constant that does not affect the softmax, and is
    about 0 in networks trained with weight decay. The authors scale c, too. This implementation does not,
    because a scaled c that differs from 0 would determine the order of images, and could even reverse it.

    Unlike `SCALE`, LTS also scales differences within the bias. If no feature is positive, r = 1. Negative
    features are replaced by zero, so on features of both signs LTS is far worse than other detectors (44.8 %
    AUROC on a Swin-B).

    Args:
        percentile: p in percent, 0 or from 1 to 100, default 95.

    Raises:
        InvalidArgumentError: The percentile is out of range.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> detector = LTS(percentile=50.0)
        >>> fit([detector], [], Head(torch.eye(2)))
        >>> x = torch.tensor([[1.0, 1.0]])
        >>> detector.score(Outputs(torch.tensor([[2.0, -9.0]]), x))  # r = 2
        tensor([8.], dtype=torch.float64)
    """

    needs = frozenset({"logits", "features", "head"})
    assumes_non_negative = True
    invariances = frozenset({"feature_scale", "class_permutation"})
    presets: ClassVar = {"imagenet": {"percentile": 95.0}}
    reference = Reference(
        "Logit Scaling for Out-of-Distribution Detection",
        "A. Djurisic",
        "Machine Vision and Applications",
        2025,
        "https://arxiv.org/abs/2409.01175",
        "the mean of the bias is not scaled, whereas the authors scale it; r = 1, not 0 / 0, if no feature is positive",
    )

    def __init__(self, percentile: float = 95.0) -> None:
        super().__init__()
        self.percentile = check_percentile("LTS", percentile)

    def _fit(self, statistics: Statistics, head: Head) -> None:
        self.keep(constant=mean_bias(head))

    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        features = outputs.require("features")
        ratio = sum_ratio(features, num_kept(features.shape[1], self.percentile))
        return scaled_energy(outputs.require("logits"), ratio, self.constant)
