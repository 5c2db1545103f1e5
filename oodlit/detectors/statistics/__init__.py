"""What detectors know of the training set: facts that are accumulated once and shared.

A statistic is a `torchmetrics.Metric`, so it can be updated with any cut of the training set into batches, merged,
moved and reset. `synchronize` makes the statistics of all processes equal to those of a single one.
"""

from oodlit.detectors.statistics.base import Statistic, Statistics, synchronize
from oodlit.detectors.statistics.class_moments import ClassMoments, Moments, UnitMoments
from oodlit.detectors.statistics.class_probabilities import ClassProbabilities
from oodlit.detectors.statistics.class_scatter import ClassCovariances, ClassVariances
from oodlit.detectors.statistics.feature_bank import FeatureBank
from oodlit.detectors.statistics.fourier_moments import fourier_features, fourier_map, fourier_moments
from oodlit.detectors.statistics.hashes import hash_rows, hash_strings
from oodlit.detectors.statistics.labels import train_labels
from oodlit.detectors.statistics.means import CorrectMeans, FeatureMean, PredictedMeans
from oodlit.detectors.statistics.samples import HiddenSample, ScalarSample, TrainSample, channel_means, shares_below

__all__ = [
    "ClassCovariances",
    "ClassMoments",
    "ClassProbabilities",
    "ClassVariances",
    "CorrectMeans",
    "FeatureBank",
    "FeatureMean",
    "HiddenSample",
    "Moments",
    "PredictedMeans",
    "ScalarSample",
    "Statistic",
    "Statistics",
    "TrainSample",
    "UnitMoments",
    "channel_means",
    "fourier_features",
    "fourier_map",
    "fourier_moments",
    "hash_rows",
    "hash_strings",
    "shares_below",
    "synchronize",
    "train_labels",
]
