"""Cut the head of a network to some of its classes."""

import copy
from collections.abc import Callable
from itertools import chain

from torch import nn

from oodlit.backbones.network_reader import NetworkReader
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.known_classes.class_choice import ClassChoice, as_choice, chosen_indices

_CUT = {nn.Linear: "out_features", nn.Conv1d: "out_channels", nn.Conv2d: "out_channels"}
"""Layers that can be cut, with the attribute for the number of their outputs."""


def with_class_subset(
    reader: NetworkReader, read: Callable[[nn.Module, str], NetworkReader], chosen: ClassChoice
) -> tuple[NetworkReader, tuple[int, ...]]:
    """Return the reader of a network whose final layers have only the outputs of some classes.

    All other weights are shared with the given network, which does not change. A network that has exactly as many
    outputs as there are chosen classes is used as it is, since it was trained for them.

    Args:
        reader: Reads the classifier.
        read: Creates the reader of another network of this name.
        chosen: Indices of the classes; names or WordNet ids for the 1,000 classes of ImageNet-1k; None = all.

    Returns:
        The reader, and the indices of the classes that the head was cut to; empty = all.

    Raises:
        InvalidArgumentError: The final layer is not a plain linear layer, or an index is out of range.
        UnknownNameError: There is no class of this name.
    """
    network, layers = reader.network, reader.heads.layers
    if not (classes := as_choice(chosen)):
        return reader, ()
    plain = [layer for layer in layers if type(network.get_submodule(layer)) in _CUT]
    if not plain or len(plain) < len(layers):
        why = reader.heads.known_problem
        text = f", but {why}; omit class_subset" if why else "; name it with OODModule(..., head='...')"
        raise InvalidArgumentError(f"{reader.name}: class_subset requires a final Linear, Conv1d or Conv2d layer{text}")
    count = len(network.get_submodule(plain[0]).weight)  # type: ignore[arg-type]
    if len(classes) == count:
        return reader, ()
    kept = chosen_indices(classes, (), count)
    shared = {id(tensor): tensor for tensor in chain(network.parameters(), network.buffers())}
    cut = copy.deepcopy(network, shared)
    for layer in map(cut.get_submodule, plain):
        for field in ("weight", "bias"):
            if (value := getattr(layer, field)) is not None:
                rows = value.detach()[list(kept)].clone()
                setattr(layer, field, nn.Parameter(rows, requires_grad=value.requires_grad))
        setattr(layer, _CUT[type(layer)], len(kept))
    if isinstance(config := getattr(cut, "pretrained_cfg", None), dict):  # published numbers are those of all classes
        cut.pretrained_cfg = {**config, "tag": ""}  # type: ignore[assignment]
    return read(cut, reader.name), kept
