"""Metrics of OOD detection: pure functions (`oodlit.metrics.functional`) and torchmetrics classes of the same names.

A higher score means more in-distribution, and ID is the positive class, everywhere. The export list is the registry.
"""

from oodlit.metrics.accuracy import Accuracy
from oodlit.metrics.aupr import AUPRError, AUPRSuccess
from oodlit.metrics.aurc import AUGRC, AURC
from oodlit.metrics.auroc import AUROC
from oodlit.metrics.classwise import MeanOverClasses
from oodlit.metrics.detection_error import DetectionError
from oodlit.metrics.detection_error_rate import DetectionErrorRate
from oodlit.metrics.fpr import FPRAtTPR
from oodlit.metrics.functional import (
    acceptance_threshold,
    accuracy,
    augrc,
    augrc_interval,
    aupr_error,
    aupr_success,
    aurc,
    auroc,
    auroc_interval,
    detection_error,
    detection_error_rate,
    fpr_at_tpr,
    fpr_at_tprs,
    id_auroc,
    mean_over_classes,
    oscr,
    unit_test_failures,
    wilson_interval,
)
from oodlit.metrics.id_auroc import IDAUROC
from oodlit.metrics.oscr import OSCR
from oodlit.metrics.undefined import UndefinedMetricWarning
from oodlit.metrics.unit_tests import UnitTestFailures

__all__ = [
    "AUGRC",
    "AURC",
    "AUROC",
    "IDAUROC",
    "OSCR",
    "AUPRError",
    "AUPRSuccess",
    "Accuracy",
    "DetectionError",
    "DetectionErrorRate",
    "FPRAtTPR",
    "MeanOverClasses",
    "UndefinedMetricWarning",
    "UnitTestFailures",
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
