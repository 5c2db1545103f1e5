"""CARef: distance to the mean feature of the images with the same prediction."""

from typing import final

from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Reference
from oodlit.detectors.formulas.predicted_means import PredictedMeanDetector
from oodlit.detectors.statistics import PredictedMeans, Statistics


@final
class CARef(PredictedMeanDetector):
    """S = -|x - m|_1 / |x|_1: m the mean feature of the training images with the same prediction.

    A class that is never predicted uses the mean of all training images, and a note reports this. |x|_1 is at
    least 1e-12 of the largest |m|_1, so that an image without activations has the lowest score, but a finite
    one.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> x = torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 2.0]])
        >>> detector = CARef()
        >>> fit([detector], [Outputs(x, x)])
        >>> detector.score(Outputs(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 2.0]]))).tolist()  # m = (3, 0)
        [-0.75]
    """

    needs = frozenset({"logits", "features"})
    statistics = (PredictedMeans,)
    invariances = frozenset({"feature_scale", "class_permutation"})
    reference = Reference(
        "CADRef: Robust Out-of-Distribution Detection via Class-Aware Decoupled Relative Feature Leveraging",
        "Z. Ling",
        "CVPR",
        2025,
        "https://arxiv.org/abs/2503.00325",
        "a class predicted for no training image has no mean in the paper; here, it has the mean of all images",
    )

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        self._keep_means(statistics)

    def _score(self, outputs: Outputs) -> Scores:
        return -self._relative_errors(outputs).abs().sum(dim=1)
