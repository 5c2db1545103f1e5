"""Distance to the k-th nearest training image."""

from typing import ClassVar, final

import torch

from oodlit.base.checks import check_ints
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.neighbors import check_neighbors, default_k, kth_distances
from oodlit.detectors.statistics import FeatureBank, Statistics


@final
class KNN(Detector):
    """S = -|q - n_k|: q the unit feature, n_k the k-th nearest unit feature of the training images.

    The distance is exact to 1e-6 relative, for any bank size and scale of features. The direction of a zero vector is
    the zero vector. Memory: the bank (rows x features), which is placed on the device of a run if it fits; otherwise
    its parts are moved there for every batch.

    Args:
        k: Which neighbor, 1 <= k <= images in the bank. None (default) = 0.1 % of the bank, at most 1000;
            with fewer than 10,000 images, 1 %, at most 10. A note states it. For the complete training sets, this is
            the authors' k: 50 for CIFAR and 1000 for ImageNet.
        bank_size: Number of training images to keep, chosen by the hash of their keys; None (default) = all.

    Raises:
        InvalidArgumentError: `k` is below 1 or above `bank_size`, or during the fit above the number of images in the
            bank.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> detector = KNN(k=2)
        >>> fit([detector], [Outputs(features=torch.tensor([[2.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))])
        >>> detector.score(Outputs(features=torch.tensor([[1.0, 0.0]]))).tolist()  # second: (0.6, 0.8)
        [-0.894427...]
    """

    needs = frozenset({"features"})
    statistics = (FeatureBank,)
    invariances = frozenset({"feature_scale", "feature_rotation", "class_permutation"})
    presets: ClassVar = {"full": {"k": 1000, "bank_size": None}, "1-percent": {"k": 10, "bank_size": 12_811}}
    reference = Reference(
        "Out-of-Distribution Detection with Deep Nearest Neighbors",
        "Y. Sun",
        "ICML",
        2022,
        "https://arxiv.org/abs/2204.06507",
        "a bank smaller than the training set is chosen by the hash of the keys, whereas the authors draw it at random",
    )
    compares_images = True
    host_buffers = frozenset({"bank", "norms", "neighbour"})

    def __init__(self, k: int | None = None, bank_size: int | None = None) -> None:
        super().__init__()
        check_ints("KNN", k=k, bank_size=bank_size, optional=True)
        if bank_size is not None and k is not None and k > bank_size:
            raise InvalidArgumentError(f"KNN: k={k} is above bank_size={bank_size}; use k <= {bank_size}")
        self.k = k
        self.min_train = 1 if k is None else k
        self.bank_size = bank_size

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        bank, norms = statistics[FeatureBank].bank(self.bank_size)
        k = default_k(len(bank)) if self.k is None else self.k
        if self.k is None:
            self.note(f"k={k}, chosen for a bank of {len(bank)} training images; the presets use the k of the paper")
        check_neighbors(self, k, len(bank))
        self.keep(bank=bank, norms=norms, neighbour=torch.tensor(k))

    def _score(self, outputs: Outputs) -> Scores:
        return -kth_distances(outputs.require("features"), self.bank, self.norms, int(self.neighbour))
