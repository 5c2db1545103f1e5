"""Find the linear head of a network, by name or by trying.

The features are the input of the head, so that head(features) == logits holds by construction. Candidates are linear
layers; if none of them returns the logits, for example with a low-rank adapter around one, the innermost module that
does.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oodlit.backbones.capture import Call
from oodlit.base.errors import InvalidArgumentError, OodlitError, RequirementError, UnknownNameError
from oodlit.base.outputs import Head

MAX_CANDIDATES = 8
"""Number of linear layers of a plain module to try as its head, starting with the last one."""
MASK = -1e4
"""A logit that is equal for all images and at most this value denotes a masked class."""

_PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Heads:
    """The layers of a network that form its head, determined by its first outputs.

    Args:
        network: The classifier.
        candidates: Sets of layer names, most likely first; empty if layers cannot be inspected.
        problem: Why there is no head, if known in advance; None = the first outputs decide.
    """

    def __init__(self, network: nn.Module, candidates: tuple[tuple[str, ...], ...], problem: str | None = None) -> None:
        self.network, self.candidates, self.known_problem = network, candidates, problem
        self.start_again()

    def start_again(self) -> None:
        """Discard what was determined."""
        self.layers = self.candidates[0] if self.candidates else ()
        self.problem = self.known_problem
        self.others: tuple[str, ...] = ()
        """Other layers with as many outputs as there are logits, if no head was found."""
        self._masked: Tensor | None = None
        self._scale = 1.0
        self._widths: dict[str, int] = {}

    @property
    def label(self) -> str:
        """The layers of the head in messages."""
        return f"layer{'s' if len(self.layers) > 1 else ''} {' and '.join(map(repr, self.layers))}"

    @property
    def wanted(self) -> tuple[str, ...]:
        """Layers to capture the inputs of: all candidates until the head is known, then only the layers of the head."""
        if self.problem is not None:
            return self.layers
        return tuple(dict.fromkeys(name for candidate in self.candidates for name in candidate))

    @property
    def head(self) -> Head:
        """The linear head with the current weights."""
        head = join_heads([self.network.get_submodule(name) for name in self.layers], self._widths.get(self.layers[0]))
        if self._scale != 1:
            head = Head(head.weight * self._scale, head.offset * self._scale)
        if self._masked is None:
            return head
        masked = self._masked.to(head.weight.device)
        is_masked = masked < 0
        return Head(head.weight.masked_fill(is_masked[:, None], 0.0), torch.where(is_masked, masked, head.offset))

    def features(self, kept: Mapping[str, Any]) -> Tensor | None:
        """Return the input of the head, one vector per image; None without a head."""
        if not self.layers:
            return None
        try:
            parts = [to_vectors(kept[n], self.network.get_submodule(n)) for n in self.layers]
        except (KeyError, OodlitError):
            return None  # the reason is in `problem`
        features = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        # A view of an image's tokens would keep all of them in memory along with the features.
        is_traced = torch.compiler.is_compiling()  # by torch.export, where sizes are symbols
        is_view = not is_traced and features.untyped_storage().nbytes() > features.nbytes
        return features.clone() if is_view else features

    def choose(self, logits: Tensor, kept: dict[str, Any], survey: Callable[[], Sequence[Call]]) -> None:
        """Choose the first candidate that returns the model's logits, otherwise the likeliest one with the reason.

        Args:
            logits: The model's own logits.
            kept: Inputs of the `wanted` layers; that of the chosen module is added.
            survey: Runs an extra forward pass that covers all modules; only called if no candidate matches.
        """
        problems: dict[tuple[str, ...], str] = {}
        for candidate in self.candidates:
            self.layers = candidate
            problems[candidate] = self._verify(logits, kept)
            if not problems[candidate]:
                self.problem = ""
                return
        calls = survey()
        around = [call for call in calls if self._may_be_head(call, logits)]
        for name, given, _ in around:
            self.layers, kept[name] = (name,), given
            if not self._verify(logits, kept):
                self.problem = ""
                return
        if around and self._has_branches(around[0][0]):  # the input of one branch does not determine the logits
            self.layers, self.problem = (around[0][0],), f"layer {around[0][0]!r} returns the logits, but is not linear"
            return
        for candidate in self.candidates:
            self.layers = candidate
            if not self._verify(logits, kept, may_scale=True):
                self.problem = ""
                return
        self.layers, self.problem = self.candidates[0], problems[self.candidates[0]]
        self._masked, self._scale = None, 1.0
        branches = self._branches(calls, logits)
        if len(branches) > 1:  # the widest is the most informative; the small side of an adapter is nearly useless
            self.layers = (max(branches, key=lambda n: _width(self.network.get_submodule(n)) or 0),)
            self.problem = problems[self.layers]
            self.others = tuple(n for n in branches if n not in self.layers)

    def _branches(self, calls: Sequence[Call], logits: Tensor) -> list[str]:
        """Return layers with outputs that add up to the logits, each scaled by one factor."""
        single = {c[0].replace("_orig_mod.", ""): c[0] for c in self.candidates if len(c) == 1}
        outputs = {name: out for name, _, out in calls if out.shape == logits.shape}
        gave = {layer: outputs[name] for name, layer in single.items() if name in outputs}  # the likeliest first
        if not gave or logits.numel() < 3 * len(gave) or not bool(logits.isfinite().all()):
            return []
        parts = torch.stack([out.flatten() for out in gave.values()], dim=1).double().cpu()
        whole = logits.detach().flatten().double().cpu()
        factors = torch.linalg.lstsq(parts, whole[:, None], driver="gelsd").solution[:, 0]
        if not _close((parts @ factors).float(), whole.float(), _tolerance(logits)):
            return []
        return [name for name, factor in zip(gave, factors.tolist(), strict=True) if abs(factor) > 1e-3]

    def _may_be_head(self, call: Call, logits: Tensor) -> bool:
        """Return whether a module computes the logits from other inputs, with its own weight matrix."""
        name, given, gave = call
        if gave.shape != logits.shape or not _close(gave.float(), logits.detach().float(), 1e-6):
            return False
        matrices = (p for p in self.network.get_submodule(name).parameters() if p.ndim > 1)
        return not torch.equal(given, gave) and any(p.numel() > given.shape[1] for p in matrices)

    def _has_branches(self, name: str) -> bool:
        last = self._num_outputs(self.candidates[0][-1])
        inner = (n for n, m in self.network.get_submodule(name).named_modules(prefix=name) if _is_linear(m))
        return sum(self._num_outputs(n) == last for n in inner) > 1

    def _num_outputs(self, name: str) -> int | None:
        weight = getattr(self.network.get_submodule(name), "weight", None)
        return len(weight) if isinstance(weight, Tensor) else None

    def _verify(self, logits: Tensor, kept: Mapping[str, Any], *, may_scale: bool = False) -> str:
        """Return why head(features) differs from the model's logits; empty if it agrees up to the pass's precision."""
        self._masked, self._scale = None, 1.0
        if unused := [n for n in self.layers if n not in kept]:
            return f"the final layer {unused[0]!r} is not used in the forward pass"
        try:
            features = torch.cat([to_vectors(kept[n], self.network.get_submodule(n)) for n in self.layers], dim=1)
            _check_rows(self.label, len(features), len(logits))
            self._widths[self.layers[0]] = features.shape[1]
            head = self.head
        except (OodlitError, RuntimeError, TypeError) as error:  # a module may not accept unit vectors
            said = str(error).splitlines()[0]
            return str(error) if isinstance(error, OodlitError) else f"{self.label} cannot be a linear head ({said})"
        if head.num_classes != logits.shape[1]:
            return f"expected {logits.shape[1]} outputs of {self.label}, one per logit, got {head.num_classes}"
        given, rebuilt = logits.detach().float(), head(features.detach().float())
        self._masked = _masked_classes(given, rebuilt)
        if self._masked is not None:
            rebuilt = self.head(features.detach().float())
        off, scale = _distance(rebuilt, given)
        if off <= _tolerance(features, logits) * scale + 1e-12:
            return ""
        factor = _positive_factor(rebuilt, given) if may_scale else 0.0
        if factor and _close(rebuilt * factor, given, _tolerance(features, logits)):
            self._scale = factor
            return ""
        return (
            f"the logits are not a linear function of the input of {self.label}"
            f" (largest difference: {off:.3g}, largest logit: {scale:.3g})"
        )


def _check_rows(label: str, rows: int, images: int) -> None:
    if rows != images:
        raise RequirementError(
            f"expected one row per image as input of {label}, got {rows} rows for {images} images; if the network"
            " augments images at test time, switch this augmentation off"
        )


def gives(layer: nn.Module, taken: object, given: Tensor) -> bool:
    """Return whether a linear layer maps `taken` to `given`."""
    try:
        rebuilt = Head(*linear_map(layer))(to_vectors(taken, layer).detach().float())
    except OodlitError:
        return False
    return rebuilt.shape == given.shape and _close(rebuilt, given.detach().float(), _tolerance(given))


def _positive_factor(rebuilt: Tensor, given: Tensor) -> float:
    """Return the temperature behind a linear layer that may map its outputs to the logits; 0 if there is none.

    Only if several different images show the same temperature.
    """
    one, other = rebuilt.double().cpu(), given.double().cpu()
    if len(one) < 3 or one.shape[1] < 2 or not bool(one.isfinite().all() and other.isfinite().all()):
        return 0.0
    if float((one - one.mean(dim=0)).abs().amax()) <= 0.01 * float(one.abs().amax()):
        return 0.0
    size = float(one.square().sum())
    return max(float((one * other).sum()) / size, 0.0) if size > 0 else 0.0


def _tolerance(*values: Tensor) -> float:
    return 1e-3 if all(v.dtype.itemsize >= 4 for v in values) else 0.05


def _distance(rebuilt: Tensor, given: Tensor) -> tuple[float, float]:
    """Return the largest difference, and the largest absolute value of an unmasked class."""
    both = torch.stack([rebuilt, given])
    usual = both.masked_fill(both <= MASK, 0.0).abs()
    scale = float(usual.amax()) or float(both.abs().amax())
    # Equal infinities differ by NaN instead of zero.
    difference = (rebuilt - given).abs().masked_fill(rebuilt == given, 0.0)
    return float(difference.nan_to_num(nan=torch.inf, posinf=torch.inf).amax()), scale


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    off, scale = _distance(one, other)
    return off <= tolerance * scale


def _masked_classes(given: Tensor, rebuilt: Tensor) -> Tensor | None:
    """Return the constant logits of classes masked after the head, 0 for all other classes; None without any."""
    masked = (given == given[:1]).all(dim=0) & (given <= MASK).all(dim=0) & (given != rebuilt).any(dim=0)
    return None if not masked.any() or masked.all() else torch.where(masked, given[0], torch.zeros_like(given[0]))


def find_head_layers(network: nn.Module, head: str | None) -> tuple[tuple[str, ...], ...]:
    """Return names of the final linear layers, most likely first: one layer, or several with averaged logits.

    Args:
        network: The classifier.
        head: Name of the final layer, or None to determine it: timm's `get_classifier`, else the last linear layer that
            returns the logits.

    Returns:
        Candidates; the first forward pass shows which of them is right.

    Raises:
        InvalidArgumentError: The layer does not exist or is not linear, or there is no linear layer.
    """
    names = {id(module): name for name, module in network.named_modules()}
    if head is None:
        candidates = _classifier_candidates(network)
        if not candidates:
            raise InvalidArgumentError(
                f"{type(network).__name__}: no final linear layer found; name the layer with OODModule(..., head='...')"
                " or --head, or pass features_only=True if the outputs are features. Last layers:"
                f" {', '.join(n for n, _ in list(network.named_modules())[-8:] if n) or 'none'}"
            )
    else:
        try:
            chosen = network.get_submodule(head)
        except AttributeError:
            linear = [n for n, m in network.named_modules() if _is_linear(m)]
            raise InvalidArgumentError(f"head={head!r}: {UnknownNameError.of('layer', head, linear[-12:])}") from None
        candidates = _candidates(chosen)
        if not candidates and any(p.ndim > 1 for p in chosen.parameters()) and not isinstance(chosen, _CONVOLUTIONS):
            candidates = [[chosen]]  # a custom layer; the first forward pass shows whether it is linear
        if not candidates:
            raise InvalidArgumentError(
                f"head={head!r}: expected a Linear or 1x1 Conv2d layer, got {str(chosen).splitlines()[0].rstrip('(')}"
            )
    return tuple(tuple(names[id(layer)] for layer in candidate) for candidate in candidates)


def join_heads(layers: Sequence[nn.Module], width: int | None = None) -> Head:
    """Join linear layers on concatenated features to one head for their mean: [W1 W2] / n, mean of the biases."""
    maps = [linear_map(layer, width) for layer in layers]
    weight, bias = torch.cat([w for w, _ in maps], dim=1), torch.stack([b for _, b in maps]).sum(dim=0)
    return Head(weight / len(maps), bias / len(maps))


@torch.no_grad()
def linear_map(layer: nn.Module, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a layer, float32: its own, or derived from its outputs for zero and unit vectors.

    The caller must check whether the module is in fact linear.

    Args:
        layer: A linear layer, or a module around one, such as a low-rank adapter.
        width: Number of inputs of the module, if it is not a linear layer.
    """
    if _is_linear(layer) and _is_plain(layer):
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)  # a linear layer
        flat = weight.detach().flatten(1).float()
        return flat, bias.detach().float() if isinstance(bias, Tensor) else flat.new_zeros(len(flat))
    width = _width(layer) or width
    if width is None:
        raise RequirementError(
            f"the number of inputs of the layer {type(layer).__name__} is unknown; pass head=NAME of a linear layer"
        )
    like = next((p for p in layer.parameters() if p.is_floating_point()), torch.zeros(()))
    bias = layer(torch.zeros(1, width, dtype=like.dtype, device=like.device)).float().flatten()
    units = torch.split(torch.eye(width, dtype=like.dtype, device=like.device), 1024)
    return (torch.cat([layer(rows).float().flatten(1) for rows in units]) - bias).T.contiguous(), bias


def _is_plain(layer: nn.Module) -> bool:
    """Return whether a linear layer is determined by its weight, without a subclass or hook that adds to it."""
    kind = type(layer)
    is_known = kind.forward in {k.forward for k in _PLAIN} or kind.__module__.startswith("timm.layers.")
    return is_known and not layer._forward_hooks and "forward" not in vars(layer)


def to_vectors(activation: object, layer: nn.Module) -> Tensor:
    """Convert the input of a linear layer to (batch, width): flatten 1x1 maps, average maps and tokens over positions.

    A linear layer commutes with the mean over positions, so the averaged input belongs to the averaged output.
    """
    if not isinstance(activation, Tensor):
        raise RequirementError(f"the final layer received {type(activation).__name__} instead of a tensor")
    width = _width(layer)
    if width is None and activation.ndim > 1 and activation[0].numel() == activation.shape[1]:
        return activation.flatten(1)
    if isinstance(layer, _CONVOLUTIONS):  # a convolution reads the first axis after the batch
        if activation.ndim > 2 and activation.shape[1] == width:
            positions = activation.flatten(2)
            return positions.mean(dim=2) if positions.shape[2] > 1 else positions.flatten(1)
    elif activation.ndim > 2 and activation.shape[-1] == width:
        return activation.flatten(1, -2).mean(dim=1)
    if activation.ndim == 2 and activation.shape[1] == width:
        return activation
    size = "" if width is None else f" of {width}"
    raise RequirementError(
        f"the final layer received shape {tuple(activation.shape)} instead of one vector{size} per image; name"
        " another linear layer with OODModule(..., head='...'), or average tokens or pixels before this layer"
    )


def _width(layer: nn.Module) -> int | None:
    """Return the number of inputs of a linear layer; None for other modules."""
    return int(layer.weight.shape[1]) if _is_linear(layer) else None  # type: ignore[index]  # a tensor


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, nn.Linear):
        return True
    return isinstance(module, _CONVOLUTIONS) and set(module.kernel_size) == {1} and module.groups == 1


def _is_like_linear(module: nn.Module) -> bool:
    """Return whether a layer outside torch may be linear, by its matrix or its name, like quantized layers."""
    name = type(module).__name__
    return ("Linear" in name and "Packed" not in name) or any(p.ndim == 2 for p in module.parameters(recurse=False))


def _candidates(*parts: nn.Module) -> list[list[nn.Module]]:
    """Return candidates for the head: the last linear layer of each part; all layers as wide as the last."""
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
    linear = linear or [m for m in network.modules() if m is not network and _is_like_linear(m)]
    return [[layer] for layer in linear[: -1 - MAX_CANDIDATES : -1]]
