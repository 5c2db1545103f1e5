"""OOD detection for object detectors: which predicted boxes are objects that the detector never learnt?

A box is a row of `Outputs`, so that detectors, fits and statistics are those for images. What belongs to boxes alone
is here: reading them, matching them with annotated objects, and the open-set metrics. Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.callbacks import ObjectDetection as ObjectDetection
    from oodlit.objects.benchmark import CocoSet as CocoSet
    from oodlit.objects.benchmark import ObjectBenchmark as ObjectBenchmark
    from oodlit.objects.box_metric_classes import AOSE as AOSE
    from oodlit.objects.box_metric_classes import NOSE as NOSE
    from oodlit.objects.box_metric_classes import Dismissed as Dismissed
    from oodlit.objects.box_metric_classes import NOSEBoxes as NOSEBoxes
    from oodlit.objects.box_metric_classes import UnknownAP as UnknownAP
    from oodlit.objects.box_metric_classes import UnknownPrecision as UnknownPrecision
    from oodlit.objects.box_metric_classes import UnknownRecall as UnknownRecall
    from oodlit.objects.box_metric_classes import WildernessImpact as WildernessImpact
    from oodlit.objects.detections import Detections as Detections
    from oodlit.objects.files.annotations import Annotations as Annotations
    from oodlit.objects.files.annotations import read_annotations as read_annotations
    from oodlit.objects.files.predictions import Classes as Classes
    from oodlit.objects.files.predictions import Predictions as Predictions
    from oodlit.objects.files.predictions import read_predictions as read_predictions
    from oodlit.objects.from_files import BoxFiles as BoxFiles
    from oodlit.objects.from_files import evaluate_files as evaluate_files
    from oodlit.objects.from_files import read_head as read_head
    from oodlit.objects.metrics.curves import tau_curve as tau_curve
    from oodlit.objects.metrics.matching import Objects as Objects
    from oodlit.objects.metrics.matching import best_overlaps as best_overlaps
    from oodlit.objects.metrics.open_set import MatchedBoxes as MatchedBoxes
    from oodlit.objects.metrics.open_set import OpenSet as OpenSet
    from oodlit.objects.metrics.open_set import aose as aose
    from oodlit.objects.metrics.open_set import ap_u as ap_u
    from oodlit.objects.metrics.open_set import dismissed as dismissed
    from oodlit.objects.metrics.open_set import nose as nose
    from oodlit.objects.metrics.open_set import nose_boxes as nose_boxes
    from oodlit.objects.metrics.open_set import p_u as p_u
    from oodlit.objects.metrics.open_set import r_u as r_u
    from oodlit.objects.metrics.quality import id_quality as id_quality
    from oodlit.objects.metrics.settings import ObjectSettings as ObjectSettings
    from oodlit.objects.metrics.thresholds import best_f1_confidence as best_f1_confidence
    from oodlit.objects.metrics.thresholds import unknown_threshold as unknown_threshold
    from oodlit.objects.metrics.wilderness import ClassifiedBoxes as ClassifiedBoxes
    from oodlit.objects.metrics.wilderness import wilderness_impact as wilderness_impact
    from oodlit.objects.module import ObjectModule as ObjectModule
    from oodlit.objects.results.page import write_object_report as write_object_report
    from oodlit.objects.results.pictures import Mark as Mark
    from oodlit.objects.results.pictures import draw_boxes as draw_boxes
    from oodlit.objects.results.pictures import save_pictures as save_pictures
    from oodlit.objects.results.results import ObjectResults as ObjectResults
    from oodlit.objects.results.tables import ObjectSet as ObjectSet

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
