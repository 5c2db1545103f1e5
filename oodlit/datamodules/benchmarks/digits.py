"""A complete benchmark that needs no download: the handwritten digits of scikit-learn."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.ndimage
import torch
from jaxtyping import Float64, Int64
from sklearn.datasets import load_digits, load_sample_images
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import Compose, Normalize, ToTensor
from typing_extensions import Unpack

from oodlit.base.roles import Role
from oodlit.datamodules.benchmarks.packed import SmallSet, packed_streams, root_or_temporary, unit_test_set
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.generated.id_images import decode_sample
from oodlit.datamodules.generated.unit_test_kinds import encode
from oodlit.datamodules.generated.unit_test_source import unit_test_source
from oodlit.datamodules.loading_options import LoadingOptions
from oodlit.datamodules.shards.writer import Entry
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream

ID_CLASSES = ("zero", "one", "two", "three", "four", "five", "six")
OOD_CLASSES = ("seven", "eight", "nine")
VAL_SHARE = 0.4
UNIT_TEST_SCALE = 1 / 32  # the sigmas are for images 30 to 60 times as wide
_RECIPE = 2  # increased when the images change, so that old folders are not reused

Picture = Float64[np.ndarray, "8 8"]
Rng = np.random.Generator


DIGIT_CORRUPTIONS: Mapping[str, Callable[[Picture, Rng], Picture]] = {
    "noise": lambda image, rng: image + rng.normal(0.0, 0.25, image.shape),
    "blur": lambda image, rng: scipy.ndimage.gaussian_filter(image, 0.8),
    "contrast": lambda image, rng: image.mean() + 0.3 * (image - image.mean()),
    "rotation": lambda image, rng: scipy.ndimage.rotate(
        image, rng.choice([-1.0, 1.0]) * rng.uniform(20.0, 35.0), reshape=False, order=1
    ),
    "translation": lambda image, rng: scipy.ndimage.shift(image, rng.choice([-1.0, 1.0], 2), order=0),
    "dropout": lambda image, rng: image * (rng.random(image.shape) > 0.3),
}
"""Corruptions for 8 x 8 pixels, of images in [0, 1]; the results are clipped."""


def digits_transform() -> Compose:
    """Transform 8 x 8 images to tensors (3, 8, 8) in [-1, 1]; three channels, because unit tests have colors."""
    return Compose([ToTensor(), Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))])


class DigitsData(OODDataModule):
    """Streams of digits, with (image, label) batches for `Trainer.fit`.

    Args:
        streams: The streams.
        seed: Seed of the order of the training images.
        loading: See `OODDataModule`; the default transform is `digits_transform()`.
    """

    def __init__(self, streams: Sequence[Stream], seed: int, loading: LoadingOptions) -> None:
        if loading.get("transform") is None:  # as in a configuration that was written
            loading = {**loading, "transform": digits_transform()}
        super().__init__(streams, **loading)
        self.seed = seed

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        """Shuffled (image, label) batches of the training digits."""
        return self._pairs(self.stream("digits_train"), shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        """(image, label) batches of the ID validation digits, in order."""
        return self._pairs(self.stream("digits_val"), shuffle=False)

    def _pairs(self, stream: Stream, *, shuffle: bool) -> DataLoader[tuple[torch.Tensor, ...]]:
        assert self.transform is not None  # set in __init__
        samples = list(stream.source.read(0, len(stream)))
        images = torch.stack([self.transform(decode_sample(sample, decode_image)) for sample in samples])
        labels = torch.tensor([sample.label for sample in samples])
        pairs, generator = TensorDataset(images, labels), torch.Generator().manual_seed(self.seed)
        return DataLoader(pairs, batch_size=self.batch_size, shuffle=shuffle, generator=generator)


class DigitsBenchmark(DigitsData):
    """The digits 0-6 as known classes, with near-OOD, shifted and synthetic test sets.

    | stream         | role      | images                                                                   |
    |----------------|-----------|--------------------------------------------------------------------------|
    | digits_train   | TRAIN     | 60 % of the digits 0-6                                                   |
    | digits_val     | ID        | the other 40 %                                                           |
    | digits_near    | OOD       | the digits 7, 8, 9 as three OOD classes                                  |
    | digits_shifted | SHIFT     | the ID images under six corruptions, labels kept, groups = corruptions   |
    | unit_tests     | UNIT_TEST | the 17 unit tests at 8 x 8 pixels                                        |

    All sets are written as shards once and streamed from there, like ImageNet. `train_dataloader` and `val_dataloader`
    return (image, label) batches for `Trainer.fit`.

    Args:
        root: Folder for the shards, reused by later runs. None (default) = a temporary folder that is removed with this
            object.
        seed: Seed of the split, the corruptions and the unit tests.
        per_test: Images per unit test, >= 1.
        far: Whether to add the OOD set "digits_far", patches of photographs.
        loading: See `OODDataModule`; the default transform is `digits_transform()`.

    Raises:
        InvalidArgumentError: `per_test` is below 1.

    Example:
        >>> data = DigitsBenchmark(per_test=2)
        >>> [(stream.name, str(stream.role), len(stream)) for stream in data.streams][:3]
        [('digits_train', 'train', 758), ('digits_val', 'id', 506), ('digits_near', 'ood', 533)]
        >>> next(iter(data.train_dataloader()))[0].shape
        torch.Size([64, 3, 8, 8])

    References:
        Alpaydin and Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        seed: int = 0,
        per_test: int = 50,
        far: bool = False,
        **loading: Unpack[LoadingOptions],
    ) -> None:
        folder = root_or_temporary(root, self) / f"digits-{_RECIPE}-seed{seed}-tests{per_test}"
        sets = [*_sets(seed, per_test), *([_far(seed)] if far else [])]
        super().__init__(packed_streams(folder, sets), seed, loading)


def _far(seed: int, count: int = 300) -> SmallSet:
    """Patches of scikit-learn's two photographs, as wide as the digits."""
    rng = np.random.default_rng([seed, count])
    photos = [photo.mean(axis=2) / 255.0 for photo in load_sample_images().images]
    patches = []
    for index in range(count):
        photo = photos[index % len(photos)]
        top, left = (int(rng.integers(0, side - 8)) for side in photo.shape)
        patches.append(entry("photo", index, photo[top : top + 8, left : left + 8], -1, -1))
    return SmallSet("digits_far", Role.OOD, patches, (), facts(seed))


def _sets(seed: int, per_test: int) -> list[SmallSet]:
    pictures, targets = load_pictures()
    train_set, val_set = id_sets(ID_CLASSES, seed)
    val = split_indices(targets, len(ID_CLASSES), seed)[1]
    near = [
        entry(OOD_CLASSES[targets[i] - len(ID_CLASSES)], i, pictures[i], -1, int(targets[i]) - len(ID_CLASSES))
        for i in np.flatnonzero(targets >= len(ID_CLASSES)).tolist()
    ]
    shifted = [
        entry(
            kind,
            i,
            np.clip(corrupt(pictures[i], np.random.default_rng([seed, group, i])), 0, 1),
            int(targets[i]),
            group,
        )
        for group, (kind, corrupt) in enumerate(DIGIT_CORRUPTIONS.items())
        for i in val
    ]
    images = MemorySource([Sample(one.key, one.read()) for one in val_set.entries])
    return [
        train_set,
        val_set,
        SmallSet("digits_near", Role.OOD, near, OOD_CLASSES, facts(seed)),
        SmallSet("digits_shifted", Role.SHIFT, shifted, tuple(DIGIT_CORRUPTIONS), facts(seed)),
        unit_test_set(unit_test_source(images, per_test, seed=seed, scale=UNIT_TEST_SCALE)),
    ]


def load_pictures() -> tuple[Float64[np.ndarray, "images 8 8"], Int64[np.ndarray, " images"]]:
    """Images of all digits in [0, 1], and their digits."""
    digits = load_digits()
    return np.asarray(digits.images) / 16.0, np.asarray(digits.target, dtype=np.int64)


def split_indices(targets: Int64[np.ndarray, " images"], num_known: int, seed: int) -> tuple[list[int], list[int]]:
    """Sorted positions of training and validation images of the digits below `num_known`."""
    known = np.flatnonzero(targets < num_known)
    val = set(np.random.default_rng(seed).permutation(known)[: round(VAL_SHARE * len(known))].tolist())
    return [i for i in known.tolist() if i not in val], sorted(val)


def id_sets(class_names: tuple[str, ...], seed: int) -> tuple[SmallSet, SmallSet]:
    """Training and validation sets of the first digits, one per class name."""
    pictures, targets = load_pictures()
    train, val = (
        [entry(class_names[targets[i]], i, pictures[i], int(targets[i]), -1) for i in indices]
        for indices in split_indices(targets, len(class_names), seed)
    )
    return (
        SmallSet("digits_train", Role.TRAIN, train, class_names, facts(seed)),
        SmallSet("digits_val", Role.ID, val, class_names, facts(seed)),
    )


def entry(folder: str, index: int, picture: Picture, label: int, group: int) -> Entry:
    """Entry of one digit in the folder of its class."""
    grey = np.rint(255.0 * picture).astype(np.uint8)
    data = encode(np.repeat(grey[:, :, None], 3, axis=2))
    return Entry(f"{folder}/{index:04d}.png", lambda: data, label, group)


def facts(seed: int) -> dict[str, Any]:
    """Facts for the manifests."""
    return {"licence": "CC-BY-4.0", "source": "https://archive.ics.uci.edu/dataset/80", "seed": seed}
