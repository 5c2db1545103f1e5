"""Features relative to the mean of their predicted class, shared by CARef and CADRef."""

from typing import final

import torch

from oodlit.base.outputs import Features, Outputs
from oodlit.detectors.contract import Detector
from oodlit.detectors.statistics import PredictedMeans, Statistics

LEAST_NORM = 1e-12
"""Smallest L1 norm of a feature vector, relative to the largest mean."""


class PredictedMeanDetector(Detector):
    """Base class of detectors that keep the mean feature m of the images predicted as each class."""

    @final
    def _keep_means(self, statistics: Statistics) -> None:
        """Keep the means, and the lower bound of |x|_1, which is 1 if all means are zero.

        A class that is never predicted uses the mean of all training images.
        """
        facts = statistics[PredictedMeans]
        predicted = facts.counts > 0
        self.note_classes(~predicted, "are never predicted for training images; the mean of all images is used instead")
        means = statistics.memo("means_by_prediction", lambda: facts.means.where(predicted[:, None], facts.mean))
        largest = LEAST_NORM * means.abs().sum(dim=1).amax()
        self.keep(means=means, least=largest.where(largest > 0, torch.ones_like(largest)))

    @final
    def _relative_errors(self, outputs: Outputs) -> Features:
        """(x - m) / |x|_1 in float64, with m of the predicted class."""
        features = outputs.require("features").double()
        norms = features.abs().sum(dim=1, keepdim=True)
        return (features - self.means[outputs.predictions]) / norms.clamp(min=self.least)
