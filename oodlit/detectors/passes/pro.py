"""PRO: the smallest confidence along a few steps downhill."""

from collections.abc import Callable
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import check_choice, check_ints, check_positive
from oodlit.base.outputs import Outputs
from oodlit.detectors.contract import Reference, TrainFreeDetector
from oodlit.detectors.formulas.input_gradients import input_gradient, towards_prediction
from oodlit.detectors.formulas.shaping import largest_mask
from oodlit.detectors.formulas.softmax import log_complements, log_max_probability, log_softmax, negative_entropy
from oodlit.detectors.logits.gen import GEN


@final
class PRO(TrainFreeDetector):
    """S = min over t = 0..K of s(x_t), x_(t+1) = x_t - eps sign(grad s); s is `GEN`, `Entropy` or `MSP` of z / T.

    Steps are taken in the normalized image. Requires K + 1 extra forward passes and K backward passes per image;
    computed in float64 after the network. The score is never higher than that of s on the original image.

    Args:
        measure: s: "gen" (default; gamma 0.1, the 100 largest classes), "entropy" or "msp".
        epsilon: Step size, > 0, default 0.0001. The presets have the initial values of the authors' code. For their
            results, the authors search `epsilon` and `steps` on OOD data, and for "gen" also gamma and the number of
            classes. Their file `ASPhyperparameters.yml` lists what they found for each data set.
        steps: K, at least 1, default 3.
        temperature: T > 0, default 1.

    Raises:
        InvalidArgumentError: An argument is out of range.

    Example:
        >>> PRO.preset("entropy")
        PRO(measure='entropy', epsilon=0.0014, steps=2)
    """

    needs = frozenset({"logits", "images", "model"})
    invariances = frozenset({"class_permutation"})
    presets: ClassVar = {
        "gen": {"measure": "gen", "epsilon": 1e-4, "steps": 3},
        "entropy": {"measure": "entropy", "epsilon": 0.0014, "steps": 2},
        "msp": {"measure": "msp", "epsilon": 0.003, "steps": 1},
    }
    tuned_presets: ClassVar = frozenset(presets)
    reference = Reference(
        "Leveraging Perturbation Robustness to Enhance Out-of-Distribution Detection",
        "W. Chen",
        "CVPR",
        2025,
        "https://arxiv.org/abs/2503.18784",
        "measure='msp' returns the logarithm of the probability; measure='entropy' does not add 1e-10 to"
        " probabilities, unlike the authors' code; gamma and the number of classes of measure='gen' are fixed, whereas"
        " the authors tune them on OOD data",
    )

    def __init__(
        self,
        measure: Literal["gen", "entropy", "msp"] = "gen",
        epsilon: float = 1e-4,
        steps: int = 3,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        check_choice("PRO", "measure", measure, tuple(_MEASURES))
        check_ints("PRO", steps=steps)
        check_positive("PRO", epsilon=epsilon, temperature=temperature)
        self.measure, self.epsilon, self.steps, self.temperature = measure, epsilon, steps, temperature
        self.extra_passes = steps + 1

    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        measure, slope = _MEASURES[self.measure]
        images, model = outputs.require("images"), outputs.model
        assert model is not None  # checked by `score`

        def value(logits: Tensor) -> Tensor:
            return measure(logits.double() / self.temperature)

        smallest = value(outputs.require("logits"))
        for step in range(self.steps):
            logits, gradient = input_gradient(model, images, lambda z: slope(z / self.temperature))
            if step > 0:  # the first ones are those of the outputs
                smallest = torch.minimum(smallest, value(logits))
            images = images - self.epsilon * gradient.sign()
        return torch.minimum(smallest, value(model.logits(images)))


def gen_slope(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]:
    """Return the gradient of `GEN` with respect to the logits; 0 if the largest probability rounds to 1.

    With h = p^gamma (1 - p)^gamma and a = p dh/dp = gamma h (1 - 2 p) / (1 - p) of the classes that count, it is p_j
    sum_c a_c - a_j. For the largest class, whose a may exceed all others, the sum of the others is computed separately.
    """
    outputs, gen = Outputs(logits), GEN()
    log_p, log_rest = log_softmax(outputs), log_complements(outputs)
    p, rest = log_p.exp(), log_rest.exp()
    h = (gen.gamma * (log_p + log_rest)).exp() * largest_mask(log_p, min(gen.top, log_p.shape[1]))
    direct = gen.gamma * h * (1 - 2 * p)
    of_best = towards_prediction(logits).bool()
    a = direct / rest
    others = a.masked_fill(of_best, 0).sum(dim=1, keepdim=True)
    around = torch.where(of_best, others, a.masked_fill(~of_best, 0).sum(dim=1, keepdim=True) + others - a)
    return (p * around - direct).nan_to_num(0.0, 0.0, 0.0)


def entropy_slope(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]:
    """Return the gradient of sum p log p with respect to the logits: p_j (log p_j - sum p log p)."""
    outputs = Outputs(logits)
    return log_softmax(outputs).exp() * (log_softmax(outputs) - negative_entropy(outputs)[:, None])


def msp_slope(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]:
    """Return the gradient of log max p with respect to the logits."""
    return towards_prediction(logits) - logits.softmax(dim=1)


_MEASURES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "gen": (lambda logits: GEN().score(Outputs(logits)), gen_slope),
    "entropy": (lambda logits: negative_entropy(Outputs(logits)), entropy_slope),
    "msp": (log_max_probability, msp_slope),
}
"""s as a function of the logits and its gradient, by name."""
