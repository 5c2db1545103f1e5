"""What a run keeps of the features of some images: their nearest training images, and a map in two dimensions."""

from pathlib import Path

import msgspec

from oodlit.base.atomic import write_bytes
from oodlit.base.inside import file_inside
from oodlit.base.json_files import as_type, read_json, to_json

FILE = "features.json"
"""Name of the file, beside the thumbnails."""


class Neighbor(msgspec.Struct, frozen=True):
    """A training image near another image.

    Args:
        key: Its key, which begins with the name of the stream.
        label: Its class; -1 = unknown.
        distance: Euclidean distance of the normalized features, 0..2.
    """

    key: str
    label: int
    distance: float


class MapPoint(msgspec.Struct, frozen=True):
    """An image on the map.

    Args:
        x: Coordinate on the first principal axis.
        y: Coordinate on the second.
        label: Its class, for training images; -1 = unknown, or of another data set.
    """

    x: float
    y: float
    label: int = -1


class ImageFeatures(msgspec.Struct, frozen=True):
    """Neighbors and map of the images of a page.

    Args:
        num_train: Number of training images that were compared.
        nearest: By key, the nearest training images, the nearest first.
        shares: Share of the variance of the training features on both axes, 0..1.
        points: By data set, its images on the map; training images under the empty name.
    """

    num_train: int = 0
    nearest: dict[str, list[Neighbor]] = {}
    shares: list[float] = []
    points: dict[str, list[MapPoint]] = {}


def write_features(folder: Path, found: ImageFeatures) -> None:
    """Write the file beside the thumbnails in the folder of results."""
    target = folder / "thumbnails"
    target.mkdir(parents=True, exist_ok=True)
    write_bytes(target / FILE, to_json(msgspec.to_builtins(found)).encode())


def read_features(folder: Path | None) -> ImageFeatures:
    """Read the file; empty if there is none.

    Raises:
        DataError: The file is unreadable, or a link out of the folder.
    """
    path = None if folder is None else file_inside(file_inside(folder, "thumbnails"), FILE)
    if path is None or not path.is_file():
        return ImageFeatures()
    return as_type(read_json(path, dict), ImageFeatures, where=str(path))
