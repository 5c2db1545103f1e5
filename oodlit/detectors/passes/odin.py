"""ODIN: temperature scaling and a step towards the predicted class."""

from collections.abc import Callable
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from oodlit.base.checks import check_choice, check_positive
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Model, Outputs
from oodlit.detectors.contract import Reference, TrainFreeDetector
from oodlit.detectors.formulas.softmax import log_max_probability

COOD_STD = (0.229, 0.224, 0.225)


@final
class ODIN(TrainFreeDetector):
    """S = log max_c softmax(z(x') / T)_c, x' = x - eps sign(grad_x CE(z(x) / T, prediction)).

    The step is taken in pixel space: in the normalized image it is eps / std, with std of the model's own transform.
    Requires two extra forward passes and one backward pass per image (none for eps = 0) and works in inference mode.
    Computed in float64 after the network, since a large temperature brings scores close together.

    Args:
        temperature: T > 0, default 1000.
        epsilon: Step size for pixels in [0, 1], >= 0, default 0.0014.
        step: "paper" (default) as above. "cood" as in the program behind the published COOD results: the cross-entropy
            uses softmax(z) as logits and ignores T, std is (.229, .224, .225) for any transform, and the sign of a zero
            gradient is +1.

    Raises:
        InvalidArgumentError: An argument is out of range, or images do not have three channels with `step="cood"`.

    Example:
        >>> ODIN.preset("cood-program")
        ODIN(temperature=2.0, epsilon=1e-05, step='cood')
    """

    needs = frozenset({"logits", "images", "model"})
    log_probability = True
    invariances = frozenset({"class_permutation"})
    presets: ClassVar = {
        "paper": {"temperature": 1000.0, "epsilon": 0.0014},
        "cood": {"temperature": 2.0, "epsilon": 1e-5},
        "cood-program": {"temperature": 2.0, "epsilon": 1e-5, "step": "cood"},
    }
    reference = Reference(
        "Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks",
        "S. Liang",
        "ICLR",
        2018,
        "https://arxiv.org/abs/1706.02690",
        "the score is the logarithm of the probability",
    )

    def __init__(
        self, temperature: float = 1000.0, epsilon: float = 0.0014, step: Literal["paper", "cood"] = "paper"
    ) -> None:
        super().__init__()
        check_positive("ODIN", temperature=temperature)
        check_positive("ODIN", epsilon=epsilon, or_zero=True)
        check_choice("ODIN", "step", step, ("paper", "cood"))
        self.temperature = temperature
        self.epsilon = epsilon
        self.step = step
        self.extra_passes = 2 if epsilon > 0 else 0

    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        logits = outputs.require("logits")
        if self.epsilon > 0:
            assert outputs.model is not None  # checked by `score`
            images = outputs.require("images")
            step = _cood_step(images, outputs.model) if self.step == "cood" else self._paper_step(images, outputs.model)
            logits = outputs.model.logits(images - self.epsilon * step)
        return log_max_probability(logits.double() / self.temperature)

    def _paper_step(self, images: Tensor, model: Model) -> Tensor:
        def loss(logits: Tensor) -> Tensor:
            scaled = logits / self.temperature
            return nn.functional.cross_entropy(scaled, scaled.argmax(dim=1), reduction="sum")

        return _gradient(images, model, loss).sign() / model.std.to(images).view(1, -1, 1, 1)


def _cood_step(images: Tensor, model: Model) -> Tensor:
    if images.shape[1] != len(COOD_STD):
        raise InvalidArgumentError(
            f"ODIN: step='cood' requires images with {len(COOD_STD)} channels, got {images.shape[1]}; use step='paper'"
        )

    def loss(logits: Tensor) -> Tensor:
        probabilities = logits.softmax(dim=1)
        return nn.functional.cross_entropy(probabilities, probabilities.argmax(dim=1), reduction="sum")

    signs = torch.where(_gradient(images, model, loss) >= 0, 1.0, -1.0).to(images)
    return signs / torch.tensor(COOD_STD).to(images).view(1, -1, 1, 1)


def _gradient(images: Tensor, model: Model, loss: Callable[[Tensor], Tensor]) -> Tensor:
    # Tensors created in inference mode cannot carry gradients: leave the mode and copy.
    with torch.inference_mode(mode=False), torch.enable_grad():
        x = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(model.logits(x)), x)
    return gradient
