"""Recorded outputs of a backbone, from files of one's own or from a cache, in place of images and network."""

from typing import TYPE_CHECKING

from oodlit import _lazy

if TYPE_CHECKING:
    from oodlit.recorded.cache import FeatureCache as FeatureCache
    from oodlit.recorded.data import RecordedData as RecordedData
    from oodlit.recorded.evaluate import evaluate_arrays as evaluate_arrays
    from oodlit.recorded.module import RecordedModule as RecordedModule
    from oodlit.recorded.opened import open_cache as open_cache

__getattr__, __dir__, __all__ = _lazy.lazy_exports(__name__)
