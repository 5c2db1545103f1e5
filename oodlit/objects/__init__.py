"""OOD detection for object detectors: which predicted boxes are objects that the detector never learnt?

A box is a row of `Outputs`, so that detectors, fits and statistics are those for images. What belongs to boxes alone
is here: reading them, matching them with annotated objects, and the open-set metrics. Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from oodlit import _lazy

if TYPE_CHECKING:
    from oodlit.objects.annotations import Annotations as Annotations
    from oodlit.objects.annotations import read_annotations as read_annotations
    from oodlit.objects.benchmark import CocoSet as CocoSet
    from oodlit.objects.benchmark import ObjectBenchmark as ObjectBenchmark
    from oodlit.objects.callback import ObjectDetection as ObjectDetection
    from oodlit.objects.curves import tau_curve as tau_curve
    from oodlit.objects.detections import Detections as Detections
    from oodlit.objects.files import BoxFiles as BoxFiles
    from oodlit.objects.files import evaluate_files as evaluate_files
    from oodlit.objects.files import read_head as read_head
    from oodlit.objects.matching import Objects as Objects
    from oodlit.objects.matching import best_overlaps as best_overlaps
    from oodlit.objects.metrics import AOSE as AOSE
    from oodlit.objects.metrics import NOSE as NOSE
    from oodlit.objects.metrics import Dismissed as Dismissed
    from oodlit.objects.metrics import NOSEBoxes as NOSEBoxes
    from oodlit.objects.metrics import UnknownAP as UnknownAP
    from oodlit.objects.metrics import UnknownPrecision as UnknownPrecision
    from oodlit.objects.metrics import UnknownRecall as UnknownRecall
    from oodlit.objects.metrics import WildernessImpact as WildernessImpact
    from oodlit.objects.module import ObjectModule as ObjectModule
    from oodlit.objects.open_set import MatchedBoxes as MatchedBoxes
    from oodlit.objects.open_set import OpenSet as OpenSet
    from oodlit.objects.open_set import aose as aose
    from oodlit.objects.open_set import ap_u as ap_u
    from oodlit.objects.open_set import dismissed as dismissed
    from oodlit.objects.open_set import nose as nose
    from oodlit.objects.open_set import nose_boxes as nose_boxes
    from oodlit.objects.open_set import p_u as p_u
    from oodlit.objects.open_set import r_u as r_u
    from oodlit.objects.page import write_object_report as write_object_report
    from oodlit.objects.pictures import Mark as Mark
    from oodlit.objects.pictures import draw_boxes as draw_boxes
    from oodlit.objects.pictures import save_pictures as save_pictures
    from oodlit.objects.predictions import Classes as Classes
    from oodlit.objects.predictions import Predictions as Predictions
    from oodlit.objects.predictions import read_predictions as read_predictions
    from oodlit.objects.quality import id_quality as id_quality
    from oodlit.objects.results import ObjectResults as ObjectResults
    from oodlit.objects.settings import ObjectSettings as ObjectSettings
    from oodlit.objects.tables import ObjectSet as ObjectSet
    from oodlit.objects.thresholds import best_f1_confidence as best_f1_confidence
    from oodlit.objects.thresholds import unknown_threshold as unknown_threshold
    from oodlit.objects.wilderness import ClassifiedBoxes as ClassifiedBoxes
    from oodlit.objects.wilderness import wilderness_impact as wilderness_impact

__getattr__, __dir__, __all__ = _lazy.lazy_exports(__name__)
