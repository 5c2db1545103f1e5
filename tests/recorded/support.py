"""The small run of the callbacks' tests, once with its network and once from what was recorded of it."""

from pathlib import Path

import torch

from oodlit import OODModule, Results, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import GEN, KNN, MSP, NCI, Energy, Mahalanobis, ReAct, RelativeMahalanobis, ViM
from oodlit.recorded import FeatureCache
from tests.callbacks.support import make_module, make_streams, make_trainer


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
