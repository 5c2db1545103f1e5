"""Identify what a fit belongs to: weights, head and transform, by description or by behavior."""

import copy
import functools
import hashlib
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from oodlit.base.fingerprint import sketch
from oodlit.base.outputs import version_of
from oodlit.base.text.warn import warn
from oodlit.base.value_description import Description, changed, describe, hash_of, shown

SIZES = ((97, 131), (300, 200))
"""Width and height of the pictures for trying transform and network."""
LARGE = (1500, 1000)
"""Size of another picture for the transform: many steps, such as smoothing, only affect pictures larger than their
output."""
_PRIME = 1021
SAMPLED = 4096
"""Number of values per tensor that `WeightsWatch` compares at each check."""


class WeightsHash:
    """Hash of all weights and buffers of a network, kept until a checksum of their values changes.

    Neither identity nor version of a tensor suffices: writes to `.data`, as in weight averaging, do not change the
    version.

    Args:
        network: The network.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._checksum = b""
        self._hash = ""
        self._before_conversion: dict[str, str] = {}

    def __call__(self, *, afresh: bool = False) -> str:
        """Return the hash; that of the original weights if a run has converted them to another precision.

        Args:
            afresh: Whether to hash all weights regardless of the checksum, as every run does at its start.
        """
        checksum = b"".join(map(_checksum, _tensors(self.network)))
        if afresh or not self._hash or checksum != self._checksum:
            self._checksum, self._hash = checksum, _hash_of_state(self.network)
        return self._before_conversion.get(self._hash, self._hash)

    def expect_conversion(self, dtype: torch.dtype) -> None:
        """Recognize the weights after a run has converted them to `dtype` in place, as Lightning's precisions do."""
        original = self(afresh=True)
        if any(v.is_floating_point() and v.dtype != dtype for v in _tensors(self.network)):
            self._before_conversion[_hash_of_state(self.network, dtype)] = original


class WeightsWatch:
    """Notices changed weights or buffers of a network, at a small fraction of the cost of a forward pass.

    A check compares the version of every tensor, and a checksum of up to 4,096 values of each: writes to `.data` change
    no version. All values are hashed only if one of these differs.

    Args:
        network: The network.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> watch = WeightsWatch(layer)
        >>> layer.bias.data += 1
        >>> watch.is_unchanged()
        False
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._state, self._hash = self._look(), _hash_of_state(network)

    def is_unchanged(self) -> bool:
        """Return whether all weights have the values that they had at the start."""
        state = self._look()
        if state != self._state:
            if _hash_of_state(self.network) != self._hash:
                return False
            self._state = state
        return True

    def _look(self) -> tuple[list[tuple[object, ...]], list[bytes]]:
        tensors = _tensors(self.network)
        known: list[tuple[object, ...]] = [(t.dtype, t.shape, version_of(t)) for t in tensors]
        samples: dict[object, list[Tensor]] = {}
        for tensor in tensors:
            sample = _sample(tensor.detach())
            samples.setdefault((sample.dtype, sample.device), []).append(sample)
        return known, [_checksum(torch.cat(parts)) for parts in samples.values()]


def _sample(value: Tensor) -> Tensor:
    """Return up to `SAMPLED` values, evenly spread over a dense tensor."""
    if value.is_quantized:
        value = value.int_repr()
    if value.is_sparse:
        value = value.coalesce().values()
    # In the order of the memory, so that channels-last weights are not copied.
    flat = value.permute(sorted(range(value.ndim), key=value.stride().__getitem__, reverse=True)).flatten()
    return flat[:: -(-len(flat) // SAMPLED) or 1]


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def _hash_of_state(network: nn.Module, dtype: torch.dtype | None = None) -> str:
    digest = hashlib.blake2b(digest_size=16)
    # The name that `torch.compile` adds to a network is irrelevant for its weights.
    state = {name.replace("_orig_mod.", ""): value for name, value in network.state_dict().items()}
    for name, value in sorted(state.items()):
        for part in value if isinstance(value, tuple | list) else (value,):
            _add(digest, name, part, dtype)
    return digest.hexdigest()


def _checksum(value: Tensor) -> bytes:
    """Sum the bits of a tensor by position modulo a prime, which is much faster than a hash and reveals changes."""
    plain = value.detach()
    if plain.is_quantized or plain.is_sparse:
        return _hash_of_values(plain)
    flat = plain.contiguous().flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.dtype.itemsize])
    whole = len(bits) // _PRIME * _PRIME
    sums = [bits[:whole].view(-1, _PRIME).sum(dim=0, dtype=torch.int64), bits[whole:].to(torch.int64)]
    return f"{plain.dtype}{tuple(plain.shape)}".encode() + torch.cat(sums).cpu().numpy().tobytes()


def _hash_of_values(value: Tensor) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    _add(digest, "", value, None)
    return digest.digest()


def _add(digest: Any, name: str, value: object, dtype: torch.dtype | None) -> None:
    if not isinstance(value, Tensor):  # quantized layers keep settings beside their weights
        digest.update(f"{name}:{describe(value)}".encode())
        return
    plain = value.detach()
    if plain.is_quantized:
        plain = plain.dequantize()
    if plain.is_sparse:
        plain = plain.to_dense()
    if dtype is not None and plain.is_floating_point():
        plain = plain.to(dtype)
    digest.update(f"{name}:{plain.dtype}:{tuple(plain.shape)}".encode())
    data = plain.cpu().contiguous().flatten()
    digest.update(data.view(torch.uint8).numpy() if data.numel() else b"")


def examine(transform: Any, name: str) -> tuple[str, str, Tensor | None]:
    """Identify a transform: return the hash of its description, a sketch of its results, and two results as a batch.

    A copy is tried. What it changes in itself, such as a counter, is not part of its description. Sketch and batch are
    empty without a transform, or with a warning if it does not accept pictures or is random.

    Args:
        transform: The transform.
        name: Name of the backbone in warnings.
    """
    if transform is None:
        return hash_of(describe(None)), "", None
    before, tried = Description(), _copied(transform)
    before.of(tried)
    pictures, batch = _try(tried, name)
    after = Description()
    after.of(tried)
    return hash_of(Description(changed(before.texts, after.texts)).of(transform)), pictures, batch


def _copied(transform: Any) -> Any:
    try:
        return copy.deepcopy(transform)
    except Exception:  # copying runs custom code, which may raise anything; then the transform itself is tried
        return transform


def _try(transform: Any, name: str) -> tuple[str, Tensor | None]:
    tries: list[list[Tensor]] = []
    errors = []
    with _random_state_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about other inputs; those about real pictures appear in the run
        for inputs in _inputs():
            try:
                tries = [_outputs(transform, inputs, seed) for seed in range(3)]
                break
            except Exception as error:  # a transform for other inputs may raise anything
                errors.append(error)
    if not tries:
        warn(
            f"{name}: the transform {shown(transform)[:200]} accepts neither pictures"
            f" ({(str(errors[0]).splitlines() or [repr(errors[0])])[0]}) nor tensors, so oodlit cannot compare its"
            " outputs between runs. Saved fits, caches, and gates are then only checked by the description of the"
            " transform. Make them again if its outputs change for another reason"
        )
        return "", None
    made = tries[0]
    if not all(torch.equal(a, b) for other in tries[1:] for a, b in zip(made, other, strict=True)):
        warn(
            f"{name}: the transform returned different results for the same picture, so scores are random and"
            " differ between runs. Use a transform without random steps"
        )
        return "", None
    if isinstance(inputs[0], Tensor):  # these have any size and are no images for the network
        return sketch(*made), None
    is_one_batch = made[0].shape == made[1].shape and made[0].dtype == made[1].dtype
    return sketch(*made), torch.stack(made[: len(SIZES)]) if is_one_batch else made[0][None]


def _outputs(transform: Any, inputs: list[Any], seed: int) -> list[Tensor]:
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    return [torch.as_tensor(transform(copy.deepcopy(one))) for one in inputs]


def _inputs() -> Iterator[list[Any]]:
    """Yield fixed pictures, then the same pictures in other forms: a transform may accept only one form."""
    pictures = [*(_picture(*size) for size in SIZES), _large_picture()]
    yield pictures
    yield [picture.convert("L") for picture in pictures]
    yield [torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255 for picture in pictures[:-1]]


def pattern(like: Tensor) -> Tensor:
    """Return numbers between -1 and 1 from fixed arithmetic, in the shape of a batch of floating-point images."""
    steps = torch.arange(like.numel(), dtype=torch.float64).reshape(like.shape)
    return ((steps * 0.754877666).sin() * 0.5 + (steps * 0.0123).cos() * 0.5).to(torch.float32)


def _picture(width: int, height: int) -> Image.Image:
    """Create a picture with slopes and noise from integer arithmetic, which reveals sizes, crops and filters."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    noise = (x * 7919 + y * 104_729 + c * 1_299_709) * 2_654_435_761 % 2**32 >> 24
    slopes = (x * (40 + 30 * c) // width + y * (80 - 20 * c) // height) % 256
    return Image.fromarray(((noise + 2 * slopes) // 3 + 20 * c).clip(0, 255).astype(np.uint8))


@functools.cache
def _large_picture() -> Image.Image:
    """Create full-range noise with a black and a white corner, for transforms that shrink pictures."""
    width, height = LARGE
    steps = np.arange(width * height * 3, dtype=np.uint64)
    noise = (steps * np.uint64(2_654_435_761) % np.uint64(2**32) >> np.uint64(24)).astype(np.uint8)
    values = noise.reshape(height, width, 3)
    values[: height // 4, : width // 4], values[-height // 4 :, -width // 4 :] = 0, 255
    return Image.fromarray(values)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    of_numpy, of_python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)
