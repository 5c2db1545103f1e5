"""Scenes of real handwritten digits on textured backgrounds, written as COCO folders."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.ndimage
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

from oodlit.datamodules.decode import decode_image
from oodlit.objects.benchmark import CocoSet, ObjectBenchmark

KNOWN = ("zero", "one", "two", "three", "four", "five", "six")
UNKNOWN = ("seven", "eight", "nine")
SHAPES = ("ring", "cross", "bar")
Box = tuple[int, int, int, int]
"""x, y, width and height, in pixels."""
VAL_SHARE = 0.4
SIDES = (80, 128)
"""Smallest and largest side of a scene, in pixels."""
DIGIT = (20, 34)
"""Smallest and largest longer side of an object, in pixels."""
MOST = 6
"""Largest number of objects per scene."""


class Scene(NamedTuple):
    """A picture and its objects.

    Args:
        picture: Gray values in [0, 1], shape (height, width).
        boxes: x, y, width and height of each object.
        labels: Class of each object.
    """

    picture: np.ndarray
    boxes: Sequence[Box]
    labels: Sequence[int]


class DigitScenes(ObjectBenchmark):
    """Scenes with one to six objects: the digits 0-6 are known; 7, 8 and 9 are unknown, and so are drawn shapes.

    | set           | role  | objects                                     |
    |---------------|-------|---------------------------------------------|
    | scenes_train  | TRAIN | 60 % of the digits 0-6                      |
    | scenes_val    | ID    | the other 40 %                              |
    | digits_near   | OOD   | the digits 7, 8, 9                          |
    | shapes_far    | OOD   | rings, crosses and bars, drawn              |

    A box fits the ink tightly. One scene in ten is empty. The folders are written once; the same seed returns the same
    files.

    Args:
        root: Folder for pictures and annotations.
        seed: Seed of the split and the scenes.
        train: Number of training scenes.
        test: Number of scenes per other set.
        batch_size: Scenes per batch.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     data = DigitScenes(root, train=3, test=2)
        >>> [(stream.name, len(stream)) for stream in data.streams]
        [('scenes_train', 3), ('scenes_val', 2), ('digits_near', 2), ('shapes_far', 2)]

    References:
        Alpaydin and Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.
    """

    def __init__(
        self, root: str | Path, *, seed: int = 0, train: int = 400, test: int = 120, batch_size: int = 4
    ) -> None:
        folder = Path(root) / f"scenes-seed{seed}-{train}-{test}"
        pools = {
            "scenes_train": (KNOWN, train),
            "scenes_val": (KNOWN, test),
            "digits_near": (UNKNOWN, test),
            "shapes_far": (SHAPES, test),
        }
        sets = {name: CocoSet(name, folder / name / "annotations.json", folder / name) for name in pools}
        for number, (name, (classes, count)) in enumerate(pools.items()):
            if not (folder / name / "annotations.json").is_file():
                rng = np.random.default_rng([seed, number])
                write_scenes(folder / name, scenes(_objects(name, seed, rng), count, rng), classes)
        near, far = sets["digits_near"], sets["shapes_far"]
        super().__init__(sets["scenes_val"], [near, far], sets["scenes_train"], batch_size=batch_size)
        self.seed = seed

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled batches for a torchvision detector: images and targets, with label 0 for the background."""
        annotations, stream = self.annotations["scenes_train"], self.stream("scenes_train")
        assert self.transform is not None  # set in ObjectBenchmark
        pairs: Any = []  # a DataLoader accepts a list
        for number, sample in enumerate(stream.source.read(0, len(stream))):
            assert isinstance(sample.image, bytes)  # the files were just written
            rows = annotations.image == number
            target = {"boxes": annotations.boxes[rows].float(), "labels": annotations.labels[rows] + 1}
            pairs.append((self.transform(decode_image(sample.image)), target))
        generator = torch.Generator().manual_seed(self.seed)
        return DataLoader(pairs, self.batch_size, shuffle=True, collate_fn=_as_lists, generator=generator)


def _as_lists(pairs: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [image for image, _ in pairs], [target for _, target in pairs]


def _objects(name: str, seed: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, int]]:
    """Yield objects without end: the ink of each in [0, 1], and its class."""
    if name == "shapes_far":
        while True:
            label = int(rng.integers(len(SHAPES)))
            yield _shape(SHAPES[label], rng), label
    digits = load_digits()
    known = np.flatnonzero(digits.target < len(KNOWN))
    order = np.random.default_rng(seed).permutation(known)
    cut = round(VAL_SHARE * len(known))
    pool = {"scenes_val": order[:cut], "scenes_train": order[cut:]}.get(
        name, np.flatnonzero(digits.target >= len(KNOWN))
    )
    first = len(KNOWN) if name == "digits_near" else 0
    while True:
        chosen = int(rng.choice(pool))
        yield digits.images[chosen] / 16.0, int(digits.target[chosen]) - first


def _shape(kind: str, rng: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[-1:1:24j, -1:1:24j]
    angle, thick = rng.uniform(0, np.pi), rng.uniform(0.15, 0.3)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    if kind == "ring":
        ring: np.ndarray = np.abs(np.hypot(x, rng.uniform(1.0, 1.4) * y) - 0.75) < thick / 2
        return ring.astype(float)
    bar: np.ndarray = (np.abs(u) < thick) & (np.abs(v) < 0.95)
    across: np.ndarray = (np.abs(v) < thick) & (np.abs(u) < 0.95)
    return (bar if kind == "bar" else bar | across).astype(float)


def scenes(objects: Iterator[tuple[np.ndarray, int]], count: int, rng: np.random.Generator) -> Iterator[Scene]:
    """Scenes of these objects at random places that do not overlap, in bright ink on a darker texture."""
    for number in range(count):
        height, width = (int(v) for v in rng.integers(SIDES[0], SIDES[1] + 1, 2))
        picture = _texture(height, width, rng)
        boxes: list[Box] = []
        labels: list[int] = []
        for _ in range(0 if number % 10 == 9 else int(rng.integers(1, MOST + 1))):
            ink, label = next(objects)
            ink = _scaled(ink, int(rng.integers(DIGIT[0], DIGIT[1] + 1)))
            if (place := _free_place(ink.shape, (height, width), boxes, rng)) is None:
                continue
            x, y = place
            window = picture[y : y + ink.shape[0], x : x + ink.shape[1]]
            window[:] = window + ink * (rng.uniform(0.75, 1.0) - window)
            boxes.append((x, y, ink.shape[1], ink.shape[0]))
            labels.append(label)
        yield Scene(np.clip(picture + rng.normal(0.0, 0.02, picture.shape), 0.0, 1.0), boxes, labels)


def _texture(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    coarse = scipy.ndimage.gaussian_filter(rng.normal(size=(height, width)), rng.uniform(1.5, 6.0))
    ground: np.ndarray = rng.uniform(0.15, 0.3) + 0.08 * coarse / coarse.std()
    return ground.clip(0.0, 0.5)


def _scaled(ink: np.ndarray, side: int) -> np.ndarray:
    """The ink without its margins; the longer side becomes `side`."""
    rows, columns = (np.flatnonzero((ink > 0.2).any(axis=axis)) for axis in (1, 0))
    tight = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = (max(6, round(side * length / max(tight.shape))) for length in tight.shape)
    picture = Image.fromarray(np.rint(255 * tight).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(picture) / 255.0


def _free_place(
    size: tuple[int, ...], scene: tuple[int, int], taken: Sequence[Box], rng: np.random.Generator
) -> tuple[int, int] | None:
    """Find a free place for an object; None after twenty failed attempts."""
    for _ in range(20):
        x, y = int(rng.integers(0, scene[1] - size[1] + 1)), int(rng.integers(0, scene[0] - size[0] + 1))
        if all(x + size[1] <= a or a + w <= x or y + size[0] <= b or b + h <= y for a, b, w, h in taken):
            return x, y
    return None


def write_scenes(folder: Path, made: Iterator[Scene], classes: Sequence[str]) -> None:
    """Write pictures, and then `annotations.json`: a folder without it is incomplete."""
    folder.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, scene in enumerate(made):
        name = f"{number:04d}.png"
        Image.fromarray(np.rint(255 * scene.picture).astype(np.uint8)).save(folder / name)
        height, width = scene.picture.shape
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        annotations += [
            {"id": len(annotations) + i, "image_id": number, "category_id": label, "bbox": box}
            for i, (box, label) in enumerate(zip(scene.boxes, scene.labels, strict=True))
        ]
    categories = [{"id": number, "name": name} for number, name in enumerate(classes)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(content))
