"""ASH: remove all but the largest activations."""

from typing import ClassVar, Literal, final

import torch

from oodlit.base.checks import check_choice
from oodlit.base.outputs import Features
from oodlit.detectors.contract import GivenDetector, Reference
from oodlit.detectors.formulas.percentile import check_percentile
from oodlit.detectors.formulas.shaping import (
    Shaped,
    Shaping,
    check_non_negative,
    largest_mask,
    non_negative_features,
    num_kept,
)


@final
class ASH(Shaping):
    """S = `then` on the logits of pruned features: the k = D - round(D p / 100) largest entries of x stay, k >= 1.

    With s1 and s2 the sums before and after pruning, variant "p" leaves the remaining entries unchanged, "b" sets them
    to s1 / k and "s" multiplies them by exp(s1 / s2). The first of equal entries stay. Features must not be negative.

    Args:
        variant: "s" (default), "p" or "b".
        percentile: p in percent, 0 or from 1 to 100, default 90.
        then: Detector that scores the new logits, or its name; None (default) = `Energy()`.

    Raises:
        InvalidArgumentError: An argument is out of range.
        RequirementError: During scoring, a feature is negative.

    Example:
        >>> from oodlit.detectors import MaxLogit, fit
        >>> from oodlit.outputs import Head, Outputs
        >>> detector, head = ASH(variant="b", percentile=50.0, then=MaxLogit()), Head(torch.eye(4))
        >>> fit([detector], [], head)
        >>> x = torch.tensor([[4.0, 1.0, 3.0, 0.0]])  # 4 and 3 stay, each becomes 8 / 2
        >>> [round(s, 4) for s in detector.score(Outputs(head(x), x)).tolist()]
        [4.0]
    """

    assumes_non_negative = True
    requirements = (non_negative_features,)
    presets: ClassVar = {
        "s-90": {"variant": "s", "percentile": 90.0},
        "b-65": {"variant": "b", "percentile": 65.0},
        "p-60": {"variant": "p", "percentile": 60.0},
    }
    reference = Reference(
        "Extremely Simple Activation Shaping for Out-of-Distribution Detection",
        "A. Djurisic",
        "ICLR",
        2023,
        "https://arxiv.org/abs/2209.09858",
        "among equal entries, the first ones are kept, whereas the authors' code does not define which ones",
    )

    def __init__(
        self, variant: Literal["s", "p", "b"] = "s", percentile: float = 90.0, then: GivenDetector = None
    ) -> None:
        super().__init__(then)
        check_choice("ASH", "variant", variant, ("s", "p", "b"))
        self.variant = variant
        self.percentile = check_percentile("ASH", percentile)

    def _shape(self, features: Features) -> Shaped:
        check_non_negative(self, features)
        k = num_kept(features.shape[1], self.percentile)
        mask = largest_mask(features, k)
        kept = features * mask
        if self.variant == "p":
            return kept, None
        before = features.sum(dim=1, dtype=torch.float64)
        if self.variant == "b":
            return mask.to(features.dtype), (before / k).log()
        after = kept.sum(dim=1, dtype=torch.float64)
        return kept, before / after.where(after > 0, torch.ones_like(after))
