"""Virtual-logit matching."""

from dataclasses import replace
from typing import final

import torch

from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.formulas.residual_space import ResidualDetector, ResidualSpace
from oodlit.detectors.statistics import ClassMoments, Statistics, TrainSample
from oodlit.detectors.subspaces.residual import Residual

LEAST_LEVEL = 0.1
"""Smallest mean of the largest logits that is used for alpha, relative to their excess over the mean logit."""
LARGEST_LEVEL = 2.0
"""Largest mean of the largest logits without a note, relative to the same excess: above it, most of alpha is a
constant."""
LEAST_RESIDUAL = 1e-5
"""Smallest mean residual that is used for alpha, relative to the spread of the features."""


@final
class ViM(ResidualDetector):
    """S = LSE(z) - alpha * |R'(x - u)|, u = -W^+ b: energy minus a virtual logit proportional to the residual.

    R spans the complement of the first `dim` eigenvectors of (1/N) sum (x-u)(x-u)'; alpha = mean(max_c z) /
    mean(|R'(x-u)|) over a sample of the training images (all of them up to 50,000).

    With equal logits, a larger residual lowers the score. If features move far along a unit vector d of the
    residual space, their logits change, too: the score falls if alpha is above max_c W_c d, and rises if alpha
    is below. In directions in which training images vary, alpha is as published, and may be below.

    If this alpha has no meaning, it is replaced, and a note reports this:

    - The mean of the largest logits depends on a constant in the bias that does not affect the softmax. Call
      the mean difference between the largest logit and the mean logit the excess. If the mean of the largest
      logits is below 0.1 of the excess, the excess replaces it. If it is above twice the excess, it is mostly
      such a constant: alpha stays as published, and a note reports this.
    - If training images have no residual (below 1e-5 of their root mean squared distance to their mean), that
      distance replaces it.
    - In directions without variation in training (dead units, fewer images than dimensions), a logit of the
      head may grow with the residual. Alpha is at least twice that slope, so that the score falls when an image
      moves far in such a direction: always if it has no residual, otherwise from 4/3 of its residual on. Such
      directions are never part of the principal space.

    Args:
        dim: Dimension of the principal space, 1 <= dim < features. None (default) = chosen by the width D: 1000 if D >=
            2048, 512 if D >= 768, else D/2.

    Raises:
        InvalidArgumentError: `dim` is below 1 or, during the fit, not below the number of features.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> noise = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
        >>> x = noise * torch.tensor([3.0, 3.0, 3.0, 0.1, 0.1, 0.1])
        >>> head = Head(torch.eye(3, 6))
        >>> detector = ViM(dim=3)
        >>> fit([detector], [Outputs(head(x), x, torch.zeros(200, dtype=torch.int64))], head)
        >>> probe = torch.tensor([[1.0, 1, 1, 0, 0, 0], [1.0, 1, 1, 0, 0, 5]])
        >>> inside, outside = detector.score(Outputs(head(probe), probe))
        >>> bool(inside > outside)
        True
    """

    needs = frozenset({"logits", "features", "head"})
    statistics = (ClassMoments, TrainSample)
    sample_fields = frozenset({"features", "max_logits"})
    invariances = frozenset({"class_permutation", "larger_residual_is_worse"})
    reference = replace(
        Residual.reference,
        deviations=("the score is the logarithm of the authors' softmax form, which ranks images in the same order"),
    )

    def _fit(self, statistics: Statistics, head: Head) -> None:
        space = self._keep_space(statistics, head)
        sample = statistics[TrainSample]
        total = space.origin.new_zeros(())
        for rows in torch.split(sample.column("features", ordered=False), 1024):  # float64 doubles the size
            part = Outputs(features=rows.to(space.origin.device))
            total = total + self._residual_norms(part).sum()
        largest = sample.of_logits("max_logits", ordered=False).sum(dtype=torch.float64)
        alpha = self._alpha(statistics, head, space, float(largest) / sample.num_kept, float(total) / sample.num_kept)
        self.keep(alpha=space.origin.new_tensor(alpha))

    def _alpha(
        self, statistics: Statistics, head: Head, space: ResidualSpace, mean_logit: float, mean_norm: float
    ) -> float:
        """Return alpha as published, unless it is not positive or comes from rounding."""
        weight, bias = head.unmasked.weight.double().mean(dim=0), head.unmasked.offset.double().mean()
        mean = statistics[ClassMoments].mean.to(weight.device)
        excess = mean_logit - float(weight @ mean + bias)  # over the mean of all logits, which removes any constant
        level, scale = mean_logit, mean_norm
        if level < LEAST_LEVEL * excess or level <= 0:
            level = excess if excess > 1e-6 * abs(mean_logit) else 1.0
            self.note(
                f"the mean of the largest logits ({mean_logit:.4g}) is too small to compute alpha; using {level:.4g}"
                " instead: the mean difference between the largest and the average logit, or 1 if this is zero"
            )
        elif level > LARGEST_LEVEL * excess:
            self.note(
                f"the logits have a mean of {mean_logit - excess:.4g} (mean of the largest logits:"
                f" {mean_logit:.4g}). This offset does not affect the softmax, but makes alpha so large that the"
                " residual outweighs the energy. Subtract it from the bias of the head"
            )
        if scale <= LEAST_RESIDUAL * space.spread or scale == 0:
            scale = space.spread if space.spread > 0 else 1.0
            self.note(
                f"the training features have no residual (mean norm {mean_norm:.4g}); alpha is computed from their"
                f" spread ({scale:.4g}) instead. Fit on more images than dimensions, or reduce dim"
            )
        if level / scale < 2 * space.slope:
            self.note(
                f"alpha is raised from {level / scale:.4g} to {2 * space.slope:.4g}. With the lower value, images"
                " far from all training images could get high scores, because the energy grows faster than the residual"
            )
        return max(level / scale, 2 * space.slope)

    def _score(self, outputs: Outputs) -> Scores:
        return outputs.logsumexp - self.alpha * self._residual_norms(outputs)
