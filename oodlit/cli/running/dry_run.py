"""`oodlit evaluate --dry_run`: the first image of every stream, memory and time of the run, without scores."""

import time
from collections.abc import Iterator, Mapping

import torch
from PIL import Image
from torch import Tensor

from oodlit.base.outputs import BackboneFacts
from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.cli.running.outcome import unused_lines
from oodlit.datamodules import OODDataModule, Stream
from oodlit.detectors import Detector
from oodlit.detectors.contract.fitting import estimate_bytes, make_statistics
from oodlit.module import OODModule
from oodlit.scoring.costs import duration

IMAGES = 8
"""Images of the first batch, which times are measured with."""


def describe_run(
    module: OODModule, data: OODDataModule, detectors: Mapping[str, Detector], *, device: str, processes: int
) -> Iterator[str]:
    """Describe what a run would read and compute, line by line; no image is scored.

    Args:
        module: The backbone; it is moved to the device.
        data: The streams.
        detectors: By name.
        device: Device for the measured forward pass, such as "cpu" or "cuda".
        processes: Number of processes that share the images.

    Raises:
        DataError: A first image cannot be read.
        InvalidArgumentError: The network does not accept the images.
    """
    sample = data.with_loading(batch_size=IMAGES, num_workers=0)
    sample.transform = data.transform_for(module)
    inside: Tensor | None = None
    started = reading = 0.0
    for stream, loader in zip(sample.streams, sample.predict_dataloader(), strict=True):
        started = time.perf_counter()
        batch = next(iter(loader))
        if stream.role is Role.ID:
            inside, reading = _batched(batch["image"]), (time.perf_counter() - started) / max(len(batch["key"]), 1)
        yield from _of_stream(stream, batch)
    yield f"transform: {sample.transform}"
    assert isinstance(inside, Tensor)
    num_train = sum(len(stream) for stream in data.streams if stream.role is Role.TRAIN)
    module.to(device).eval()
    layers = tuple(dict.fromkeys(layer for detector in detectors.values() for layer in detector.required_layers))
    facts = module.probe(inside, num_train, layers=layers)
    reasons = {name: reason for name, detector in detectors.items() if (reason := detector.why_not(facts))}
    yield from unused_lines(reasons)
    kept = {name: detector for name, detector in detectors.items() if name not in reasons}
    yield f"detectors applicable to {facts.name}: {len(kept)} of {len(detectors)}"
    forward = _forward(module, inside, device)
    yield _memory(module, data, kept, facts, inside)
    yield (
        f"measured on {len(inside)} images ({device}): {1000 * reading:.3g} ms per image to read and transform,"
        f" {1000 * forward:.3g} ms per image for a forward pass"
    )
    yield _time(data, kept, reading, forward, processes)


def _batched(images: Tensor | list[Tensor]) -> Tensor:
    """A batch; of images of several sizes, only the first one."""
    return images if isinstance(images, Tensor) else images[0][None]


def _of_stream(stream: Stream, batch: Mapping[str, object]) -> Iterator[str]:
    """Name, role, size, and the first image as stored and as transformed."""
    yield f"{stream.name}: {stream.role}, {len(stream):,} images"
    keys, images, labels, groups = (batch[name] for name in ("key", "image", "label", "group"))
    if not keys:
        yield f"  no image of the first batch can be used: {'; '.join(': '.join(one) for one in batch['skipped'])}"  # type: ignore[attr-defined]
        return
    label, group = int(labels[0]), int(groups[0])  # type: ignore[index]
    names = stream.label_names if stream.role in NAMES_OF_LABELS or stream.role is Role.SHIFT else ()
    about = [f"label {label}" + (f" ({names[label]})" if label < len(names) else "")] if label >= 0 else ["no label"]
    if group >= 0:
        about.append(f"group {group}" + (f" ({stream.class_names[group]})" if group < len(stream.class_names) else ""))
    stored = next(iter(stream.source.read(0, 1))).image
    size = f"{stored.width} x {stored.height} pixels" if isinstance(stored, Image.Image) else ""
    size = f"{len(stored):,} bytes" if isinstance(stored, bytes) else size
    image = images[0]  # type: ignore[index]
    shape = " x ".join(map(str, image.shape))
    yield f"  first image: {', '.join(filter(None, [str(keys[0]), size, *about]))}"  # type: ignore[index]
    yield f"  transformed: {shape}, {image.dtype}, values from {float(image.min()):.3g} to {float(image.max()):.3g}"


def _forward(module: OODModule, images: Tensor, device: str) -> float:
    """Seconds per image of a forward pass, the second one of two."""
    images = images.to(device)
    with torch.inference_mode():
        for _ in range(2):
            started = time.perf_counter()
            made = module(images)
            value = made.logits if made.logits is not None else made.features
            value.sum().item()  # waits for the device
    return (time.perf_counter() - started) / len(images)


def _memory(
    module: OODModule, data: OODDataModule, detectors: Mapping[str, Detector], facts: BackboneFacts, images: Tensor
) -> str:
    weights = sum(p.numel() * p.element_size() for p in (*module.parameters(), *module.buffers()))
    batch = images[0].numel() * images.element_size() * data.batch_size
    every = [*detectors.values()]
    fit = estimate_bytes(make_statistics(every), facts, every)
    rows = sum(len(stream) for stream in data.streams if stream.role is not Role.TRAIN)
    parts = {"weights": weights, f"batch of {data.batch_size} images": batch, "detectors": fit}
    parts["scores"] = 4 * rows * len(detectors)
    listed = ", ".join(f"{name} {_size(size)}" for name, size in parts.items())
    return f"memory per process, without activations of the network: about {_size(sum(parts.values()))} ({listed})"


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _time(
    data: OODDataModule, detectors: Mapping[str, Detector], reading: float, forward: float, processes: int
) -> str:
    """The time of a run, from the seconds per image of reading and of a forward pass."""
    use_train = any(detector.required_statistics for detector in detectors.values())
    images = sum(len(stream) for stream in data.streams if use_train or stream.role is not Role.TRAIN)
    scored = sum(len(stream) for stream in data.streams if stream.role is not Role.TRAIN)
    passes = images + scored * sum(detector.extra_passes for detector in detectors.values())
    reading *= images / max(data.num_workers, 1) / processes
    computing = passes * forward / processes
    total = max(reading, computing) if data.num_workers else reading + computing
    return (
        f"time: about {duration(total)} for {images:,} images and {passes:,} forward passes"
        f" ({data.num_workers} workers, {processes} processes); the detectors' own"
        " computations are not included"
    )
