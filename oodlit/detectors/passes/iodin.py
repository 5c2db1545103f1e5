"""i-ODIN: ODIN with a step of the single most relevant pixel value."""

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_positive
from oodlit.base.outputs import Model, Outputs
from oodlit.detectors.contract import Reference, TrainFreeDetector
from oodlit.detectors.formulas.input_gradients import gradient_levels, input_gradient, towards_prediction
from oodlit.detectors.formulas.softmax import log_max_probability


@final
class IODIN(TrainFreeDetector):
    """S = log max_c softmax(z(x') / T)_c: x' as in `ODIN`, but only the value with the largest gradient is moved.

    The value is one channel of one pixel; of equal gradients, the first one counts. The step is eps in pixel space,
    eps / std in the normalized image. Requires two extra forward passes and one backward pass per image; computed in
    float64 after the network.

    Args:
        temperature: T > 0, default 1000.
        epsilon: Step size for pixels in [0, 1], > 0, default 0.0014. The authors tuned both on OOD data.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> IODIN(temperature=10.0).extra_passes
        2
    """

    needs = frozenset({"logits", "images", "model"})
    invariances = frozenset({"class_permutation"})
    presets: ClassVar = {"imagenet": {"temperature": 1000.0, "epsilon": 0.0014}}
    tuned_presets: ClassVar = frozenset(presets)
    reference = Reference(
        "Going Beyond Conventional OOD Detection",
        "S. Regmi",
        "arXiv",
        2024,
        "https://arxiv.org/abs/2411.10794",
        "the score is the logarithm of the probability; unlike in the authors' code, gradients are rounded to 2^-20 of"
        " the largest one before the pixel with the largest gradient is chosen; images stay unchanged if all gradients"
        " are zero",
    )
    extra_passes = 2

    def __init__(self, temperature: float = 1000.0, epsilon: float = 0.0014) -> None:
        super().__init__()
        check_positive("IODIN", temperature=temperature, epsilon=epsilon)
        self.temperature, self.epsilon = temperature, epsilon

    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        assert outputs.model is not None  # checked by `score`
        images = outputs.require("images")
        logits = outputs.model.logits(images - self._step(images, outputs.model))
        return log_max_probability(logits.double() / self.temperature)

    def _step(self, images: Tensor, model: Model) -> Tensor:
        def slope_of_cross_entropy(logits: Tensor) -> Tensor:
            return (logits / self.temperature).softmax(dim=1) - towards_prediction(logits)

        _, gradient = input_gradient(model, images, slope_of_cross_entropy)
        largest = gradient_levels(gradient).argmax(dim=1, keepdim=True)
        mask = torch.zeros_like(images).flatten(1).scatter_(1, largest, 1.0).view_as(images)
        return self.epsilon / model.std.to(images).view(1, -1, 1, 1) * mask * gradient.sign()
