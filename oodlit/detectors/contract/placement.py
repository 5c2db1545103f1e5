"""Where the buffers of fitted detectors lie: on the device of what is scored, large ones as far as they fit."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from oodlit.base.checks import plain_mode

SPARE = 0.25
"""Share of a device's memory that large buffers leave free: for the network, its batches and what is formed of them."""
Place: TypeAlias = tuple[str, nn.Module, str]
"""Name of a detector in the run, the detector (or one inside it) that has the buffer, and the buffer's name."""


def follow(detector: nn.Module, device: torch.device) -> None:
    """Move buffers to the device of what is scored: the detector may have been fitted, or loaded, on another.

    Those in `host_buffers` lie there already or go to the CPU; numbers among them are kept on the CPU in any case,
    where a look at them waits for no device.
    """
    large = _host_buffers(detector)
    for name, buffer in list(detector._buffers.items()):
        if buffer is None or (buffer.device == device and (buffer.ndim or name not in large)):
            continue
        where = torch.device("cpu") if name in large else device
        if buffer.device != where:
            with plain_mode():
                detector._buffers[name] = buffer.to(where)


def place_large(detectors: Mapping[str, nn.Module], device: torch.device, room: int | None = None) -> str:
    """Move `host_buffers` of fitted detectors to a device once, the smaller ones first, as far as there is room.

    What several detectors share on the CPU they share on the device.

    Args:
        detectors: By the name that the run has for them.
        device: Where the run scores.
        room: Bytes that they may take. None (default) = what is free of a CUDA device, less `SPARE` of its memory; on
            other devices nothing is moved.

    Returns:
        What lies where, in words; empty if nothing is to be moved.

    Example:
        >>> from oodlit.detectors import KNN, fit
        >>> from oodlit.outputs import Outputs
        >>> knn = KNN(k=2)
        >>> fit([knn], [Outputs(features=torch.rand(1000, 250))])  # 1 MB, and the norms
        >>> place_large({"knn": knn}, torch.device("meta"), room=500_000)
        'on the CPU stay rows of knn (1.0 MB), moved in parts for every batch; on meta, 0.5 MB are free for them'
        >>> place_large({"knn": knn}, torch.device("meta"), room=2_000_000)
        'on meta lie rows of knn (1.0 MB)'
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
    # Norms are small and have room where the rows do not: what matters is where the rows are.
    if whole := [(size, places) for size, places in placed if not waiting.issuperset(owner for owner, _, _ in places)]:
        texts.append(f"on {device} lie {_rows_of(whole, order)}")
    if left:
        free_mb = (room - sum(size for size, _ in placed)) / 1e6
        texts.append(
            f"on the CPU stay {_rows_of(left, order)}, moved in parts for every batch; on {device},"
            f" {free_mb:.1f} MB are free for them"
        )
    return "; ".join(texts)


def _rows_of(tensors: Sequence[tuple[int, Sequence[Place]]], detectors: Iterable[str]) -> str:
    names = {name for _, places in tensors for name, _, _ in places}
    size = sum(size for size, _ in tensors) / 1e6
    return f"rows of {', '.join(name for name in detectors if name in names)} ({size:.1f} MB)"


def _host_buffers(detector: nn.Module) -> frozenset[str]:
    names: frozenset[str] = getattr(detector, "host_buffers", frozenset())
    return names


def _large(detectors: Mapping[str, nn.Module], device: torch.device) -> list[tuple[int, list[Place]]]:
    """Bytes and places of each tensor that is elsewhere; one that is the first rows of another is the same tensor."""
    same: dict[object, list[Place]] = defaultdict(list)
    for owner, detector in detectors.items():
        for part in detector.modules():
            for name in sorted(_host_buffers(part)):
                buffer = part._buffers.get(name)
                if buffer is not None and buffer.ndim and buffer.device != device:
                    start = (buffer.data_ptr(), buffer.dtype, buffer.stride(), buffer.shape[1:])
                    same[start].append((owner, part, name))
    return [(_longest(places).nbytes, places) for places in same.values()]


def _longest(places: Sequence[Place]) -> Tensor:
    return max((_buffer(place) for place in places), key=len)


def _buffer(place: Place) -> Tensor:
    _, detector, name = place
    buffer = detector._buffers[name]
    assert buffer is not None
    return buffer


def _move(places: Sequence[Place], device: torch.device) -> bool:
    """Copy what the places share, and let each have its first rows; False if the device has no room after all."""
    with plain_mode():
        try:
            whole = _longest(places).to(device, copy=True)
        except torch.cuda.OutOfMemoryError:
            return False
        for place in places:
            _, detector, name = place
            detector._buffers[name] = whole[: len(_buffer(place))]
    return True
