"""Recorded outputs of a backbone, from your own files or from a cache, in place of images and network."""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.callbacks import FeatureCache as FeatureCache
    from oodlit.callbacks import evaluate_arrays as evaluate_arrays
    from oodlit.recorded.cache_data import open_cache as open_cache
    from oodlit.recorded.data import RecordedData as RecordedData
    from oodlit.recorded.module import RecordedModule as RecordedModule

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
