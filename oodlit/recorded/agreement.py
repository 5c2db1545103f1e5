"""Compare recorded logits with the logits that the head computes from recorded features."""

from collections.abc import Iterable

import torch
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.network import Head
from oodlit.base.text.warn import warn
from oodlit.datamodules.stream import Stream
from oodlit.recorded.rows import MemoryRows, Rows

HALF, SINGLE = 2e-2, 1e-3
"""Largest accepted difference as a fraction of the largest logit: for half precision, and for float32 with TF32."""
_AT_ONCE = 8192
_SUM = 1e-3
"""Tolerance of sums of softmax values in float32; in half precision it is HALF."""
_SHARES = "contains probabilities (they sum to one)"


def disagreement(head: Head, features: Tensor, logits: Tensor) -> str:
    """Describe how recorded logits differ from the logits of the head; empty if they only differ by rounding.

    Example:
        >>> head = Head(torch.eye(2))
        >>> features = torch.tensor([[1.0001, 2.0001]])
        >>> disagreement(head, features, features)
        ''
        >>> disagreement(head, features, features * 1.005)  # doctest: +ELLIPSIS
        'the recorded logits differ from those that the head computes from the recorded features (large...'
    """
    scale, off = float(logits.abs().max()) if logits.numel() else 0.0, 0.0
    tolerance = HALF if _is_half(logits) or _is_half(features) else SINGLE
    for start in range(0, len(logits), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        rebuilt = head(features[part].to(head.weight.device)).double()
        off = max(off, float((rebuilt - logits[part].to(rebuilt.device).double()).abs().max()))
    if off <= tolerance * scale:
        return ""
    return (
        f"the recorded logits differ from those that the head computes from the recorded features (largest difference"
        f" {off:.3g}, largest logit {scale:.3g})"
    )


def check_sets(streams: Iterable[Stream], head: Head | None) -> str:
    """Check the rows of all sets; return why the head cannot be used, or "" if it can.

    A head that matches no set is not used. If it matches only some sets, the others come from another network, or their
    rows are in another order.

    Raises:
        InvalidArgumentError: Rows of some sets are probabilities or their logarithms and those of others are not, or
            the head matches only some sets; names the sets.
    """
    held = {s.name: s.source.all for s in streams if isinstance(s.source, MemoryRows) and len(s.source)}
    kinds = {name: _kind(rows) for name, rows in held.items()}
    if softmax := next(filter(None, kinds.values()), ""):
        like = f"{_names(n for n in held if kinds[n] == softmax)}: every row of the logits {softmax}"
        if unlike := [n for n in held if kinds[n] != softmax]:
            raise InvalidArgumentError(
                f"{like}, unlike the rows of {_names(unlike)}; pass the logits before the softmax for all sets"
            )
        exact = "" if softmax == _SHARES else ". MSP gives the same scores with these values"
        warn(f"{like}. Most detectors require the logits before the softmax{exact}")
    if head is None:
        return ""
    problems = {
        name: disagreement(head, rows.features, rows.logits)
        for name, rows in held.items()
        if rows.features is not None and rows.logits is not None
    }
    bad = {name: text for name, text in problems.items() if text}
    if not bad:
        return ""
    name, text = next(iter(bad.items()))
    if len(bad) < len(problems):
        raise InvalidArgumentError(
            f"{_names(bad)}: {text}; the head reproduces the logits of {_names(n for n in problems if n not in bad)}."
            " Features and logits must be rows of the same images, in the same order, from the network of the head"
        )
    return f"{text}, in all sets" if len(bad) > 1 else f"{text}, in {name!r}"


def _kind(rows: Rows) -> str:
    """Why every row must be the output of a softmax, or its logarithm; empty if that is not the case."""
    if rows.logits is None or rows.logits.shape[1] < 2 or not len(rows.logits):
        return ""
    tolerance = HALF if _is_half(rows.logits[:_AT_ONCE]) else _SUM
    could_be_shares = could_be_logarithms = True
    for start in range(0, len(rows.logits), _AT_ONCE):
        part = rows.logits[start : start + _AT_ONCE].double()
        could_be_shares &= bool((part >= 0).all() & ((part.sum(dim=1) - 1).abs() <= tolerance).all())
        could_be_logarithms &= bool((part <= 0).all() & (part.logsumexp(dim=1).abs() <= tolerance).all())
        if not (could_be_shares or could_be_logarithms):
            return ""
    return _SHARES if could_be_shares else "contains logarithms of probabilities"


def _is_half(values: Tensor) -> bool:
    """Whether values were rounded to half precision, even if they are stored as float32."""
    if values.dtype.itemsize < 4:
        return True
    parts = [values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE)]
    return any(
        all(bool((part == part.to(low).to(part)).all()) for part in parts) for low in (torch.half, torch.bfloat16)
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
