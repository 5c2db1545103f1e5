"""Selects the reader of a network by its type."""

from torch import nn
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.retinanet import RetinaNet
from torchvision.models.detection.ssd import SSD

from oodlit.base.errors import InvalidArgumentError
from oodlit.objects.adapters.dense import DenseReader
from oodlit.objects.adapters.image_boxes import BoxReader
from oodlit.objects.adapters.rcnn import RCNNReader


def reader_of(network: nn.Module | BoxReader) -> BoxReader:
    """Return the reader for a torchvision detector; a reader is returned unchanged.

    Args:
        network: A torchvision detector, or a `BoxReader`.

    Raises:
        InvalidArgumentError: The network is of another kind; states how to wrap it.

    Example:
        >>> from torchvision.models.detection import ssdlite320_mobilenet_v3_large
        >>> network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
        >>> type(reader_of(network)).__name__
        'DenseReader'
    """
    if isinstance(network, GeneralizedRCNN):
        return RCNNReader(network)
    if isinstance(network, RetinaNet | FCOS | SSD):
        return DenseReader(network)
    if isinstance(network, BoxReader):
        return network
    name = type(network).__name__
    if type(network).__module__.startswith("transformers."):
        raise InvalidArgumentError(f"{name}: missing image processor; pass HuggingFaceReader(network, processor)")
    raise InvalidArgumentError(
        f"{name} is not a torchvision detector. Wrap networks with queries, such as DETR, in HuggingFaceReader(network,"
        " processor), and any other network in FunctionReader(function, network=..., class_layer=...)"
    )
