"""Features of the images that the page shows: nearest training images, and a map by principal axes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from oodlit.base.processes.distributed import Group, gather_objects
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import find_samples
from oodlit.datamodules.transforms import without_resize
from oodlit.detectors.statistics import TrainSample
from oodlit.detectors.statistics.hashes import hash_strings
from oodlit.results.files.image_features import ImageFeatures, MapPoint, Neighbor

TRAIN = 5000
"""Number of training images that are compared: those with the smallest hashes of their keys."""
ON_MAP = 500
"""Number of training images on the map, which also determine its axes."""
NEAREST = 3
"""Number of neighbors per image."""


class TrainingKeys:
    """Keys of the training images with the smallest hashes, by hash, as in `TrainSample`."""

    def __init__(self) -> None:
        self.by_hash: dict[int, str] = {}

    def add(self, keys: Sequence[str] | None) -> None:
        """Add the keys of a batch."""
        if keys:
            self.by_hash.update(zip(hash_strings(keys).tolist(), keys, strict=True))
            if len(self.by_hash) > 4 * TRAIN:
                self._cut()

    def join(self, group: Group) -> None:
        """Take over the keys of the other processes."""
        self._cut()
        for found in gather_objects(group, self.by_hash):
            self.by_hash |= found
        self._cut()

    def _cut(self) -> None:
        self.by_hash = {value: self.by_hash[value] for value in sorted(self.by_hash)[:TRAIN]}


def features_of(
    module: Any, datamodule: OODDataModule, transform: Any, keys: Mapping[str, Sequence[str]]
) -> dict[str, Tensor]:
    """Pass images through the plain network once more.

    Args:
        module: The backbone.
        datamodule: The streams.
        transform: From a decoded image to the network's input.
        keys: Keys of images by data set.

    Returns:
        Features on the CPU by key; images that cannot be read, and those without features, are missing.
    """
    found: dict[str, Tensor] = {}
    for name, wanted in keys.items():
        stream = datamodule.stream(name)
        samples = find_samples(stream.source, [key.partition("/")[2] for key in wanted])
        part = replace(stream, source=MemorySource(list(samples.values())))
        own = without_resize(transform) if stream.prepared and transform is not None else transform
        loader = StreamLoader(part, own, batch_size=datamodule.batch_size, on_error="skip", decode=datamodule.decode)
        for batch in loader:
            if batch["key"]:
                image = torch.as_tensor(batch["image"]).to(module.device)
                with torch.inference_mode():
                    features = module.exact_outputs({**batch, "image": image}).features
                if features is not None:
                    found |= zip(batch["key"], features.float().cpu(), strict=True)
    return found


def image_features(
    sample: TrainSample, keys: TrainingKeys, found: Mapping[str, Tensor], explained: Sequence[str]
) -> ImageFeatures:
    """Find the nearest training images of some images, and coordinates of all.

    Args:
        sample: Features of training images, by ascending hash.
        keys: Keys of training images.
        found: Features by key.
        explained: Keys of images whose neighbors are wanted.

    Returns:
        Neighbors and map; distances are those of KNN, between features of norm 1.
    """
    train = sample.column("features")[:TRAIN].double()
    hashes = sample.column("hash")[:TRAIN].tolist()
    known = [place for place, value in enumerate(hashes) if value in keys.by_hash]
    labels = sample.outputs.labels
    classes = [-1] * len(train) if labels is None else labels[:TRAIN].tolist()
    nearest = {}
    wanted = [key for key in explained if key in found]
    if wanted and known:
        query = torch.stack([found[key] for key in wanted]).double()
        distances = torch.cdist(_normalized(query), _normalized(train[known]))
        values, places = distances.topk(min(NEAREST, len(known)), largest=False)
        for key, row, near in zip(wanted, values.tolist(), places.tolist(), strict=True):
            nearest[key] = [
                Neighbor(keys.by_hash[hashes[known[place]]], classes[known[place]], round(distance, 4))
                for place, distance in zip(near, row, strict=True)
            ]
    mean = train[:ON_MAP].mean(dim=0)
    _, spread, axes = torch.linalg.svd(train[:ON_MAP] - mean, full_matrices=False)
    shares = spread.square() / spread.square().sum().clamp(min=1e-300)

    def points(rows: Tensor, of: Sequence[int]) -> list[MapPoint]:
        plane = ((rows.double() - mean) @ axes[:2].T).tolist()
        return [MapPoint(float(f"{x:.4g}"), float(f"{y:.4g}"), label) for (x, y), label in zip(plane, of, strict=True)]

    drawn = {"": points(train[:ON_MAP], classes[:ON_MAP])} if len(axes) > 1 else {}
    for name in dict.fromkeys(key.partition("/")[0] for key in found) if drawn else ():
        rows = [row for key, row in found.items() if key.startswith(f"{name}/")]
        drawn[name] = points(torch.stack(rows), [-1] * len(rows))
    return ImageFeatures(len(known), nearest, shares[:2].tolist(), drawn)


def _normalized(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norms.clamp(min=1e-300)
