"""Mean softmax per predicted class."""

from torch import Tensor

from oodlit.detectors.statistics.sums import PredictedSums


class ClassProbabilities(PredictedSums):
    """Mean softmax of the training images predicted as class k, in float64.

    The softmax is computed in float64: means of 1e-60 and less occur and matter (KL matching). Memory: C x C doubles.
    """

    needs = frozenset({"logits"})
    source = "logits"

    @staticmethod
    def rows_of(values: Tensor) -> Tensor:
        """The softmax."""
        return values.double().softmax(dim=1)

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the memory of the state, and of the matrices that KL matching derives from it."""
        return 6 * 8 * num_classes * num_classes
