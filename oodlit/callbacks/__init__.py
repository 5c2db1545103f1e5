"""Lightning callbacks: one for each kind of run. The names below are loaded on first use."""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.callbacks.detection import OODDetection as OODDetection
    from oodlit.callbacks.feature_cache import FeatureCache as FeatureCache
    from oodlit.callbacks.object_detection import ObjectDetection as ObjectDetection
    from oodlit.callbacks.recorded_run import evaluate_arrays as evaluate_arrays

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
