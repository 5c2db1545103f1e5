"""NAC: how many training images activated each feature like this image."""

from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.checks import check_ints, check_positive
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Head, Outputs
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.statistics import Statistics, TrainSample

BASE = 1000.0
"""Base of the logarithm that spaces the bin edges."""
ROWS = 256
"""Training images processed at a time."""


@final
class NAC(Detector):
    """S = mean_j min(n_j / O, 1): n_j training images have their state t_j in the same bin, t_j = sigmoid(a x_j g_j).

    g is the gradient of LSE(z) - mean z with respect to the features, W'(softmax(z) - 1/C). The more a feature
    contributes to the prediction, the farther its state is from 1/2. Bins are finer near 1/2. Only the last
    features are used, for which the gradient has a closed form. The fit uses a sample of the training images,
    with the logits of the head. Classes that the head masks are left out.

    Args:
        bins: M, an even number, at least 4, default 50: the authors' number of edges; there are M - 2 bins.
        enough: O, the number of training images at which a bin counts fully, at least 1, default 10. The authors tuned
            it and `bins` on OOD data; the defaults are theirs for the pooled features of a ResNet-50 on ImageNet.
        steepness: a > 0. None (default) = 1 over the root mean square of x_j g_j in training, our own default: the
            authors' values, tuned on OOD data, suit the scale of one network; in others all states may be 0 or 1.
        images: Number of training images to count, default 1000.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> NAC.preset("imagenet-vit")
        NAC(enough=500, steepness=100.0, images=50000)
        >>> from oodlit.detectors import fit
        >>> x = torch.tensor([[3.0, 0.0], [0.0, 3.0], [3.1, 0.0], [0.0, 3.1]])
        >>> head, detector = Head(torch.eye(2)), NAC(bins=6, enough=2)
        >>> fit([detector], [Outputs(features=x)], head)
        >>> detector.score(Outputs(features=torch.tensor([[3.2, 0.0], [-1.0, -1.2]]))).tolist()
        [1.0, 0.5]
    """

    needs = frozenset({"features", "head"})
    statistics = (TrainSample,)
    invariances = frozenset({"class_permutation"})
    presets: ClassVar = {
        "imagenet-resnet50": {"bins": 50, "enough": 10, "steepness": 3000.0, "images": 1000},
        "imagenet-vit": {"bins": 50, "enough": 500, "steepness": 100.0, "images": 50_000},
    }
    tuned_presets: ClassVar = frozenset(presets)
    reference = Reference(
        "Neuron Activation Coverage: Rethinking Out-of-distribution Detection and Generalization",
        "Y. Liu",
        "ICLR",
        2024,
        "https://arxiv.org/abs/2306.02879",
        "by default, the steepness is computed from the training images, whereas the authors tune it; only the last"
        " features are used, whereas the authors' best results are averages over four layers; training images are"
        " chosen by the hash of their keys, whereas the authors choose one per class",
    )

    def __init__(self, bins: int = 50, enough: int = 10, steepness: float | None = None, images: int = 1000) -> None:
        super().__init__()
        check_ints("NAC", bins=bins, at_least=4)
        check_ints("NAC", enough=enough, images=images)
        if bins % 2:
            raise InvalidArgumentError(f"NAC: expected bins to be even, got {bins}")
        if steepness is not None:
            check_positive("NAC", steepness=steepness)
        self.bins, self.enough, self.steepness, self.images = bins, enough, steepness, images

    def _fit(self, statistics: Statistics, head: Head) -> None:
        unmasked = head.unmasked.to(dtype=torch.float64)
        edges = inner_edges(self.bins).to(head.weight.device)
        self.keep(weight=unmasked.weight, bias=unmasked.offset, edges=edges)
        features = statistics[TrainSample].column("features")[: self.images]
        parts = [part.to(head.weight.device) for part in torch.split(features, ROWS)]
        self.keep(slope=self._steepness(parts))
        why = f"contributions to the prediction (feature times gradient) with root mean square {1 / self.slope:.3g}"
        self.note_setting("steepness", f"{self.slope:.3g}", why)
        counts = torch.zeros(head.width * (self.bins - 2), dtype=torch.int64, device=head.weight.device)
        for part in parts:
            counts += torch.bincount(self._places(part).flatten(), minlength=len(counts))
        self.keep(coverage=(counts.double() / self.enough).clamp(max=1))

    def _steepness(self, parts: list[Tensor]) -> Tensor:
        if self.steepness is not None:
            return self.weight.new_tensor(self.steepness)
        squares = torch.stack([self._influence(part).square().sum() for part in parts]).sum()
        size = (squares / sum(part.numel() for part in parts)).sqrt()
        return 1 / size.where(size > 0, torch.ones_like(size))

    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        return self.coverage[self._places(outputs.require("features"))].mean(dim=1)

    def _places(self, features: Float[Tensor, "batch features"]) -> Int[Tensor, "batch features"]:
        """Return the index of each state's bin among the bins of all features."""
        states = (self.slope * self._influence(features)).sigmoid()
        first = torch.arange(states.shape[1], device=states.device) * (self.bins - 2)
        return first + torch.bucketize(states, self.edges, right=True)

    def _influence(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        """x_j g_j, float64."""
        x = features.contiguous().double()
        p = torch.addmm(self.bias, x, self.weight.T).softmax(dim=1)
        return x * ((p - 1 / len(self.bias)) @ self.weight)


def inner_edges(bins: int) -> Float[Tensor, " edges"]:
    """Return the edges between the M - 2 bins of [0, 1]: log_1000 of M / 2 steps from 1 to sqrt(1000), mirrored at 1/2.

    Example:
        >>> [round(edge, 3) for edge in inner_edges(6).tolist()]
        [0.404, 0.5, 0.596]
    """
    lower = torch.linspace(1, BASE**0.5, bins // 2, dtype=torch.float64).log()[1:-1] / torch.tensor(BASE).double().log()
    return torch.cat([lower, torch.tensor([0.5], dtype=torch.float64), 1 - lower.flip(0)])
