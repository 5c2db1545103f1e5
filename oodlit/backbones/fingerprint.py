"""What a fit belongs to: weights, head and transform - what they are and, where no description tells, what they do."""

import functools
import hashlib
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from oodlit.fingerprint import sketch

SIZES = ((97, 131), (300, 200))
"""Width and height of the pictures that a transform is tried with."""
MAX_DEPTH = 4


class WeightsHash:
    """Hash of all weights and buffers of a network, kept until one of them changes.

    Args:
        network: The network.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._key: object = None
        self._hash = ""
        self._before_conversion: dict[str, str] = {}

    def __call__(self) -> str:
        """The hash; that of the original weights, where a run has converted them to another precision."""
        key = [(id(v), v.data_ptr(), 0 if v.is_inference() else v._version) for v in self._tensors()]
        if not self._hash or key != self._key:
            self._key, self._hash = key, _hash_of_state(self.network)
        return self._before_conversion.get(self._hash, self._hash)

    def expect_conversion(self, dtype: torch.dtype) -> None:
        """Recognise the weights after a run has converted them to `dtype`, as Lightning's precisions do in place."""
        original = self()
        if any(v.is_floating_point() and v.dtype != dtype for v in self._tensors()):
            self._before_conversion[_hash_of_state(self.network, dtype)] = original

    def _tensors(self) -> Iterator[Tensor]:
        yield from self.network.parameters()
        yield from self.network.buffers()


def hash_of(text: str) -> str:
    """A short hash of a text."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _hash_of_state(network: nn.Module, dtype: torch.dtype | None = None) -> str:
    digest = hashlib.blake2b(digest_size=16)
    # The name that `torch.compile` puts around a network says nothing about its weights.
    state = {name.replace("_orig_mod.", ""): value for name, value in network.state_dict().items()}
    for name, value in sorted(state.items()):
        for part in value if isinstance(value, tuple | list) else (value,):
            _add(digest, name, part, dtype)
    return digest.hexdigest()


def _add(digest: Any, name: str, value: object, dtype: torch.dtype | None) -> None:
    if not isinstance(value, Tensor):  # quantised layers keep settings beside their weights
        digest.update(f"{name}:{describe(value)}".encode())
        return
    plain = value.detach().dequantize() if value.is_quantized else value.detach()
    if dtype is not None and plain.is_floating_point():
        plain = plain.to(dtype)
    digest.update(f"{name}:{plain.dtype}:{tuple(plain.shape)}".encode())
    data = plain.cpu().contiguous().flatten()
    digest.update(data.view(torch.uint8).numpy() if data.numel() else b"")


def describe(value: object, depth: int = 0) -> str:
    """A transform, or a part of one, as text that stays the same from run to run.

    The address in the default repr of objects and functions changes from run to run; their names and values do not.

    Example:
        >>> describe([round, object()])
        '[<built-in function round>, builtins.object()]'
    """
    if isinstance(value, Tensor | np.ndarray):
        array = torch.as_tensor(value).detach().cpu()
        return f"array{tuple(array.shape)}:{hash_of(str(array.tolist()))}"
    text = repr(value)
    if " at 0x" not in text:
        return text
    return _path(value) if depth > MAX_DEPTH else _describe_parts(value, depth + 1)


def _describe_parts(value: Any, depth: int) -> str:
    """Name of a function or class, and what it holds."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(describe(v, depth) for v in value)}]"
    if isinstance(value, functools.partial):
        parts = [describe(v, depth) for v in (value.func, *value.args)]
        return f"functools.partial({', '.join(parts + _named(value.keywords, depth))})"
    if isinstance(value, FunctionType):
        cells = [c.cell_contents for c in value.__closure__ or () if _is_filled(c)]
        inner = [describe(v, depth) for v in (*cells, *(value.__defaults__ or ()))]
        return f"{_path(value)}({', '.join(inner)})"
    if isinstance(value, MethodType):
        return f"{describe(value.__self__, depth)}.{value.__name__}"
    state = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    return f"{_path(value)}({', '.join(_named(state, depth))})"


def _named(values: Mapping[Any, Any], depth: int) -> list[str]:
    shown = ((str(k), v) for k, v in values.items() if not str(k).startswith("_"))
    return [f"{k}={describe(v, depth)}" for k, v in sorted(shown, key=lambda pair: pair[0])]


def _path(value: object) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def try_transform(transform: Any, name: str) -> tuple[str, Tensor | None]:
    """What a transform makes of fixed pictures: a sketch of it, and the outputs as one batch.

    Both are empty where there is no transform, it takes no pictures, or it draws at random; the last is warned of.
    """
    if transform is None:
        return "", None
    pictures = [_picture(*size) for size in SIZES]
    with _random_state_kept():
        try:
            tries = []
            for seed in range(3):
                torch.default_generator.manual_seed(seed)
                np.random.seed(seed)
                random.seed(seed)
                tries.append([torch.as_tensor(transform(picture.copy())) for picture in pictures])
        except Exception:  # a transform for other inputs than pictures fails with anything
            return "", None
    first, second = tries[0]
    if not all(torch.equal(first, other[0]) and torch.equal(second, other[1]) for other in tries[1:]):
        warnings.warn(
            f"{name}: the transform gives another result each time for the same picture; scores depend on chance,"
            " and whether a saved fit belongs to it cannot be checked - use a transform without random steps",
            stacklevel=4,
        )
        return "", None
    is_one_batch = first.shape == second.shape and first.dtype == second.dtype
    return sketch(first, second), torch.stack([first, second]) if is_one_batch else first[None]


def pattern(like: Tensor) -> Tensor:
    """Numbers between -1 and 1 from fixed arithmetic, in the shape of a batch of floating-point images."""
    steps = torch.arange(like.numel(), dtype=torch.float64).reshape(like.shape)
    return ((steps * 0.754877666).sin() * 0.5 + (steps * 0.0123).cos() * 0.5).to(torch.float32)


def _picture(width: int, height: int) -> Image.Image:
    """A picture with slopes and with noise from integer arithmetic, so that sizes, cuts and filters show."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    noise = (x * 7919 + y * 104_729 + c * 1_299_709) * 2_654_435_761 % 2**32 >> 24
    slopes = (x * (40 + 30 * c) // width + y * (80 - 20 * c) // height) % 256
    return Image.fromarray(((noise + 2 * slopes) // 3 + 20 * c).clip(0, 255).astype(np.uint8))


@contextmanager
def _random_state_kept() -> Iterator[None]:
    of_numpy, of_python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)
