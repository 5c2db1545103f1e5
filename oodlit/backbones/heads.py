"""The final linear layers of a network, found by name or by trying.

The features are the input of the head, so that head(features) == logits holds by construction.
"""

import torch
from torch import Tensor, nn

from oodlit.errors import InvalidArgumentError, RequirementError, UnknownNameError
from oodlit.outputs import Head

__all__ = ["find_head_layers", "join_heads", "to_vectors"]

MAX_CANDIDATES = 8
"""Linear layers of a plain module that are tried as its head, from the last one on."""


def find_head_layers(network: nn.Module, head: str | None) -> tuple[tuple[str, ...], ...]:
    """Names of the final linear layers, most likely first: one layer, or several whose logits are averaged.

    Args:
        network: The classifier.
        head: Name of the final layer, or None to ask the network: timm's `get_classifier`, else the last
            linear layer that gives the logits.

    Returns:
        Candidates; which of them is right shows in the first forward pass.

    Raises:
        InvalidArgumentError: There is no such layer, it is not linear, or no linear layer at all.
    """
    names = {id(module): name for name, module in network.named_modules()}
    if head is None:
        candidates = _classifier_candidates(network)
        if not candidates:
            raise InvalidArgumentError(
                f"{type(network).__name__}: no final linear layer was found; name it: head='...'."
                f" Layers: {', '.join(n for n, _ in list(network.named_modules())[-8:] if n) or 'none'}"
            )
    else:
        try:
            chosen = network.get_submodule(head)
        except AttributeError:
            linear = [n for n, m in network.named_modules() if _is_linear(m)]
            near = UnknownNameError.of("layer", head, linear[-12:])
            raise InvalidArgumentError(f"head={head!r}: the network has no such layer - {near}") from None
        candidates = _candidates(chosen)
        if not candidates:
            raise InvalidArgumentError(
                f"head={head!r} is a {type(chosen).__name__}; a Linear or 1x1 Conv2d layer is needed"
            )
    return tuple(tuple(names[id(layer)] for layer in candidate) for candidate in candidates)


def join_heads(layers: list[nn.Module]) -> Head:
    """One head for the mean of several linear layers on concatenated features: [W1 W2] / n, mean of the biases."""
    weights, biases = [], []
    for layer in layers:
        weight = layer.weight
        assert isinstance(weight, Tensor)  # Linear or Conv2d
        weights.append(weight.detach().flatten(1).float())
        bias = layer.bias
        biases.append(bias.detach().float() if isinstance(bias, Tensor) else weights[-1].new_zeros(len(weight)))
    count = len(layers)
    return Head(torch.cat(weights, dim=1) / count, torch.stack(biases).sum(dim=0) / count)


def to_vectors(activation: Tensor, width: int) -> Tensor:
    """Input of a linear layer as (batch, width): 1x1 maps are flattened, maps and tokens averaged over positions.

    A linear layer and a mean over positions commute, so the averaged input belongs to the averaged output.
    """
    if activation.ndim == 4 and activation.shape[1] == width:
        return activation.mean(dim=(2, 3)) if activation[0, 0].numel() > 1 else activation.flatten(1)
    if activation.ndim > 2 and activation.shape[-1] == width:
        return activation.flatten(1, -2).mean(dim=1)
    if activation.ndim == 2 and activation.shape[1] == width:
        return activation
    raise RequirementError(
        f"the final layer takes inputs of shape {tuple(activation.shape)}; one vector of {width} per image is needed"
    )


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, nn.Linear):
        return True
    return isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1


def _candidates(*parts: nn.Module) -> list[list[nn.Module]]:
    """Sets of layers that may be the head: the last linear layer of each part; all layers as wide as the last one."""
    parts = tuple(child for part in parts for child in (part if isinstance(part, nn.ModuleList) else [part]))
    inner = [[m for m in part.modules() if _is_linear(m)] for part in parts]
    last = [layers[-1] for layers in inner if layers]
    if not last:
        return []
    every = [m for layers in inner for m in layers if len(m.weight) == len(last[-1].weight)]  # type: ignore[arg-type]  # tensors
    return [last] if len(every) == len(last) else [last, every]


def _classifier_candidates(network: nn.Module) -> list[list[nn.Module]]:
    get_classifier = getattr(network, "get_classifier", None)
    if callable(get_classifier):
        classifier = get_classifier()
        parts = classifier if isinstance(classifier, tuple | list) else [classifier]
        return _candidates(*(part for part in parts if isinstance(part, nn.Module)))
    linear: list[nn.Module] = [m for m in network.modules() if isinstance(m, nn.Linear)]
    return [[layer] for layer in linear[: -1 - MAX_CANDIDATES : -1]]
