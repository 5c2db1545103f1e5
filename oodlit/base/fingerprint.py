"""Fingerprints as text, and their comparison.

A fingerprint has up to six parts, `name=value` separated by blanks. Three are hashes: "weights" (of weights and
buffers), "head" (which layer or part of the output is used), "transform" (its description). Three are sketches of
results, for behavior that no description covers: "pictures" (the transform applied to fixed pictures), "network" (the
network applied to them) and "text" (the text tower of a zero-shot network applied to a fixed prompt). Sketches are
compared up to rounding, so that device, threads and batch size do not matter. Parts that one side does not have are not
compared.
"""

import base64
from array import array

import torch
from torch import Tensor

from oodlit.base.errors import FingerprintError

TOLERANCES = {"pictures": 0.003, "network": 0.005, "text": 0.005}
"""Largest difference between equal sketches; those of a network also differ between devices."""
HALF_TOLERANCE = 0.15
"""Largest difference between equal sketches of a network in half precision."""
HALF_SIZE_TOLERANCE = 0.1
"""Largest difference between logarithms of sizes in half precision: rounding changed them by up to 0.03 for twelve
networks."""
NUM_PROJECTIONS = 6
_31_BITS = 2**31 - 1

_WHAT = {
    "weights": "the state of the weights",
    "head": "the layer that the features come from",
    "transform": "the transform",
    "pictures": "the output of the transform for built-in test pictures",
    "network": "the output of the network for built-in test pictures",
    "text": "the text tower",
}


def join(**parts: str) -> str:
    """Build a fingerprint from its parts; empty ones are omitted.

    Example:
        >>> join(weights="ab", head="", transform="cd")
        'weights=ab transform=cd'
    """
    return " ".join(f"{name}={value}" for name, value in parts.items() if value)


def difference(mine: str, theirs: str) -> str:
    """Describe the first part in which two fingerprints differ; empty if all parts known to both agree.

    Example:
        >>> difference("weights=ab transform=cd", "weights=ab transform=ce")
        'the transform'
        >>> difference("weights=ab transform=cd", "weights=ab"), difference("one", ""), difference("one", "two")
        ('', '', 'the fingerprint')
    """
    return _difference(mine, theirs)[0]


def check_same(mine: str, theirs: str, *, source: str) -> None:
    """Refuse a backbone that a fit does not belong to.

    Args:
        mine: Fingerprint of the backbone of the fit; may be empty.
        theirs: Fingerprint of the backbone in use; may be empty.
        source: Name of the fit in the message.

    Raises:
        FingerprintError: They differ; the message states in what.
    """
    what, one, other = _difference(mine, theirs)
    if what:
        raise FingerprintError(
            f"{source} belongs to another backbone or transform: {what} differs. Fit again, or load the backbone and"
            f" transform of the fit (fingerprints: {one} in the fit, {other} now)"
        )


def sketch(*values: Tensor) -> str:
    """Summarize tensors by a few numbers: size, mean, and sums with fixed signs, relative to the size.

    Values that differ by rounding have sketches that differ by rounding.

    Example:
        >>> one = torch.linspace(0, 1, 99)
        >>> difference("pictures=" + sketch(one), "pictures=" + sketch(one * 1.0001))
        ''
        >>> difference("pictures=" + sketch(one), "pictures=" + sketch(one - 0.1))
        'the output of the transform for built-in test pictures'
    """
    shapes = ",".join("x".join(map(str, v.shape)) for v in values)
    is_half = any(v.is_floating_point() and v.dtype.itemsize < 4 for v in values)
    numbers = [n for v in values for n in _numbers(v.detach().cpu().double().flatten())]
    packed = base64.urlsafe_b64encode(array("f", numbers).tobytes()).decode()
    return f"{shapes}:{'half' if is_half else 'full'}:{packed}"


def _numbers(flat: Tensor) -> list[float]:
    size = float(flat.square().mean().sqrt()) if len(flat) else 0.0
    if not 0 < size < float("inf"):
        return [0.0] * (NUM_PROJECTIONS + 2)
    sums = [float(_signs(len(flat), k + 1) @ flat) / size / len(flat) ** 0.5 for k in range(NUM_PROJECTIONS)]
    return [float(torch.tensor(size).log()), float(flat.mean()) / size, *sums]


def _signs(length: int, seed: int) -> Tensor:
    """Return fixed numbers -1 and 1, float64: arithmetic modulo 2^31, for which 32-bit integers suffice."""
    mixed = torch.arange(length, dtype=torch.int32).mul_(1_103_515_245).add_(seed * 747_796_405 & _31_BITS)
    mixed &= _31_BITS
    mixed ^= mixed >> 15
    mixed *= 277_803_737
    return ((mixed >> 16 & 1) * 2 - 1).double()


def _difference(mine: str, theirs: str) -> tuple[str, str, str]:
    """Return what differs first, with both values abbreviated."""
    if not mine or not theirs or mine == theirs:
        return "", "", ""
    one, other = _parts(mine), _parts(theirs)
    if one is None or other is None:
        return "the fingerprint", mine, theirs
    for name, words in _WHAT.items():
        if name in one and name in other and not _agree(name, one[name], other[name]):
            return words, f"{name}={one[name]:.32}", f"{name}={other[name]:.32}"
    return "", "", ""


def _parts(text: str) -> dict[str, str] | None:
    found = dict(part.partition("=")[::2] for part in text.split(" "))
    return found if found.keys() <= _WHAT.keys() else None


def _agree(name: str, mine: str, theirs: str) -> bool:
    if name not in TOLERANCES or mine == theirs:
        return mine == theirs
    one, other = mine.split(":"), theirs.split(":")
    if one[0] != other[0] or len(one) != 3 or len(other) != 3:
        return False
    numbers = [array("f", base64.urlsafe_b64decode(part[2])) for part in (one, other)]
    tolerance = HALF_TOLERANCE if "half" in (one[1], other[1]) else TOLERANCES[name]
    of_size = min(tolerance, HALF_SIZE_TOLERANCE)  # absolute: a factor of the values is a difference of the logarithms
    return all(
        abs(a - b) <= (tolerance * max(1.0, abs(a), abs(b)) if place % (NUM_PROJECTIONS + 2) else of_size)
        for place, (a, b) in enumerate(zip(*numbers, strict=True))
    )
