"""Metrics of boxes: pure functions of arrays.

The export list is the registry: what a file with an exported name lists as `ENTRIES` stands in the table of results
(`oodlit.metrics.entry`).
"""

from oodlit.objects.metrics.box_ranking import RankedBoxes as RankedBoxes
from oodlit.objects.metrics.box_ranking import ranking_replicates as ranking_replicates
from oodlit.objects.metrics.boxes import Boxes as Boxes
from oodlit.objects.metrics.coverage import no_boxes as no_boxes
from oodlit.objects.metrics.matching import Objects as Objects
from oodlit.objects.metrics.matching import best_overlaps as best_overlaps
from oodlit.objects.metrics.open_set import MatchedBoxes as MatchedBoxes
from oodlit.objects.metrics.open_set import OpenSet as OpenSet
from oodlit.objects.metrics.open_set_error import aose as aose
from oodlit.objects.metrics.open_set_error import aose_boxes as aose_boxes
from oodlit.objects.metrics.open_set_error import dismissed as dismissed
from oodlit.objects.metrics.open_set_error import nose as nose
from oodlit.objects.metrics.open_set_error import nose_boxes as nose_boxes
from oodlit.objects.metrics.quality import id_quality as id_quality
from oodlit.objects.metrics.settings import ObjectSettings as ObjectSettings
from oodlit.objects.metrics.thresholds import best_f1_confidence as best_f1_confidence
from oodlit.objects.metrics.thresholds import unknown_threshold as unknown_threshold
from oodlit.objects.metrics.unknown_boxes import ap_u as ap_u
from oodlit.objects.metrics.unknown_boxes import p_u as p_u
from oodlit.objects.metrics.unknown_boxes import r_u as r_u
from oodlit.objects.metrics.wilderness import ClassifiedBoxes as ClassifiedBoxes
from oodlit.objects.metrics.wilderness import wilderness_impact as wilderness_impact

__all__ = [name for name, value in sorted(vars().items()) if getattr(value, "__module__", "").startswith(__name__)]
