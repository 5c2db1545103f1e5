"""ODIN: temperature and a step towards the predicted class."""

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.detectors.contract.detector import TrainFreeDetector
from oodlit.detectors.contract.reference import Reference
from oodlit.detectors.formulas.softmax import log_max_probability
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Model, Outputs


@final
class ODIN(TrainFreeDetector):
    """S = log max_c softmax(z(x') / T)_c, x' = x - eps sign(grad_x CE(z(x) / T, prediction)).

    The step is taken in pixel space: in the normalised image it is eps / std, std of the model's own transform. Two
    more forward passes and a backward pass per image (none for eps = 0); works inside inference mode. float64 after the
    network, since a large temperature brings all scores close together.

    Args:
        temperature: T > 0, default 1000.
        epsilon: Size of the step in units of pixels in [0, 1], >= 0, default 0.0014.

    Raises:
        InvalidArgumentError: An argument is out of its range.

    Example:
        >>> ODIN.preset("cood")
        ODIN(temperature=2.0, epsilon=1e-05)
    """

    needs = frozenset({"logits", "images", "model"})
    log_probability = True
    invariances = frozenset({"class_permutation"})
    presets: ClassVar = {
        "paper": {"temperature": 1000.0, "epsilon": 0.0014},
        "cood": {"temperature": 2.0, "epsilon": 1e-5},
    }
    reference = Reference(
        "Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks",
        "S. Liang",
        "ICLR",
        2018,
        "https://arxiv.org/abs/1706.02690",
        "log of the probability",
    )

    def __init__(self, temperature: float = 1000.0, epsilon: float = 0.0014) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise InvalidArgumentError(f"ODIN: temperature={temperature}; a positive, finite number is needed")
        if not 0 <= epsilon < float("inf"):
            raise InvalidArgumentError(f"ODIN: epsilon={epsilon}; a finite number >= 0 is needed")
        self.temperature = temperature
        self.epsilon = epsilon
        self.extra_passes = 2 if epsilon > 0 else 0

    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        logits = outputs.require("logits")
        if self.epsilon > 0:
            assert outputs.model is not None  # checked by `score`
            logits = outputs.model.logits(self._step(outputs.require("images"), outputs.model))
        return log_max_probability(logits.double() / self.temperature)

    def _step(self, images: Tensor, model: Model) -> Tensor:
        # Tensors made in inference mode cannot carry gradients: leave the mode, and copy.
        with torch.inference_mode(mode=False), torch.enable_grad():
            x = images.clone().requires_grad_()
            logits = model.logits(x) / self.temperature
            loss = torch.nn.functional.cross_entropy(logits, logits.argmax(dim=1), reduction="sum")
            (gradient,) = torch.autograd.grad(loss, x)
        std = model.std.to(images).view(1, -1, 1, 1)
        return images - self.epsilon / std * gradient.sign()
