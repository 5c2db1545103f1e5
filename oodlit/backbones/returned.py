"""What a network returns: logits, or something that holds them."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from oodlit.errors import InvalidArgumentError

Output = int | str | None
"""Which part of what a network returns: a position, a key or the name of an attribute; None = all of it."""


def pick(raw: Any, output: Output, name: str) -> Any:
    """The part of `raw` that was asked for.

    Args:
        raw: What the network returned.
        output: Position, key or attribute; None for all of it.
        name: How messages call the network.

    Raises:
        InvalidArgumentError: There is no such part.

    Example:
        >>> pick({"logits": 1, "loss": 2}, "logits", "net"), pick((3, 4), -1, "net"), pick((5,), None, "net")
        (1, 4, 5)
    """
    if output is None:
        return raw[0] if isinstance(raw, tuple | list) and len(raw) == 1 else raw
    try:
        if isinstance(output, str):
            return raw[output] if isinstance(raw, Mapping) and output in raw else getattr(raw, output)
        if not isinstance(raw, Tensor):
            return raw[output]
    except (AttributeError, LookupError, TypeError):
        pass
    raise InvalidArgumentError(f"{name}: output={output!r}, but the network gives {_kind(raw)}; {_way_out(raw)}")


def all_are_logits(raw: Any) -> bool:
    """Whether a network returned several matrices of one shape, which may be those of several heads."""
    several = isinstance(raw, tuple | list) and len(raw) > 1
    return several and all(isinstance(r, Tensor) and r.ndim == 2 and r.shape == raw[0].shape for r in raw)


def as_logits(raw: Any, batch: int, name: str) -> Tensor:
    """Logits (batch, classes).

    Raises:
        InvalidArgumentError: It is something else; says what, and what to write.
    """
    if not isinstance(raw, Tensor) or raw.ndim != 2 or not raw.dtype.is_floating_point:
        raise InvalidArgumentError(
            f"{name}: the network gives {_kind(raw)} instead of logits (batch, classes); {_way_out(raw)}"
        )
    if raw.shape[0] != batch:  # `len` would make a constant of it for `torch.export`
        raise InvalidArgumentError(
            f"{name}: the network gives {len(raw)} rows of logits for {batch} images; one per image is needed"
        )
    return raw


def as_vectors(raw: Any, batch: int, name: str, *, way_out: str = "") -> Tensor:
    """Check features (batch, features), such as those of a network without a classifier; 1x1 maps are flattened.

    Args:
        raw: What was returned.
        batch: Number of images, or of other inputs.
        name: Who returned it, for the message.
        way_out: How to fix it, for the message; empty = by what was returned.

    Raises:
        InvalidArgumentError: It is something else.
    """
    if isinstance(raw, Tensor) and raw.ndim > 2 and raw[:1].numel() == raw.shape[1]:
        raw = raw.flatten(1)
    if not isinstance(raw, Tensor) or raw.ndim != 2 or not raw.dtype.is_floating_point or raw.shape[0] != batch:
        if not way_out and isinstance(raw, Tensor) and raw.ndim > 2:
            way_out = "pool it to one vector per image, for example with global_pool='avg'"
        raise InvalidArgumentError(
            f"{name}: expected features of shape ({batch}, features), got {_kind(raw)}; {way_out or _way_out(raw)}"
        )
    return raw


def check_no_probabilities(logits: Tensor, name: str) -> None:
    """Refuse outputs that went through a softmax: detectors would rank the rounding errors of their logarithm.

    Rows that are equal for all classes tell nothing and pass.

    Raises:
        InvalidArgumentError: All rows are probabilities, or logarithms of probabilities, up to rounding.

    Example:
        >>> import torch
        >>> check_no_probabilities(torch.tensor([[0.7, 0.4], [2.0, -1.0]]), "net")
    """
    if logits.shape[1] < 2 or not len(logits) or bool((logits == logits[:, :1]).all()):
        return
    tolerance = 1e-4 if logits.dtype.itemsize >= 4 else 2e-2
    values = logits.detach().cpu().double()  # not every device has float64
    if bool((values >= 0).all()) and bool(((values.sum(dim=1) - 1).abs() < tolerance).all()):
        kind, layer = "probabilities (rows sum to one)", "softmax"
    elif bool((values <= tolerance).all()) and bool((values.logsumexp(dim=1).abs() < tolerance).all()):
        kind, layer = "log-probabilities (exponentials of rows sum to one)", "log_softmax"
    else:
        return
    raise InvalidArgumentError(
        f"{name} gives {kind} instead of logits: it ends in a {layer}, after which most detectors only rank rounding"
        " errors; hand over the network without it - take the layer out, or give the submodule in front of it"
    )


def warn_of_probabilities(logits: Tensor, name: str) -> None:
    """Warn where outputs look as if they went through a sigmoid, or a softmax and some more steps.

    For networks whose logits are not seen to come out of a linear layer: what they are cannot be known for certain.
    """
    values = logits.detach().cpu().double()
    values = values[:, ~(values <= -1e4).all(dim=0)]  # classes that are masked
    if not values.numel() or not bool(values.isfinite().all()) or bool((values == values[:, :1]).all()):
        return
    tolerance = 1e-3 if logits.dtype.itemsize >= 4 else 2e-2
    likeness = ""
    if bool(((values >= 0) & (values <= 1)).all()):
        likeness = "probabilities: all of the first outputs lie between 0 and 1"
    elif _is_of_one_sign(values) and _is_constant(values.sum(dim=1), values, tolerance):
        likeness = f"probabilities: each row of the first outputs sums to {float(values[0].sum()):.4g}"
    elif any(_are_logarithms(sign * values, tolerance) for sign in (1, -1)):
        likeness = "log-probabilities: all rows of the first outputs have the same log-sum-exp after a scale"
    if likeness:
        warnings.warn(
            f"{name}: its outputs look like {likeness}; detectors need logits. Hand over the network without its last"
            " step; if they are logits, nothing is wrong",
            stacklevel=3,
        )


def _is_of_one_sign(values: Tensor) -> bool:
    return values.shape[1] > 1 and bool((values >= 0).all() | (values <= 0).all())


def _is_constant(numbers: Tensor, values: Tensor, tolerance: float) -> bool:
    """Whether one number per row stays the same while the values of the rows do not."""
    variation = float((values.amax(dim=0) - values.amin(dim=0)).amax())
    return float(numbers.amax() - numbers.amin()) < tolerance * variation


def _are_logarithms(values: Tensor, tolerance: float) -> bool:
    """Whether exponentials of rows, all of them to one power, sum to a constant."""
    if values.shape[1] < 2 or _is_constant(values.logsumexp(dim=1), values, tolerance):
        return values.shape[1] > 1
    if float(values.amax()) >= 0:
        return False
    low, high = 0.0, math.log(values.shape[1]) / -float(values[0].amax())
    for _ in range(60):  # the sum of the first row falls from the number of classes to one
        middle = (low + high) / 2
        low, high = (middle, high) if float((middle * values[0]).logsumexp(dim=0)) > 0 else (low, middle)
    return _is_constant((high * values).logsumexp(dim=1), high * values, tolerance)


def _kind(raw: object) -> str:
    """What a network gave, in the words of a message."""
    if isinstance(raw, Tensor):
        return f"a tensor of shape {tuple(raw.shape)} and dtype {raw.dtype}"
    if isinstance(raw, Mapping):
        return f"a {type(raw).__name__} with {', '.join(map(repr, raw))}"
    if isinstance(raw, tuple | list):
        return f"a {type(raw).__name__} of {len(raw)} ({', '.join(type(r).__name__ for r in raw[:4])})"
    return f"a {type(raw).__name__}"


def _way_out(raw: object) -> str:
    """What to write instead, with the parts that may be logits."""
    if isinstance(raw, Tensor):
        return "wrap it in a module that returns logits, or use a network with a classifier"
    if isinstance(raw, Mapping):
        parts: list[tuple[Any, Any]] = list(raw.items())
    elif isinstance(raw, tuple | list):
        parts = list(enumerate(raw))
    else:
        parts = list(getattr(raw, "__dict__", {}).items())
    able = [k for k, v in parts if isinstance(v, Tensor) and v.ndim == 2 and v.dtype.is_floating_point]
    if not able:
        return "wrap it in a module that returns logits, or use a network with a classifier"
    return f"say which part are the logits: {' or '.join(f'OODModule(..., output={k!r})' for k in able[:3])}"
