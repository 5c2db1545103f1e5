"""Statistics of the training set, accumulated once and shared by detectors.

A statistic is a `torchmetrics.Metric`: it can be updated with batches of any size, merged, moved and reset.
`synchronize` makes the statistics of all processes equal to those of a single one.
"""

from oodlit.detectors.statistics.class_labels import train_labels as train_labels
from oodlit.detectors.statistics.class_moments import ClassMoments as ClassMoments
from oodlit.detectors.statistics.class_moments import Moments as Moments
from oodlit.detectors.statistics.class_moments import UnitMoments as UnitMoments
from oodlit.detectors.statistics.class_moments import power_moments as power_moments
from oodlit.detectors.statistics.class_scatter import ClassCovariances as ClassCovariances
from oodlit.detectors.statistics.class_scatter import ClassVariances as ClassVariances
from oodlit.detectors.statistics.feature_bank import FeatureBank as FeatureBank
from oodlit.detectors.statistics.fourier_moments import fourier_features as fourier_features
from oodlit.detectors.statistics.fourier_moments import fourier_map as fourier_map
from oodlit.detectors.statistics.fourier_moments import fourier_moments as fourier_moments
from oodlit.detectors.statistics.hashes import hash_rows as hash_rows
from oodlit.detectors.statistics.hashes import hash_strings as hash_strings
from oodlit.detectors.statistics.means import ClassProbabilities as ClassProbabilities
from oodlit.detectors.statistics.means import CorrectMeans as CorrectMeans
from oodlit.detectors.statistics.means import FeatureMean as FeatureMean
from oodlit.detectors.statistics.means import PredictedMeans as PredictedMeans
from oodlit.detectors.statistics.means import RankMeans as RankMeans
from oodlit.detectors.statistics.samples import HiddenSample as HiddenSample
from oodlit.detectors.statistics.samples import ScalarSample as ScalarSample
from oodlit.detectors.statistics.samples import TrainSample as TrainSample
from oodlit.detectors.statistics.samples import channel_means as channel_means
from oodlit.detectors.statistics.samples import shares_below as shares_below
from oodlit.detectors.statistics.statistic import Statistic as Statistic
from oodlit.detectors.statistics.statistic import Statistics as Statistics
from oodlit.detectors.statistics.statistic import synchronize as synchronize

__all__ = [name for name, value in sorted(vars().items()) if getattr(value, "__module__", "").startswith(__name__)]
