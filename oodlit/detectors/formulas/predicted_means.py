"""Features as seen from the mean of their predicted class; shared by CARef and CADRef."""

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.detectors.statistics import PredictedMeans, Statistics
from oodlit.outputs import Outputs

LEAST_NORM = 1e-12
"""Smallest L1 norm of a feature, relative to the largest of the means."""


def mean_by_class(statistics: Statistics) -> tuple[Float[Tensor, "classes features"], str]:
    """Mean feature of what is predicted as each class, and what a user should know of it; empty if there is nothing.

    A class that is never predicted has none, and takes the mean of all training images.
    """
    facts = statistics[PredictedMeans]
    predicted = facts.counts > 0
    absent = (~predicted).nonzero().flatten().tolist()
    means = statistics.memo("means_by_prediction", lambda: facts.means.where(predicted[:, None], facts.mean))
    return means, f"{len(absent)} classes are never predicted in training (first: {absent[:3]})" if absent else ""


def smallest_norm(means: Float[Tensor, "classes features"]) -> Float[Tensor, ""]:
    """What |x|_1 is bounded by from below; 1 where all means are zero."""
    largest = LEAST_NORM * means.abs().sum(dim=1).amax()
    return largest.where(largest > 0, torch.ones_like(largest))


def relative_errors(
    outputs: Outputs, means: Float[Tensor, "classes features"], least: Float[Tensor, ""]
) -> Float[Tensor, "batch features"]:
    """(x - m) / |x|_1 in float64, m that of the predicted class."""
    features = outputs.require("features").double()
    norms = features.abs().sum(dim=1, keepdim=True)
    return (features - means[outputs.predictions]) / norms.clamp(min=least)
