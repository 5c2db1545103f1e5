"""Mean softmax per predicted class."""

import torch
from torch import Tensor

from oodlit.detectors.statistics.sums import Sums
from oodlit.outputs import Outputs


class ClassProbabilities(Sums):
    """Mean softmax of the training images predicted as class k, in float64.

    The softmax itself is taken in float64: means of 1e-60 and less occur and matter (KL matching).
    Memory: C x C doubles.
    """

    needs = frozenset({"logits"})
    sums: Tensor
    class_counts: Tensor

    def __init__(self) -> None:
        counts, sums = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 0, dtype=torch.float64)
        super().__init__(class_counts=counts, sums=sums)

    def accumulate(self, outputs: Outputs) -> None:
        """Take in one batch."""
        logits = outputs.require("logits")
        num_classes = logits.shape[1]
        self.allocate({"class_counts": (num_classes,), "sums": (num_classes, num_classes)}, logits.device)
        self.class_counts += torch.bincount(outputs.predictions, minlength=num_classes)
        self.sums.index_add_(0, outputs.predictions, logits.double().softmax(dim=1))

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state."""
        return 8 * num_classes * num_classes

    @property
    def num_samples(self) -> int:
        """Number of training images seen."""
        return int(self.class_counts.sum())

    @property
    def counts(self) -> Tensor:
        """Images predicted as each class, int64, shape (classes,)."""
        return self.class_counts

    @property
    def means(self) -> Tensor:
        """Mean softmax per predicted class, float64, (classes, classes); rows of never predicted classes are NaN."""
        return self.sums / self.class_counts[:, None]
