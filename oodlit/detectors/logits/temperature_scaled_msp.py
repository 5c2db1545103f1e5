"""Maximum softmax probability at a calibrated temperature."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.network import BackboneFacts
from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Detector, Reference
from oodlit.detectors.formulas.softmax import log_max_probability
from oodlit.detectors.statistics import Statistics, TrainSample, train_labels

LIMITS = (1e-2, 1e2)
"""Smallest and largest temperature; if all or no images are classified correctly, there is no finite optimum."""


def true_labels(detector: Detector, facts: BackboneFacts) -> str:
    """Why there are no labels to calibrate with; empty if there are."""
    if not facts.predicted_labels or detector.is_fitted:
        return ""
    how = "fit_on='matched' and annotations of the training images (--fit_on matched --train_annotations FILE)"
    return f"needs annotated labels, but the labels of the fit are predictions of the network; pass {how}"


@final
class TemperatureScaledMSP(Detector):
    """S = log max_c softmax(z / T)_c, T by maximum likelihood of the labels of the fit.

    The paper calibrates on held-out images; on the classifier's own training images T is too small. To follow the
    paper, call `oodlit.detectors.fit` with outputs of held-out images. T is computed to 1e-9 within [0.01, 100], from a
    sample of at most 50,000 images.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> z = torch.tensor([[2.0, 0.0]] * 4)  # three of four right: p = 3/4 = sigmoid(2 / T)
        >>> detector = TemperatureScaledMSP()
        >>> fit([detector], [Outputs(z, labels=torch.tensor([0, 0, 0, 1]))])
        >>> round(float(detector.temperature), 4), round(float(detector.score(Outputs(z))[0].exp()), 4)
        (1.8205, 0.75)
    """

    needs = frozenset({"logits", "labels"})
    statistics = (TrainSample,)
    requirements = (true_labels,)
    log_probability = True
    invariances = frozenset({"logit_shift", "class_permutation"})
    display_name = "Temperature-scaled MSP"
    reference = Reference(
        "On Calibration of Modern Neural Networks",
        "C. Guo",
        "ICML",
        2017,
        "https://arxiv.org/abs/1706.04599",
        "a run fits T on training images, whereas the paper uses held-out images, which result in a larger T (to"
        " follow the paper, fit on outputs of held-out images); the likelihood is maximized by bisection of its"
        " derivative instead of L-BFGS",
    )

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        sample = statistics[TrainSample].outputs
        logits = sample.require("logits")
        labels = train_labels(sample, logits.shape[1])
        temperature = calibrated_temperature(logits, labels)
        if temperature in LIMITS:
            right = 100 * float((logits.argmax(dim=1) == labels).double().mean())
            held_out = "Fit on outputs of held-out images, as the paper does"
            advice = held_out if temperature == LIMITS[0] else "Check the labels and the scale of the logits"
            self.note(
                f"the optimal temperature is not between {LIMITS[0]:g} and {LIMITS[1]:g} ({right:.4g} % of the images"
                f" are classified correctly); using the limit {temperature:g}. {advice}"
            )
        self.keep(temperature=torch.tensor(temperature, dtype=torch.float64))

    def _score(self, outputs: Outputs) -> Scores:
        return log_max_probability(outputs.require("logits").double() / self.temperature)


def calibrated_temperature(logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"]) -> float:
    """Return the temperature within `LIMITS` that minimizes the mean cross entropy.

    With b = 1/T the derivative of the mean of LSE(b z) - b z_y is the mean of E_softmax(bz)[z] - z_y, which never
    decreases.
    """
    target = logits.double().gather(1, labels[:, None]).mean()

    def derivative(inverse: float) -> float:
        total = logits.new_zeros((), dtype=torch.float64)
        for part in torch.split(logits, 4096):
            z = part.double().clamp(min=torch.finfo(torch.float64).min)  # for a masked class, 0 times a finite number
            total += ((inverse * z).softmax(dim=1) * z).sum()
        return float(total / len(logits) - target)

    low, high = (torch.tensor(1 / limit, dtype=torch.float64).log().item() for limit in reversed(LIMITS))
    if derivative(1 / LIMITS[1]) >= 0:
        return LIMITS[1]
    if derivative(1 / LIMITS[0]) <= 0:
        return LIMITS[0]
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (low, middle) if derivative(float(torch.tensor(middle).exp())) > 0 else (middle, high)
    return float(torch.tensor(-(low + high) / 2, dtype=torch.float64).exp())
