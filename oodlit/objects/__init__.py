"""OOD detection for object detectors: find predicted boxes that are objects of unknown classes.

A box is a row of `Outputs`, so detectors, fits and statistics for images apply. This package adds reading of boxes,
matching with annotated objects, and open-set metrics. Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.callbacks import ObjectDetection as ObjectDetection
    from oodlit.objects.benchmark import CocoSet as CocoSet
    from oodlit.objects.benchmark import ObjectBenchmark as ObjectBenchmark
    from oodlit.objects.detections import Detections as Detections
    from oodlit.objects.files.annotations import Annotations as Annotations
    from oodlit.objects.files.annotations import read_annotations as read_annotations
    from oodlit.objects.files.predictions import Classes as Classes
    from oodlit.objects.files.predictions import Predictions as Predictions
    from oodlit.objects.files.predictions import read_predictions as read_predictions
    from oodlit.objects.from_files import BoxFiles as BoxFiles
    from oodlit.objects.from_files import evaluate_files as evaluate_files
    from oodlit.objects.from_files import read_head as read_head
    from oodlit.objects.metrics.settings import ObjectSettings as ObjectSettings
    from oodlit.objects.module import ObjectModule as ObjectModule
    from oodlit.objects.results.results import ObjectResults as ObjectResults
    from oodlit.objects.results.tables import ObjectSet as ObjectSet
    from oodlit.report import Mark as Mark
    from oodlit.report import draw_boxes as draw_boxes
    from oodlit.report import save_pictures as save_pictures
    from oodlit.report import write_report as write_report

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
