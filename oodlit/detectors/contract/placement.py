"""Place the buffers of fitted detectors on the scoring device, large ones only if they fit."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from oodlit.base.checks import plain_mode

SPARE = 0.25
"""Fraction of a device's memory that large buffers leave free for the network and its batches."""
Place: TypeAlias = tuple[str, nn.Module, str]
"""Name of a detector in the run, the (possibly nested) detector that owns the buffer, and the buffer's name."""


def follow(detector: nn.Module, device: torch.device) -> None:
    """Move buffers to the device of the outputs; the detector may have been fitted or loaded on another one.

    Buffers in `host_buffers` stay where they are or go to the CPU. Scalars among them always stay on the CPU, where
    reading them does not wait for a GPU.
    """
    large = _host_buffers(detector)
    for name, buffer in list(detector.named_buffers(recurse=False, remove_duplicate=False)):
        if buffer.device == device and (buffer.ndim or name not in large):
            continue
        where = torch.device("cpu") if name in large else device
        if buffer.device != where:
            with plain_mode():
                setattr(detector, name, buffer.to(where))


def place_large(detectors: Mapping[str, nn.Module], device: torch.device, room: int | None = None) -> str:
    """Move `host_buffers` of fitted detectors to a device once, smallest first, as long as they fit.

    Buffers that detectors share on the CPU remain shared on the device.

    Args:
        detectors: Detectors by their name in the run.
        device: Device on which the run scores.
        room: Bytes available for them. None (default) = the free memory of a CUDA device less `SPARE` of its total; on
            other devices nothing is moved.

    Returns:
        A description of what is placed where; empty if there is nothing to move.

    Example:
        >>> from oodlit.detectors import KNN, fit
        >>> from oodlit.outputs import Outputs
        >>> knn = KNN(k=2)
        >>> fit([knn], [Outputs(features=torch.rand(1000, 250))])  # 1 MB, and the norms
        >>> place_large({"knn": knn}, torch.device("meta"), room=500_000)
        'bank of knn (1.0 MB): on the CPU, moved to meta in parts for every batch (0.5 MB available)'
        >>> place_large({"knn": knn}, torch.device("meta"), room=2_000_000)
        'bank of knn (1.0 MB): on meta'
    """
    if room is None:
        if device.type != "cuda":
            return ""
        free, total = torch.cuda.mem_get_info(device)
        room = max(0, round(free - SPARE * total))
    placed: list[tuple[int, list[Place]]] = []
    left: list[tuple[int, list[Place]]] = []
    for size, places in sorted(_large(detectors, device), key=lambda item: item[0]):
        used = sum(other for other, _ in placed)
        (placed if used + size <= room and _move(places, device) else left).append((size, places))
    texts, order, waiting = [], list(detectors), {owner for _, places in left for owner, _, _ in places}
    # Norms are small and may fit where the rows do not: only the place of the rows matters.
    if whole := [(size, places) for size, places in placed if not waiting.issuperset(owner for owner, _, _ in places)]:
        texts.append(f"{_bank(whole, order)}: on {device}")
    if left:
        unused = (room - sum(size for size, _ in placed)) / 1e6
        texts.append(
            f"{_bank(left, order)}: on the CPU, moved to {device} in parts for every batch ({unused:.1f} MB available)"
        )
    return "; ".join(texts)


def _bank(tensors: Sequence[tuple[int, Sequence[Place]]], detectors: Iterable[str]) -> str:
    names = {name for _, places in tensors for name, _, _ in places}
    size = sum(size for size, _ in tensors) / 1e6
    return f"bank of {', '.join(name for name in detectors if name in names)} ({size:.1f} MB)"


def _host_buffers(detector: nn.Module) -> frozenset[str]:
    names: frozenset[str] = getattr(detector, "host_buffers", frozenset())
    return names


def _large(detectors: Mapping[str, nn.Module], device: torch.device) -> list[tuple[int, list[Place]]]:
    """List size and places of each tensor on another device; the first rows of a tensor count as the same tensor."""
    same: dict[object, list[Place]] = defaultdict(list)
    for owner, detector in detectors.items():
        for part in detector.modules():
            own = dict(part.named_buffers(recurse=False, remove_duplicate=False))
            for name in sorted(_host_buffers(part) & own.keys()):
                buffer = own[name]
                if buffer.ndim and buffer.device != device:
                    start = (buffer.data_ptr(), buffer.dtype, buffer.stride(), buffer.shape[1:])
                    same[start].append((owner, part, name))
    return [(_longest(places).nbytes, places) for places in same.values()]


def _longest(places: Sequence[Place]) -> Tensor:
    return max((_buffer(place) for place in places), key=len)


def _buffer(place: Place) -> Tensor:
    _, detector, name = place
    return detector.get_buffer(name)


def _move(places: Sequence[Place], device: torch.device) -> bool:
    """Copy a shared tensor and point its places to the copy; False if the device runs out of memory."""
    with plain_mode():
        try:
            whole = _longest(places).to(device, copy=True)
        except torch.cuda.OutOfMemoryError:
            return False
        for place in places:
            _, detector, name = place
            setattr(detector, name, whole[: len(_buffer(place))])
    return True
