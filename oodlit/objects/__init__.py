"""OOD detection for object detectors: which predicted boxes are objects that the detector never learnt?

A box is a row of `Outputs`, so that detectors, fits and statistics are those for images. What belongs to boxes alone
is here: reading them, matching them with annotated objects, and the open-set metrics. Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from oodlit import _lazy

if TYPE_CHECKING:
    from oodlit.objects.annotations import Annotations as Annotations
    from oodlit.objects.annotations import read_annotations as read_annotations
    from oodlit.objects.detections import Detections as Detections

__getattr__, __dir__, __all__ = _lazy.lazy_exports(__name__)
