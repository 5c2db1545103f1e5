"""Find images that occur in two sets, by a digest of 8 bytes of the network's input or of recorded outputs."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodlit.base.processes.distributed import Group, gather_objects
from oodlit.base.roles import Role
from oodlit.datamodules.stream import Stream
from oodlit.results import Finding

COMPARED = (Role.TRAIN, Role.ID, Role.OOD, Role.POOL)
"""Roles whose images must differ. Shifted images and unit tests may be made from images of other sets."""
MOST = 2**14
"""Largest number of values per image that enter a digest, evenly spaced, since all of them would take time."""


class Digests:
    """Digests of the images of every set on this process."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Tensor]] = {}

    def add(self, stream: Stream, images: Tensor) -> None:
        """Add one batch of a set."""
        if stream.role in COMPARED and len(images):
            self.parts.setdefault(stream.name, []).append(digests_of(images))

    def state(self) -> dict[str, Tensor]:
        """All digests by set, for a run that is resumed."""
        self.parts = {name: [torch.cat(parts).cpu()] for name, parts in self.parts.items()}
        return {name: parts[0] for name, parts in self.parts.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Add the digests that `state` returned; of several states of one run, use the one with the most images."""
        for name, part in state.items():
            if len(part) > sum(map(len, self.parts.get(name, ()))):
                self.parts[name] = [part]

    def findings(self, streams: Sequence[Stream], group: Group) -> list[Finding]:
        """One finding per pair of sets with equal images, for sets of different roles."""
        everyone = gather_objects(group, {name: part.numpy() for name, part in self.state().items()})
        sets = [
            (stream, np.concatenate([part[stream.name] for part in everyone if stream.name in part]))
            for stream in streams
            if stream.role in COMPARED and any(stream.name in part for part in everyone)
        ]
        return list(_shared(sets))


def _shared(sets: Sequence[tuple[Stream, np.ndarray]]) -> Iterator[Finding]:
    for (one, first), (other, second) in combinations(sets, 2):
        if one.role is other.role or {one.role, other.role} == {Role.OOD, Role.POOL}:
            continue
        number = int(np.isin(first, second).sum())
        if number:
            yield Finding(
                "duplicates",
                f"{one.name!r} ({one.role}) and {other.name!r} ({other.role}) share images: {number} of the"
                f" {len(first)} images of {one.name!r}. Results on shared images are misleading, because these sets"
                " must be disjoint; remove the images from one of the sets",
            )


def digests_of(images: Tensor) -> Tensor:
    """Compute a number per image that is equal for equal images, in any batch; shape (batch,), int64.

    It is the sum of up to `MOST` values, read as integers, with random weights modulo 2^64: integers have no rounding,
    so that it is the same on every device.

    Example:
        >>> images = torch.arange(12.0).reshape(3, 4)
        >>> bool((digests_of(images)[1:] == digests_of(images[1:])).all()), len(set(digests_of(images).tolist()))
        (True, 3)
    """
    rows = images.detach().flatten(1)
    rows = rows[:, :: -(-rows.shape[1] // MOST)] if rows.shape[1] > MOST else rows
    if rows.is_floating_point():
        rows = (rows.float() if rows.dtype.itemsize < 4 else rows) + 0.0  # -0 is 0
        rows = rows.contiguous().view(torch.int32 if rows.dtype.itemsize == 4 else torch.int64)
    weights = _weights(rows.shape[1], str(rows.device))
    parts = (part.long() for part in torch.split(rows, 64))
    # The low bits of many values are 0: those above are mixed into them.
    return torch.cat([((part ^ (part >> 16) ^ (part >> 32)) * weights).sum(dim=1) for part in parts])


@lru_cache(maxsize=8)
def _weights(number: int, device: str) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, number) | 1).to(device)
