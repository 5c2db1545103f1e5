"""Interpret the output of a network: logits, or a structure that contains them."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.text.warn import warn

Output = int | str | None
"""Part of a network's output: a position, a key or an attribute name; None = all of it."""


def pick(raw: Any, output: Output, name: str) -> Any:
    """Return the requested part of `raw`.

    Args:
        raw: Output of the network.
        output: Position, key or attribute; None for all of it.
        name: Name of the network in messages.

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
    raise InvalidArgumentError(
        f"{name}: expected output={output!r} to select a part of what the network returns, got {_kind(raw)};"
        f" {f'omit output={output!r}' if isinstance(raw, Tensor) else _way_out(raw)}"
    )


def all_are_logits(raw: Any) -> bool:
    """Return whether a network returned several matrices of the same shape, possibly those of several heads."""
    several = isinstance(raw, tuple | list) and len(raw) > 1
    return several and all(isinstance(r, Tensor) and r.ndim == 2 and r.shape == raw[0].shape for r in raw)


def as_logits(raw: Any, batch: int, name: str) -> Tensor:
    """Check logits (batch, classes).

    Raises:
        InvalidArgumentError: It is something else.
    """
    if not isinstance(raw, Tensor) or raw.ndim != 2 or not raw.dtype.is_floating_point:
        raise InvalidArgumentError(
            f"{name}: expected logits (batch, classes) from the network, got {_kind(raw)}; {_way_out(raw)}"
        )
    if raw.shape[0] != batch:  # not len(), which `torch.export` would treat as a constant
        raise InvalidArgumentError(f"{name}: expected {batch} rows of logits, one per image, got {len(raw)}")
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
            way_out = "pool the features to one vector per image, for example with global_pool='avg'"
        raise InvalidArgumentError(
            f"{name}: expected features of shape ({batch}, features), got {_kind(raw)};"
            f" {way_out or _way_out(raw, 'one feature vector per image')}"
        )
    return raw


def check_no_probabilities(logits: Tensor, name: str) -> None:
    """Refuse outputs after a softmax: detectors would rank the rounding errors of their logarithms.

    Rows with equal values for all classes are inconclusive and pass.

    Raises:
        InvalidArgumentError: All rows are probabilities or log-probabilities, up to rounding.

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
        f"{name} returns {kind} instead of logits. It ends in a {layer}, which rounds away differences that most"
        f" detectors require. Remove the {layer}, or pass the submodule before it"
    )


def warn_of_probabilities(logits: Tensor, name: str) -> None:
    """Warn if outputs look like those of a sigmoid, or of a softmax followed by other steps.

    For networks whose logits do not evidently come from a linear layer, so that their nature is uncertain.
    """
    values = logits.detach().cpu().double()
    values = values[:, ~(values <= -1e4).all(dim=0)]  # masked classes
    if not values.numel() or not bool(values.isfinite().all()) or bool((values == values[:, :1]).all()):
        return
    tolerance = 1e-3 if logits.dtype.itemsize >= 4 else 2e-2
    likeness = ""
    if bool(((values >= 0) & (values <= 1)).all()):
        likeness = "probabilities (all outputs of the first batch are between 0 and 1)"
    elif _is_of_one_sign(values) and _is_constant(values.sum(dim=1), values, tolerance):
        likeness = f"probabilities (each row of the first batch sums to {float(values[0].sum()):.4g})"
    elif len(values) > 2 and any(_are_logarithms(sign * values, tolerance) for sign in (1, -1)):  # two rows may agree
        likeness = "log-probabilities (after scaling, all rows of the first batch have the same log-sum-exp)"
    if likeness:
        warn(
            f"{name}: the outputs look like {likeness}, but detectors require logits. Pass the network without its"
            " last step, or ignore this warning if the outputs are logits"
        )


def _is_of_one_sign(values: Tensor) -> bool:
    return values.shape[1] > 1 and bool((values >= 0).all() | (values <= 0).all())


def _is_constant(numbers: Tensor, values: Tensor, tolerance: float) -> bool:
    """Return whether one number per row is constant while the values of the rows are not."""
    variation = float((values.amax(dim=0) - values.amin(dim=0)).amax())
    return float(numbers.amax() - numbers.amin()) < tolerance * variation


def _are_logarithms(values: Tensor, tolerance: float) -> bool:
    """Return whether exponentials of rows, raised to a common power, have a constant sum."""
    if values.shape[1] < 2 or _is_constant(values.logsumexp(dim=1), values, tolerance):
        return values.shape[1] > 1
    if float(values.amax()) >= 0:
        return False
    low, high = 0.0, math.log(values.shape[1]) / -float(values[0].amax())
    for _ in range(60):  # the sum of the first row decreases from the number of classes to one
        middle = (low + high) / 2
        low, high = (middle, high) if float((middle * values[0]).logsumexp(dim=0)) > 0 else (low, middle)
    return _is_constant((high * values).logsumexp(dim=1), high * values, tolerance)


def _kind(raw: object) -> str:
    """Describe the output of a network for messages."""
    if isinstance(raw, Tensor):
        return f"a tensor of shape {tuple(raw.shape)} and dtype {raw.dtype}"
    if isinstance(raw, Mapping):
        return f"{type(raw).__name__} with keys {', '.join(map(repr, raw)) or '(none)'}"
    if isinstance(raw, tuple | list):
        return f"{type(raw).__name__} of {len(raw)} parts ({', '.join(type(r).__name__ for r in raw[:4])})"
    return type(raw).__name__


def _way_out(raw: object, wanted: str = "logits, or use a network with a classifier") -> str:
    """Suggest a fix, with the parts that may be logits."""
    if isinstance(raw, tuple | list):
        raw = dict(enumerate(raw))
    parts = raw if isinstance(raw, Mapping) else getattr(raw, "__dict__", {})
    able = [k for k, v in parts.items() if isinstance(v, Tensor) and v.ndim == 2 and v.dtype.is_floating_point]
    if not able or isinstance(raw, Tensor):
        return f"wrap the network in a module that returns {wanted}"
    return f"select the part to use: {' or '.join(f'OODModule(..., output={k!r})' for k in able[:3])}"
