"""The small run of the callbacks' tests, once with its network and once from what was recorded of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch

from oodlit import OODModule, Results, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import GEN, KNN, MSP, NCI, Energy, Mahalanobis, ReAct, RelativeMahalanobis, ViM
from oodlit.errors import DataError
from oodlit.recorded import FeatureCache, open_cache
from tests.callbacks.support import make_module, make_streams, make_trainer

SIZES = {"train": 150, "val": 30, "far": 30, "tests": 8, "shifted": 12}
IMAGES = sum(SIZES.values())


def record(
    folder: Path,
    streams=None,
    *,
    kill_at: int | None = None,
    batch_size: int = 4,
    every: float = 0.0,
    dtype: str = "float32",
    module: OODModule | None = None,
    trainer: dict | None = None,
    **options,
) -> int:
    """A pass that records alone; the number of images that went through the network after the probe.

    Args:
        folder: The cache.
        streams: What to record; None = all.
        kill_at: The batch at which the pass ends with an error.
        batch_size, every, dtype, module, trainer, options: Of data, cache and trainer.
    """
    module, seen = module or make_module(), []
    original = module.predict_step

    def predict_step(batch, *others):
        if len(seen) + 1 == kill_at:
            raise DataError("killed")
        seen.append(len(batch["key"]))
        return original(batch, *others)

    module.predict_step = predict_step
    data = OODDataModule(streams or make_streams(), batch_size=batch_size, **options)
    cache = FeatureCache(folder, dtype=dtype, keep_every_s=every)
    try:
        make_trainer(cache, **(trainer or {})).predict(module, data, return_predictions=False)
    except DataError as error:
        if kill_at is None or "killed" not in str(error):
            raise
    return sum(seen)


def rows_in(folder: Path) -> dict[str, dict[str, tuple]]:
    """All rows of a cache, bit by bit: by stream and key."""
    _, data = open_cache(folder)
    found = {}
    for stream in data.streams:
        rows = stream.source.rows(0, len(stream))
        values = zip(rows.joined, rows.labels.tolist(), rows.groups.tolist(), strict=True)
        found[stream.name] = {
            key: (joined.numpy().tobytes(), label, group)
            for key, (joined, label, group) in zip(rows.keys, values, strict=True)
        }
        assert len(found[stream.name]) == len(stream)
    return found


def tiny_stream(name: str = "tiny", count: int = 1) -> Stream:
    """A set of so few images that not every process has one."""
    samples = [Sample(f"{i:04d}", torch.full((3, 8, 8), 0.1 * (i + 1)), group=0) for i in range(count)]
    return Stream(name, Role.OOD, MemorySource(samples), ("one",))


def some_detectors() -> list:
    return [MSP(), Energy(), GEN(), Mahalanobis(), RelativeMahalanobis(), ViM(), KNN(k=5), ReAct(), NCI()]


def recorded_run(folder: Path, *, dtype: str = "float32", batch_size: int = 7, **options) -> tuple[Results, object]:
    """A run with the network that records what it sees; and its module."""
    module = make_module()
    detection = OODDetection(some_detectors(), train_thresholds=True)
    data = OODDataModule(make_streams(), batch_size=batch_size, **options)
    cache = FeatureCache(folder, dtype=dtype)
    make_trainer(detection, cache).predict(module, data, return_predictions=False)
    return detection.results, module


@torch.no_grad()
def outputs_of(module, role: Role) -> dict[str, object]:
    """Arrays of one set of the same run."""
    stream = next(s for s in make_streams() if s.role is role)
    samples = list(stream.source.read(0, len(stream)))
    made = module.eval()(torch.stack([sample.image for sample in samples]))
    return {
        "features": made.features,
        "logits": made.logits,
        "labels": torch.tensor([sample.label for sample in samples]),
        "groups": torch.tensor([sample.group for sample in samples]),
        "keys": [sample.key for sample in samples],
    } | ({"class_names": list(stream.class_names)} if stream.class_names else {})


COUNTED: list[int] = []
"""Images of every forward pass of a `counting_module`."""


def counting_module() -> OODModule:
    module = make_module()
    module.network.register_forward_hook(lambda _, inputs, __: COUNTED.append(len(inputs[0])))
    return module


def small_data() -> OODDataModule:
    return OODDataModule(make_streams())


def more_data() -> OODDataModule:
    return OODDataModule([*make_streams(), tiny_stream()])


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def edit_manifest(folder: Path, change: Callable[[dict], object]) -> None:
    """Change a manifest in place; like those of earlier versions, it then has no checksum."""
    manifest = json.loads((folder / "cache.json").read_text())
    del manifest["checksum"]
    change(manifest)
    (folder / "cache.json").write_text(json.dumps(manifest))


def share_of(stream: str, folder: Path) -> tuple[Path, dict]:
    """The progress file of a stream, and its content."""
    shares = {file: json.loads(file.read_text()) for file in (folder / ".progress").glob("*.json")}
    return next((file, share) for file, share in shares.items() if share["stream"]["name"] == stream)


def broken_stream() -> Stream:
    return Stream("broken", Role.OOD, MemorySource([Sample("bad", torch.zeros(3, 8, 8), error="killed")]))


def compare(one, other, tolerance: float = 1e-6) -> None:
    pd.testing.assert_frame_equal(one.scores, other.scores, rtol=tolerance, atol=tolerance, check_dtype=False)
