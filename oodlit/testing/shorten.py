"""Drawn values in messages: a line that shows what is unusual about them."""

from collections import Counter
from typing import Any

import torch

_FEW = 4
_SHOWN = 6
_LONGEST = 120


def shorten(value: Any) -> str:
    """A value in at most about a line; long lists and tensors by their size and by the entries that stand out.

    Example:
        >>> shorten([0, 1, 2]), shorten([*range(100)])
        ('[0, 1, 2]', '[0, 1, ..., 99]')
        >>> shorten([0, 2, 1, *range(3, 100)])
        '[0, 1, ..., 99] but for [1]=2, [2]=1'
        >>> shorten([1, 7] * 50)
        '[1, 7, 1, 7, 1, 7, ...] (100 entries)'
        >>> shorten(torch.eye(3)[:2]), shorten(torch.eye(30)[:2])
        ('tensor [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]', 'tensor (2, 30) of 0.0 but for [0, 0]=1.0, [1, 1]=1.0')
    """
    if isinstance(value, torch.Tensor):
        return _tensor(value.detach().cpu())
    if isinstance(value, tuple):
        return f"({', '.join(map(shorten, value))})"
    if isinstance(value, list) and len(value) > _SHOWN + 1:
        return _long_list(value)
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _long_list(values: list[Any]) -> str:
    n = len(values)
    moved = [i for i, v in enumerate(values) if v != i]
    if len(moved) <= _FEW:
        return f"[0, 1, ..., {n - 1}]{_but_for((f'[{i}]', values[i]) for i in moved)}"
    if values == [values[0]] * n:
        return f"[{values[0]!r}] * {n}"
    return f"[{', '.join(map(shorten, values[:_SHOWN]))}, ...] ({n} entries)"


def _tensor(values: torch.Tensor) -> str:
    if values.numel() <= _SHOWN + 1:
        return f"tensor {values.tolist()}"
    flat = values.flatten().tolist()
    usual, times = Counter(flat).most_common(1)[0]
    size = f"tensor {tuple(values.shape)}"
    if len(flat) - times <= _FEW:
        places = (values != usual).nonzero().tolist()
        return f"{size} of {usual!r}{_but_for((str(p), values[tuple(p)].item()) for p in places)}"
    begin = ", ".join(f"{v:.6g}" for v in flat[:_SHOWN])
    return f"{size} from {min(flat):.6g} to {max(flat):.6g}: {begin}, ..."


def _but_for(entries: Any) -> str:
    text = ", ".join(f"{place}={value!r}" for place, value in entries)
    return f" but for {text}" if text else ""
