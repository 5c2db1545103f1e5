"""Metrics of OOD detection, as pure functions of tensors or array-likes and as torchmetrics classes of the same names.

Everywhere, a higher score means more in-distribution, and ID is the positive class. The export list is the registry:
`ENTRIES` of a file with an exported name appear in the table of results (`oodlit.metrics.entry`).
"""

from oodlit.metrics.accuracy import Accuracy as Accuracy
from oodlit.metrics.accuracy import accuracy as accuracy
from oodlit.metrics.aupr import AUPRError as AUPRError
from oodlit.metrics.aupr import AUPRSuccess as AUPRSuccess
from oodlit.metrics.aupr import aupr_error as aupr_error
from oodlit.metrics.aupr import aupr_success as aupr_success
from oodlit.metrics.aurc import AUGRC as AUGRC
from oodlit.metrics.aurc import AURC as AURC
from oodlit.metrics.aurc import augrc as augrc
from oodlit.metrics.aurc import aurc as aurc
from oodlit.metrics.auroc import AUROC as AUROC
from oodlit.metrics.auroc import auroc as auroc
from oodlit.metrics.class_subsets import subset_predictions as subset_predictions
from oodlit.metrics.classwise import MeanOverClasses as MeanOverClasses
from oodlit.metrics.classwise import mean_over_classes as mean_over_classes
from oodlit.metrics.detection_error import DetectionError as DetectionError
from oodlit.metrics.detection_error import detection_error as detection_error
from oodlit.metrics.detection_error_rate import DetectionErrorRate as DetectionErrorRate
from oodlit.metrics.detection_error_rate import detection_error_rate as detection_error_rate
from oodlit.metrics.fpr import FPRAtTPR as FPRAtTPR
from oodlit.metrics.fpr import FPRAtTPRError as FPRAtTPRError
from oodlit.metrics.fpr import fpr_at_tpr as fpr_at_tpr
from oodlit.metrics.fpr import fpr_at_tpr_error as fpr_at_tpr_error
from oodlit.metrics.id_auroc import IDAUROC as IDAUROC
from oodlit.metrics.id_auroc import id_auroc as id_auroc
from oodlit.metrics.joint import JointAUGRC as JointAUGRC
from oodlit.metrics.joint import JointCoverage as JointCoverage
from oodlit.metrics.joint import JointRisk as JointRisk
from oodlit.metrics.joint import OperatingPoint as OperatingPoint
from oodlit.metrics.joint import joint_augrc as joint_augrc
from oodlit.metrics.joint import joint_coverage as joint_coverage
from oodlit.metrics.joint import joint_risk as joint_risk
from oodlit.metrics.joint import operating_point as operating_point
from oodlit.metrics.joint import risk_curve as risk_curve
from oodlit.metrics.joint_ranking import RiskCurve as RiskCurve
from oodlit.metrics.mean_corruption_error import mean_corruption_error as mean_corruption_error
from oodlit.metrics.numerics.acceptance import acceptance_threshold as acceptance_threshold
from oodlit.metrics.numerics.undefined import UndefinedMetricWarning as UndefinedMetricWarning
from oodlit.metrics.oscr import OSCR as OSCR
from oodlit.metrics.oscr import oscr as oscr
from oodlit.metrics.severity.levels import level_starts as level_starts
from oodlit.metrics.severity.levels import severity_order as severity_order
from oodlit.metrics.severity.levels import window_values as window_values
from oodlit.metrics.severity.severity_curves import Levels as Levels
from oodlit.metrics.severity.severity_curves import SeverityLevels as SeverityLevels
from oodlit.metrics.severity.severity_curves import class_counts as class_counts
from oodlit.metrics.severity.severity_curves import severity_levels as severity_levels
from oodlit.metrics.uncertainty.intervals import augrc_interval as augrc_interval
from oodlit.metrics.uncertainty.intervals import auroc_interval as auroc_interval
from oodlit.metrics.uncertainty.intervals import wilson_interval as wilson_interval
from oodlit.metrics.unit_tests import UnitTestFailures as UnitTestFailures
from oodlit.metrics.unit_tests import unit_test_failures as unit_test_failures

# Imported eagerly: `accuracy` is both a function of this package and the name of its file.
__all__ = [name for name, value in sorted(vars().items()) if getattr(value, "__module__", "").startswith(__name__)]
