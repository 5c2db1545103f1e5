"""A run from shards of JPEGs, for benchmarks/gpu.py: what it takes from files to scores."""

import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from streaming import photo  # the folder of this file is on the path

from oodlit.base.json_files import to_plain
from oodlit.callbacks import OODDetection
from oodlit.datamodules import OODDataModule, Stream
from oodlit.datamodules.shards import Entry, build_shards, shard_stream
from oodlit.detectors import MSP, Energy, MaxLogit
from oodlit.roles import Role

PHOTOS = 32
"""Pictures that differ; they are repeated."""


def jpeg_streams(root: Path, images: int) -> list[Stream]:
    """Two sets of JPEGs of 500 x 375 in shards, with half of the images each."""
    photos = [photo(number) for number in range(PHOTOS)]
    streams = []
    for name, role in (("val", Role.ID), ("far", Role.OOD)):
        kind = {"label": 0} if role is Role.ID else {"group": 0}
        entries = [Entry(f"{i:06d}.jpg", lambda data=photos[i % PHOTOS]: data, **kind) for i in range(images // 2)]
        build_shards(entries, root / name, name=name, role=role, shard_size=256)
        streams.append(shard_stream(root / name))
    return streams


def run_from(streams: list[Stream], module: Any, **loading: Any) -> dict[str, Any]:
    """Measure a run: images per second, where the time went, and how the JPEGs of the device deviate.

    Args:
        streams: What is read.
        module: The network.
        loading: Of `OODDataModule`: "batch_size", "num_workers", "decode_on_device".
    """
    detection = OODDetection([MSP(), MaxLogit(), Energy()])
    trainer = pl.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        precision="bf16-mixed",
        callbacks=[detection],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    start = time.perf_counter()
    trainer.predict(module, OODDataModule(streams, **loading), return_predictions=False)
    spent = time.perf_counter() - start
    assert detection.results is not None
    record = detection.results.run.time
    busy = sum(record.mean[name] for name in ("waiting for data", "backbone", "scores"))
    return {
        "run_s": round(spent, 2),
        "images_per_s": round(sum(map(len, streams)) / busy),
        "time": to_plain(record),
        "acceleration": to_plain(detection.results.run.acceleration),
    }
