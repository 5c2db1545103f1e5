"""Real photos from the package foolbox, for a first look at real networks."""

import importlib.metadata
import re
from pathlib import Path

from typing_extensions import Unpack

from oodlit.base.errors import DataError, MissingExtraError
from oodlit.base.known_classes.imagenet import class_names
from oodlit.base.roles import Role
from oodlit.datamodules.benchmarks.packed import SmallSet, packed_streams, root_or_temporary, unit_test_set
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.generated.unit_test_source import Template, UnitTestSource
from oodlit.datamodules.loading_options import LoadingOptions
from oodlit.datamodules.shards.writer import Entry
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample

SIZES = ((500, 375), (500, 333), (375, 500), (500, 500), (500, 334), (333, 500), (400, 300), (640, 480))
"""Frequent sizes of ImageNet images for the unit tests: width and height in pixels."""
OTHERS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST", "fashionMNIST": "Fashion-MNIST"}
_NAME = re.compile(r"(\w+?)_(\d+)_(\d+)\.(png|jpg)")
_RECIPE = 1


class PhotosBenchmark(OODDataModule):
    """20 labeled ImageNet photos as ID data, against 80 pictures of four other data sets and the 17 unit tests.

    | stream          | role      | images                                                          |
    |-----------------|-----------|-----------------------------------------------------------------|
    | imagenet_photos | ID        | 20 photos with their ImageNet labels                            |
    | other_pictures  | OOD       | 20 each of CIFAR-10, CIFAR-100, MNIST, Fashion-MNIST (groups)   |
    | unit_tests      | UNIT_TEST | the 17 unit tests at frequent sizes of ImageNet images          |

    This is a demo, not a measurement: with 20 ID images, a single photo decides the FPR at 95 % TPR. CIFAR's pictures
    show objects of ImageNet's classes at 32 x 32 pixels; read their groups with that in mind.

    Args:
        root: Folder for the shards, reused by later runs. None (default) = a temporary folder that is removed with this
            object.
        seed: Seed of the unit tests.
        per_test: Images per unit test, >= 1.
        loading: See `OODDataModule`.

    Raises:
        MissingExtraError: The extra "imagenet-demo" is not installed.
        DataError: The installed package does not have the expected pictures.
        InvalidArgumentError: `per_test` is below 1.

    References:
        Rauber et al.: Foolbox Native, Journal of Open Source Software 5(53), 2020.
    """

    def __init__(
        self, root: str | Path | None = None, *, seed: int = 0, per_test: int = 12, **loading: Unpack[LoadingOptions]
    ) -> None:
        sets = _sets(seed, per_test)
        folder = root_or_temporary(root, self) / f"photos-{_RECIPE}-seed{seed}-tests{per_test}"
        super().__init__(packed_streams(folder, sets), **loading)


def _pictures() -> list[tuple[str, int, Path]]:
    """Data set, label and file of every picture, without importing the package."""
    try:
        files = importlib.metadata.files("foolbox") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError.of("PhotosBenchmark", "imagenet-demo") from error
    found = []
    for file in sorted(files, key=str):
        match = _NAME.fullmatch(file.name)
        if file.parent.name == "data" and match:
            found.append((match[1], int(match[3]), Path(str(file.locate()))))
    numbers = {name: sum(kind == name for kind, _, _ in found) for name in ("imagenet", *OTHERS)}
    if set(numbers.values()) != {20}:
        raise DataError(
            "foolbox: expected 20 pictures of each data set, got"
            f" {', '.join(f'{n} of {name}' for name, n in numbers.items())}; run `pip install 'foolbox==3.3.4'`"
        )
    return found


def _sets(seed: int, per_test: int) -> list[SmallSet]:
    pictures = _pictures()
    photos = [
        Entry(f"imagenet/{path.name}", path.read_bytes, label) for name, label, path in pictures if name == "imagenet"
    ]
    groups = list(OTHERS)
    others = [
        Entry(f"{name}/{path.name}", path.read_bytes, group=groups.index(name))
        for name, _, path in pictures
        if name in OTHERS
    ]
    facts = {"source": "https://github.com/bethgelab/foolbox"}
    images = MemorySource([Sample(photo.key, photo.read()) for photo in photos])
    templates = [Template(*SIZES[i % len(SIZES)], position=i % len(images)) for i in range(per_test)]
    return [
        SmallSet("imagenet_photos", Role.ID, photos, class_names(), facts),
        SmallSet("other_pictures", Role.OOD, others, tuple(OTHERS.values()), facts),
        unit_test_set(UnitTestSource(templates, images=images, seed=seed)),
    ]
