"""Readers of detection networks: from images to boxes with logits and features.

Names are loaded on first use: Hugging Face's package is an extra.
"""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.objects.adapters.choose import reader_of as reader_of
    from oodlit.objects.adapters.dense import DenseReader as DenseReader
    from oodlit.objects.adapters.function import FunctionReader as FunctionReader
    from oodlit.objects.adapters.hugging_face import HuggingFaceReader as HuggingFaceReader
    from oodlit.objects.adapters.image_boxes import BoxReader as BoxReader
    from oodlit.objects.adapters.image_boxes import ImageBoxes as ImageBoxes
    from oodlit.objects.adapters.rcnn import RCNNReader as RCNNReader

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
