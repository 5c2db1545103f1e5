"""Energy guided by the nearest training images."""

from typing import final

import torch

from oodlit.base.checks import check_ints
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Head, Outputs, Scores, unit
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.neighbors import check_neighbors, energy_offset, largest_products
from oodlit.detectors.statistics import Statistics, TrainSample


@final
class NNGuide(Detector):
    """S = LSE(z) * mean of the k largest products of the unit feature with the bank of unit features times LSE(z).

    If more than a quarter of the energies in the bank are not positive, a number is subtracted from all
    energies, so that the smallest becomes one standard deviation; a note reports this. Such energies result
    from a constant in the bias, which does not affect the softmax.

    Args:
        k: Number of neighbors, 1 <= k <= images in the bank; default 10.
        bank_size: Number of training images in the bank, chosen by the hash of their keys, at most 50,000; default
            12,811, 1 % of ImageNet-1k. Smaller training sets are used completely.

    Raises:
        InvalidArgumentError: An argument is out of range or, during the fit, `k` is above the number of images in the
            bank.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> detector = NNGuide(k=1)
        >>> fit([detector], [Outputs(x, x)])
        >>> near, far = detector.score(Outputs(torch.ones(2, 2), torch.tensor([[0.0, 1.0], [0.0, -1.0]])))
        >>> bool(near > far)
        True
    """

    needs = frozenset({"logits", "features"})
    statistics = (TrainSample,)
    sample_fields = frozenset({"features", "logsumexp"})
    invariances = frozenset({"class_permutation"})
    compares_images = True
    host_buffers = frozenset({"bank"})
    reference = Reference(
        "Nearest Neighbor Guidance for Out-of-Distribution Detection",
        "J. Park",
        "ICCV",
        2023,
        "https://arxiv.org/abs/2309.14888",
        "training images of the bank (by default 12,811, or 1 % of ImageNet) are chosen by the hash of their keys",
    )

    def __init__(self, k: int = 10, bank_size: int = 12_811) -> None:
        super().__init__()
        check_ints("NNGuide", k=k, bank_size=bank_size)
        if not k <= bank_size <= TrainSample.default_rows:
            raise InvalidArgumentError(
                f"NNGuide: expected k={k} <= bank_size <= {TrainSample.default_rows}, got bank_size={bank_size}"
            )
        self.k = self.min_train = k
        self.bank_size = bank_size

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        sample = statistics[TrainSample]
        features = sample.column("features")[: self.bank_size]
        check_neighbors(self, self.k, len(features))
        energies = sample.of_logits("logsumexp")[: self.bank_size]
        offset = energy_offset(self, energies)
        self.keep(
            offset=energies.new_tensor(offset, dtype=torch.float64),
            bank=unit(features).mul_(energies[:, None] - offset),
        )

    def _score(self, outputs: Outputs) -> Scores:
        values, _ = largest_products(outputs.unit_features.to(self.bank.dtype), self.bank, self.k)
        return (outputs.logsumexp.double() - self.offset) * values.mean(dim=1, dtype=torch.float64)
