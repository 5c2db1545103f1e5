"""ActSub: energy along the directions that decide, times the similarity to training images along the others."""

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_ints, check_positive
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Features, Head, Outputs, Scores, unit
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.neighbors import check_neighbors, energy_offset, largest_products
from oodlit.detectors.formulas.percentile import check_percentile
from oodlit.detectors.formulas.shaping import LARGEST_EXPONENT, num_kept
from oodlit.detectors.formulas.softmax import logsumexp_
from oodlit.detectors.statistics import Statistics, TrainSample

LEAST_ANGLE = 1e-6
"""Smallest value of one minus a mean cosine, which rounding in float32 could make zero."""
LEAST_IMAGES = 1000
"""Training sets of up to this many images are used completely."""
MOST_NEGATIVE = 0.01
"""Largest fraction of training images in the bank with an energy of zero or less."""
ROWS = 1024
"""Training images processed at a time."""
_IMAGENET = {"percentile": 95.0, "power": 2.0}


@final
class ActSub(Detector):
    """S = E a^l: E the energy of the `SCALE`d decisive part of x, a = -log(1 - the mean of the k largest cosines).

    W = U S V' is the head. The decisive part of x is its projection on the first `dim` right singular vectors.
    The rest of x is compared with the rest of each training image in the bank; these are the cosines. `dim` is
    at most the rank of W, and is chosen so that the mean norms of both parts over the bank are as close as
    possible. s1 and s2 of `SCALE` are sums over the decisive part, whose entries have both signs.

    If more than 1 % of the training energies are not positive, a number is subtracted from all energies, so
    that the smallest becomes one standard deviation; a note reports this. Cosines below zero are replaced by
    zero. The cost per image grows with the bank.

    Args:
        percentile: p of `SCALE` in percent, default 95.
        power: l > 0, default 2. The authors chose both settings, and those of the presets, on OOD data, except for the
            percentiles of the CIFAR presets, which are those of the ASH paper. Defaults are for a ResNet-50 on
            ImageNet.
        dim: Number of decisive vectors. None (default) = by the mean norms.
        k: Number of neighbors, at least 1, default 10.
        bank_size: Number of training images in the bank, chosen by the hash of their keys, at most 50,000. None
            (default) = 10 % of the training images, but 1,000 to 50,000 as far as there are as many.

    Raises:
        InvalidArgumentError: An argument is out of range or, during the fit, `k` is above the number of images in the
            bank, or `dim` is not below the number of features.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> head, detector = Head(torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])), ActSub(dim=2, k=1)
        >>> train = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]])
        >>> fit([detector], [Outputs(head(train), train)], head)
        >>> x = torch.tensor([[1.0, 0.0, 2.0], [1.0, 0.0, -2.0]])  # the rest points the other way
        >>> similar, opposite = detector.score(Outputs(head(x), x))
        >>> bool(similar > opposite)
        True
    """

    needs = frozenset({"features", "head"})
    statistics = (TrainSample,)
    sample_fields = frozenset({"features"})
    invariances = frozenset({"class_permutation"})
    compares_images = True
    host_buffers = frozenset({"bank"})
    presets: ClassVar = {
        "imagenet-resnet50": _IMAGENET,
        "imagenet-vit": {"percentile": 97.5, "power": 1.0},
        "imagenet-mobilenet": {"percentile": 97.5, "power": 0.5},
        "cifar10": {"percentile": 95.0, "power": 2.0},
        "cifar100": {"percentile": 90.0, "power": 2.0},
    }
    tuned_presets: ClassVar = frozenset(presets)
    reference = Reference(
        "Activation Subspaces for Out-of-Distribution Detection",
        "B. Zongur",
        "ICCV",
        2025,
        "https://arxiv.org/abs/2508.21695",
        "the bank has at most 50,000 images, whereas the authors use 10 % of ImageNet (128,116 images) and, for a"
        " ViT, compare with the nearest center of k-means; dim is at most the rank of the head; where energies or"
        " cosines are negative, the authors' product reverses the order of scores, whereas here energies are shifted"
        " if more than 1 % of them are not positive, and negative cosines count as 0",
    )

    def __init__(
        self,
        percentile: float = 95.0,
        power: float = 2.0,
        dim: int | None = None,
        k: int = 10,
        bank_size: int | None = None,
    ) -> None:
        super().__init__()
        self.percentile = check_percentile("ActSub", percentile)
        check_positive("ActSub", power=power)
        check_ints("ActSub", k=k)
        check_ints("ActSub", dim=dim, bank_size=bank_size, optional=True)
        if bank_size is not None and not k <= bank_size <= TrainSample.default_rows:
            raise InvalidArgumentError(
                f"ActSub: expected k={k} <= bank_size <= {TrainSample.default_rows}, got bank_size={bank_size}"
            )
        self.power, self.dim, self.bank_size = power, dim, bank_size
        self.k = self.min_train = k

    def _fit(self, statistics: Statistics, head: Head) -> None:
        sample, unmasked = statistics[TrainSample], head.unmasked.to(dtype=torch.float64)
        size = max(LEAST_IMAGES, sample.num_samples // 10) if self.bank_size is None else self.bank_size
        parts = torch.split(sample.column("features")[:size], ROWS)
        check_neighbors(self, self.k, sum(map(len, parts)))
        _, values, axes = torch.linalg.svd(unmasked.weight)
        parts = tuple(part.to(axes.device) for part in parts)
        rank = int((values > 1e-12 * values[0]).sum())
        dim = _balanced(parts, axes, rank) if self.dim is None else self.dim
        if dim >= len(axes) and self.dim is not None:
            raise InvalidArgumentError(f"{self!r}: expected dim < {len(axes)} (the number of features), got {dim}")
        self.note_setting("dim", dim, f"a decisive part and a rest of similar norm ({len(axes)} features)")
        self.note_setting("bank_size", sum(map(len, parts)), f"{sample.num_samples} training images")
        decisive, rest = axes[:dim].contiguous(), axes[dim:].T.contiguous()
        self.keep(
            axes=decisive,
            weight=unmasked.weight @ decisive.T,
            bias=unmasked.offset,
            rest=rest,
            bank=torch.cat([unit(part.double() @ rest).to(part.dtype) for part in parts]),
        )
        energies = torch.cat([self._energies(part) for part in parts])
        self.keep(offset=energies.new_tensor(energy_offset(self, energies, MOST_NEGATIVE)))

    def _score(self, outputs: Outputs) -> Scores:
        features = outputs.require("features").double()
        cosines, _ = largest_products(unit(features @ self.rest).to(self.bank.dtype), self.bank, self.k)
        similar = cosines.mean(dim=1, dtype=torch.float64).clamp(min=0)
        return (self._energies(features) - self.offset) * (1 - similar).clamp(min=LEAST_ANGLE).log().neg() ** self.power

    def _energies(self, features: Features) -> Scores:
        """Return the energies of the decisive part after SCALE, in float64."""
        coordinates = features.double() @ self.axes.T
        part = coordinates @ self.axes
        largest = part.topk(num_kept(part.shape[1], self.percentile), dim=1, sorted=False).values.sum(dim=1)
        ratio = part.sum(dim=1) / largest.where(largest > 0, torch.ones_like(largest))
        factors = ratio.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp()[:, None]
        return logsumexp_(torch.addmm(self.bias, coordinates * factors, self.weight.T))


def _balanced(parts: tuple[Tensor, ...], axes: Float[Tensor, "features features"], rank: int) -> int:
    """Return how many first axes make the mean norms of both parts of the features closest, 1 to `rank`."""
    differences = axes.new_zeros(len(axes))
    for part in parts:
        squares = (part.double() @ axes.T).square()
        first = squares.cumsum(dim=1)
        # Summed from the other end: a difference would leave rounding errors where nothing remains.
        others = squares.flip(1).cumsum(dim=1).flip(1) - squares
        differences += (first.sqrt() - others.sqrt()).sum(dim=0)
    most = max(1, min(rank, len(axes) - 1))
    return 1 + int(differences[:most].abs().argmin())
