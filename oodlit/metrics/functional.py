"""All metrics as pure functions of tensors or array-likes; each is defined in its own file."""

from oodlit.metrics.accuracy import accuracy
from oodlit.metrics.aupr import aupr_error, aupr_success
from oodlit.metrics.aurc import augrc, aurc
from oodlit.metrics.auroc import auroc
from oodlit.metrics.classwise import mean_over_classes
from oodlit.metrics.detection_error import detection_error
from oodlit.metrics.detection_error_rate import detection_error_rate
from oodlit.metrics.fpr import fpr_at_tpr, fpr_at_tprs
from oodlit.metrics.id_auroc import id_auroc
from oodlit.metrics.intervals import augrc_interval, auroc_interval, wilson_interval
from oodlit.metrics.oscr import oscr
from oodlit.metrics.threshold import acceptance_threshold
from oodlit.metrics.unit_tests import unit_test_failures

__all__ = [
    "acceptance_threshold",
    "accuracy",
    "augrc",
    "augrc_interval",
    "aupr_error",
    "aupr_success",
    "aurc",
    "auroc",
    "auroc_interval",
    "detection_error",
    "detection_error_rate",
    "fpr_at_tpr",
    "fpr_at_tprs",
    "id_auroc",
    "mean_over_classes",
    "oscr",
    "unit_test_failures",
    "wilson_interval",
]
