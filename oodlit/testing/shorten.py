"""Show drawn values on one line of a message."""

import reprlib
from typing import Any

import torch


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = 6
        self.maxstring = self.maxother = 120

    def repr_Tensor(self, value: torch.Tensor, level: int) -> str:
        """Small tensors in full, others by shape, usual value and range."""
        if value.numel() <= self.maxlist:
            return f"tensor {value.tolist()}"
        usual = value.flatten().mode().values.item()
        same = f"{int((value == usual).sum())} of {value.numel()}"
        some = f"values from {value.min():.6g} to {value.max():.6g}, most often {usual:.6g} ({same})"
        return f"tensor of shape {tuple(value.shape)}: {some if (value != usual).any() else f'all {usual:.6g}'}"


def shorten(value: Any) -> str:
    """Return `repr(value)` on about one line; long lists are cut, large tensors summarized.

    Example:
        >>> shorten([*range(100)])
        '[0, 1, 2, 3, 4, 5, ...]'
        >>> shorten(torch.eye(3)[:1]), shorten(torch.eye(30)[:2])
        ('tensor [[1.0, 0.0, 0.0]]', 'tensor of shape (2, 30): values from 0 to 1, most often 0 (58 of 60)')
    """
    return " ".join(_Short().repr(value).split())
