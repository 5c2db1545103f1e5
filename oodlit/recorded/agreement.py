"""Whether recorded logits are logits, and those that a head gives for the recorded features, over all rows."""

from collections.abc import Iterable

import torch
from torch import Tensor

from oodlit.datamodules.stream import Stream
from oodlit.errors import InvalidArgumentError
from oodlit.network import Head
from oodlit.recorded.rows import MemoryRows, Rows

HALF, SINGLE = 2e-2, 1e-3
"""Largest difference, as a share of the largest logit: by the rounding of half precision, and of float32 (TF32)."""
_AT_ONCE = 8192
_SUM = 1e-3
"""Softmax values in float32 sum to one within this, whatever the number of classes; in half precision within HALF."""


def disagreement(head: Head, features: Tensor, logits: Tensor) -> str:
    """How recorded logits differ from those of the head; empty if by the rounding of their precision at most.

    Example:
        >>> head = Head(torch.eye(2))
        >>> features = torch.tensor([[1.0001, 2.0001]])
        >>> disagreement(head, features, features)
        ''
        >>> "differ by up to 0.01" in disagreement(head, features, features * 1.005)
        True
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
        f"the recorded logits are not those that the head gives for the recorded features (they differ by up to"
        f" {off:.3g} where the largest is {scale:.3g})"
    )


def check_sets(streams: Iterable[Stream], head: Head | None) -> str:
    """Check the rows of all sets of one run; returns why the head cannot be used, "" if it can.

    A head that fits no set is not used. One that fits some sets alone means that the others are not from this network,
    or that their rows are in another order.

    Raises:
        InvalidArgumentError: Rows of one set sum to one and those of another do not, or the head fits a part of the
            sets; names the sets.
    """
    held = {s.name: s.source.all for s in streams if isinstance(s.source, MemoryRows) and len(s.source)}
    shares = [name for name, rows in held.items() if _are_shares(rows)]
    if shares and len(shares) < len(held):
        raise InvalidArgumentError(
            f"{_names(shares)}: every row of the logits sums to one and has no negative value, in"
            f" {_names(name for name in held if name not in shares)} they do not; are these softmax values? All sets"
            " need the logits before the softmax"
        )
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
            f"{_names(bad)}: {text}, and in {_names(n for n in problems if n not in bad)} they are; features and"
            " logits of a set must be rows of the same images, in the same order, from the network of the head"
        )
    return f"{text}, in all sets" if len(bad) > 1 else f"{text}, in {name!r}"


def _are_shares(rows: Rows) -> bool:
    if rows.logits is None or rows.logits.shape[1] < 2:
        return False
    tolerance = HALF if _is_half(rows.logits[:_AT_ONCE]) else _SUM
    for start in range(0, len(rows.logits), _AT_ONCE):
        part = rows.logits[start : start + _AT_ONCE].double()
        if bool((part < 0).any()) or bool(((part.sum(dim=1) - 1).abs() > tolerance).any()):
            return False
    return True


def _is_half(values: Tensor) -> bool:
    """Whether values were rounded to half precision, also where they have been stored as float32 since."""
    if values.dtype.itemsize < 4:
        return True
    parts = [values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE)]
    return any(
        all(bool((part == part.to(low).to(part)).all()) for part in parts) for low in (torch.half, torch.bfloat16)
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
