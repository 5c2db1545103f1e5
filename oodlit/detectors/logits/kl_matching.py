"""Kullback-Leibler divergence to the nearest class posterior."""

from dataclasses import replace
from typing import final

import torch

from oodlit.base.outputs import Head, Outputs, Scores
from oodlit.detectors.contract import Detector
from oodlit.detectors.formulas.softmax import negative_entropy
from oodlit.detectors.logits.max_logit import MaxLogit
from oodlit.detectors.statistics import ClassProbabilities, Statistics


@final
class KLMatching(Detector):
    """S = -min_k sum_c p_c (log p_c - log d_kc): d_k the mean softmax of the training images predicted as k.

    Means are in float64; log d is bounded at the smallest normal number (about -708). A class that is never predicted
    in training has no d_k: it is left out, and a note reports this.

    Example:
        >>> import torch
        >>> from oodlit.detectors import fit
        >>> detector = KLMatching()
        >>> fit([detector], [Outputs(torch.tensor([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 5.0]]))])
        >>> near, far = detector.score(Outputs(torch.tensor([[5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])))
        >>> bool(near.abs() < 1e-6), bool(near > far)
        (True, True)
    """

    needs = frozenset({"logits"})
    statistics = (ClassProbabilities,)
    invariances = frozenset({"logit_shift", "class_permutation"})
    display_name = "KL matching"
    reference = replace(
        MaxLogit.reference, deviations="uses training images instead of validation images, as in the NINCO evaluation"
    )

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        probabilities = statistics[ClassProbabilities]
        predicted = probabilities.counts > 0
        self.note_classes(~predicted, "are never predicted for training images; such classes are left out")
        means, classes = probabilities.means[predicted], predicted.nonzero()
        log_means = means.clamp(min=torch.finfo(means.dtype).tiny).log()
        # d_kk is close to 1: compute its logarithm from the remainder for the other classes.
        others = means.scatter(1, classes, 0).sum(dim=1, keepdim=True).clamp(max=0.5)
        own = torch.log1p(-others).where(others < 0.5, log_means.gather(1, classes))
        self.keep(log_means=log_means.scatter(1, classes, own))

    def _score(self, outputs: Outputs) -> Scores:
        p = outputs.probabilities
        # float32 products are as exact as float32 logits, but some devices compute them in lower precision.
        dtype = p.dtype if p.device.type == "cpu" else torch.float64
        matched = (p.to(dtype) @ self.log_means.to(dtype).T).amax(dim=1)
        return matched.double() - negative_entropy(outputs).double()
