"""OpenMax: logits revised by the extreme values of each class."""

from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oodlit.base.checks import check_ints
from oodlit.base.errors import RequirementError
from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.statistics import Statistics, TrainSample, train_labels

LEAST_LEVEL = 0.1
"""Smallest mean of the largest logits that is used unchanged, relative to its excess over the mean logit."""


@final
class OpenMax(Detector):
    """S = LSE(v) - v_0, the log odds of "known": P(unknown) = 1 / (1 + exp(S)).

    Each class has the mean logit vector of its correctly classified training images, and a Weibull distribution of
    the `tail` largest distances to it. The `alpha` largest logits are revised, v_c = z_c (1 - w_c (alpha - rank_c) /
    alpha) with rank 0 for the largest and w_c the Weibull probability of the distance to class c; v_0 is the sum of
    what they lose. If the largest logits are not positive on average, the smallest logit of training is subtracted
    from all logits, and a note reports this. A class without correctly classified images is never revised, and a note
    reports this, too. A masked class, with a logit of minus infinity, contributes to no distance and loses nothing.

    Args:
        tail: Number of largest distances per class, at least 2, default 20; all of them if there are fewer.
        alpha: Number of largest logits to revise, at least 1, default 10; at most the number of classes.

    Raises:
        InvalidArgumentError: An argument is out of range.
        RequirementError: During the fit, no training image is classified correctly.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> noise = 0.5 * torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
        >>> labels = torch.arange(100) % 2
        >>> detector = OpenMax()
        >>> fit([detector], [Outputs(8 * torch.eye(2)[labels] + noise, labels=labels)])
        >>> near, far = detector.score(Outputs(torch.tensor([[8.0, 0.0], [16.0, 12.0]])))
        >>> bool(near > far)
        True
    """

    needs = frozenset({"logits", "labels"})
    statistics = (TrainSample,)
    invariances = frozenset({"class_permutation"})
    reference = Reference(
        "Towards Open Set Deep Networks",
        "A. Bendale and T. Boult",
        "CVPR",
        2016,
        "https://arxiv.org/abs/1511.06233",
        "distances are Euclidean (the authors use the cosine distance plus 1/200 of the Euclidean distance); tails are"
        " shifted to start at 1, as in the current version of libMR, the authors' library (the version in their program"
        " shifts them to 10,000); at most 50,000 training images are used (the authors use all); the score is the log"
        " odds of the known classes (the authors use a probability)",
    )

    def __init__(self, tail: int = 20, alpha: int = 10) -> None:
        super().__init__()
        check_ints("OpenMax", tail=tail, at_least=2)
        check_ints("OpenMax", alpha=alpha)
        self.tail = tail
        self.alpha = alpha

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        sample = statistics[TrainSample].outputs
        labels = train_labels(sample, sample.require("logits").shape[1])
        right = sample.predictions == labels
        if not right.any():
            raise RequirementError(f"{self!r}: all {len(labels)} training images are misclassified; check their labels")
        offset = self._offset(sample.require("logits")[right].double())
        self.keep(offset=torch.tensor(offset, dtype=torch.float64))
        logits, labels = _unmasked(sample.require("logits")[right].double() - offset), labels[right]
        num_classes = logits.shape[1]
        counts = torch.bincount(labels, minlength=num_classes)
        means = logits.new_zeros(num_classes, num_classes).index_add_(0, labels, logits)
        means /= counts.clamp(min=1)[:, None]
        distances = torch.linalg.vector_norm(logits - means[labels], dim=1)
        tails, valid = _largest_per_class(distances, labels, counts, self.tail)
        self.note_classes(
            counts == 0, "have no correctly classified training images; the logits of such classes stay unchanged"
        )
        # The tail is shifted to start at 1, the default of libMR 0.1.9; the version in the authors' program has 10,000.
        starts = tails.where(valid, torch.full_like(tails, float("inf"))).amin(dim=1)
        shapes, scales = weibull_fit((tails - starts[:, None] + 1).where(valid, torch.ones_like(tails)), valid)
        self.keep(means=means, shapes=shapes, scales=scales, starts=starts)

    def _offset(self, logits: Float[Tensor, "batch classes"]) -> float:
        """Return zero, as published, or the smallest logit if the largest ones are not positive on average."""
        unmasked = logits[logits > -float("inf")]
        level = float(logits.amax(dim=1).mean())
        if level > 0 and level >= LEAST_LEVEL * (level - float(unmasked.mean())):
            return 0.0
        offset = float(unmasked.amin())
        self.note(
            "OpenMax requires the largest logit of an image to be clearly positive, but the mean of the largest logits"
            f" is {level:.4g}; the smallest of all logits ({offset:.4g}) is subtracted from every logit"
        )
        return offset

    def _score(self, outputs: Outputs) -> Scores:
        logits = outputs.require("logits").double() - self.offset
        alpha = min(self.alpha, logits.shape[1])
        top, classes = logits.topk(alpha, dim=1)
        revised, unknown, unmasked = logits, logits.new_zeros(logits.shape[0]), _unmasked(logits)
        for rank in range(alpha):
            label = classes[:, rank]
            distance = torch.linalg.vector_norm(unmasked - self.means[label], dim=1)
            # An absent class starts at infinity: its excess is minus infinity, its probability 0.
            excess = (distance - self.starts[label] + 1).clamp(min=0)
            outside = -torch.expm1(-((excess / self.scales[label]) ** self.shapes[label]))
            loss = _unmasked(top[:, rank]) * outside * (alpha - rank) / alpha
            revised = revised.scatter(1, label[:, None], (top[:, rank] - loss)[:, None])
            unknown = unknown + loss
        return revised.logsumexp(dim=1) - unknown


def weibull_fit(
    values: Float[Tensor, "classes tail"], valid: Bool[Tensor, "classes tail"]
) -> tuple[Float[Tensor, " classes"], Float[Tensor, " classes"]]:
    """Fit shape and scale of Weibull distributions by maximum likelihood, for all classes in one call.

    The shape k solves sum x^k log x / sum x^k - 1/k = mean log x; the left side increases with k: bisection in [1e-2,
    1e4].

    Args:
        values: Positive.
        valid: Entries to use; a class without any gets shape and scale 1.
    """
    logs, counts = values.log(), valid.sum(dim=1).clamp(min=1)
    mean = (logs * valid).sum(dim=1) / counts
    outside = torch.zeros_like(logs).masked_fill(~valid, -float("inf"))
    empty = ~valid.any(dim=1)
    outside[empty] = 0
    low = torch.full_like(mean, 1e-2).log()
    high = torch.full_like(mean, 1e4).log()
    for _ in range(60):
        middle = (low + high) / 2
        shape = middle.exp()
        weights = (shape[:, None] * logs + outside).softmax(dim=1)
        above = (weights * logs).sum(dim=1) - 1 / shape > mean
        low, high = low.where(above, middle), middle.where(above, high)
    shape = ((low + high) / 2).exp()
    scale = (((shape[:, None] * logs + outside).logsumexp(dim=1) - counts.double().log()) / shape).exp()
    one = torch.ones_like(shape)
    return shape.where(~empty, one), scale.where(~empty, one)


def _unmasked(logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Replace minus infinity by zero: a masked class contributes to no distance and loses nothing."""
    return logits.where(logits > -float("inf"), torch.zeros_like(logits))


def _largest_per_class(
    values: Float[Tensor, " batch"], labels: Int[Tensor, " batch"], counts: Int[Tensor, " classes"], size: int
) -> tuple[Float[Tensor, "classes tail"], Bool[Tensor, "classes tail"]]:
    """Return the `size` largest values of every class, and which entries are real."""
    order = values.argsort(descending=True, stable=True)
    order = order[labels[order].argsort(stable=True)]  # by class, then in descending order
    starts = counts.cumsum(0) - counts
    rank = torch.arange(len(values)) - starts[labels[order]]
    kept = order[rank < size]
    result = values.new_zeros(len(counts), size)
    valid = torch.zeros(len(counts), size, dtype=torch.bool)
    result[labels[kept], rank[rank < size]] = values[kept]
    valid[labels[kept], rank[rank < size]] = True
    return result, valid
