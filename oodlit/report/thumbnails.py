"""Small pictures in the folder of results, so that the page needs no access to the images."""

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from oodlit.base.atomic import write_bytes
from oodlit.base.errors import DataError
from oodlit.base.inside import file_inside
from oodlit.base.json_files import read_json
from oodlit.base.roles import Role
from oodlit.results import Results
from oodlit.results.files.image_features import FILE, ImageFeatures
from oodlit.results.views.pools import hardest_classes
from oodlit.results.views.sampled_images import hash_of, sampled_images

SIDE = 128
"""Longest side of a thumbnail, in pixels; smaller images keep their size."""
WITHOUT = "delete {} to write the page without thumbnails"
MAX_BYTES = 2_000_000
"""Largest file that is embedded in a page."""
_KINDS = {b"\x89PNG\r\n": "png", b"\xff\xd8\xff": "jpeg"}
"""First bytes of the files that thumbnails have."""


def keys_to_show(results: Results, *, per_detector: int = 12) -> list[str]:
    """Keys of all images on the page: a sample, and one image per unit test and per hardest class."""
    keys = [key for own in sampled_images(results, per_detector=per_detector).values() for key in own]
    for info in results.datasets:
        if info.role is Role.UNIT_TEST:
            rows = results.scores[results.scores["dataset"] == info.name]
            keys += rows.groupby("group")["key"].min().tolist()
        elif info.role is Role.POOL:
            found = [hardest_classes(results, info, name, per_detector) for name in results.detectors]
            keys += [key for rows in found if len(rows) for key in rows["key"].dropna()]
    return list(dict.fromkeys(keys))


def save_thumbnails(
    results: Results,
    folder: Path,
    read_images: Callable[[list[str]], Mapping[str, Image.Image]],
    *,
    per_detector: int = 12,
    features: ImageFeatures | None = None,
) -> None:
    """Write small copies of the images that the page shows to `folder/thumbnails`.

    Small images are stored as PNG, others as JPEG. Files are named by a hash of the key; `index.json`, written last,
    maps keys to files.

    Args:
        results: A run.
        folder: Folder of the results.
        read_images: Returns decoded images by key, such as `OODDataModule.read_images`.
        per_detector: Maximum number of images with extreme scores per detector and set. Default 12.
        features: Has neighbors of images, which are stored as well. None (default) = no neighbors.
    """
    keys = [*keys_to_show(results, per_detector=per_detector), *neighbor_keys(features)]
    store(folder, read_images(list(dict.fromkeys(keys))), SIDE)


def neighbor_keys(features: ImageFeatures | None) -> list[str]:
    """Keys of the training images near others."""
    nearest = {} if features is None else features.nearest
    return list(dict.fromkeys(near.key for own in nearest.values() for near in own))


def store(folder: Path, images: Mapping[str, Image.Image], side: int) -> None:
    """Write copies of images, by key, to `folder/thumbnails`; larger ones are scaled to `side` pixels."""
    target = folder / "thumbnails"
    target.mkdir(parents=True, exist_ok=True)
    index = {}
    for key, image in images.items():
        data, suffix = _encode(image, side)
        index[key] = hash_of(key)[:16] + suffix
        write_bytes(target / index[key], data)
    write_bytes(target / "index.json", json.dumps(index, indent=1, sort_keys=True).encode())


def clear_thumbnails(folder: Path) -> None:
    """Remove the thumbnails of an earlier run from `folder`."""
    target = file_inside(folder, "thumbnails")
    (target / FILE).unlink(missing_ok=True)
    index = target / "index.json"
    if not index.is_file():
        return
    names = _read(index).values()
    index.unlink()  # first, so that the index never names a missing file
    for name in names:
        file_inside(target, name).unlink(missing_ok=True)
    if not any(target.iterdir()):
        target.rmdir()


def load_thumbnails(folder: Path | None, keys: Iterable[str]) -> dict[str, str]:
    """Return `data:` URLs by key, for those `keys` with a thumbnail in `folder`.

    Raises:
        DataError: The index is not readable, or names a missing file, a link out of the folder, or something else than
            a small PNG or JPEG.
    """
    path = None if folder is None else file_inside(file_inside(folder, "thumbnails"), "index.json")
    if path is None or not path.is_file():
        return {}
    index, found = _read(path), {}
    for key in keys:
        if (name := index.get(key)) is None:
            continue
        file = file_inside(path.parent, name)
        if not file.is_file():
            raise DataError(f"{path}: the thumbnail {name!r} of {key!r} is missing; {WITHOUT.format(path.parent)}")
        found[key] = _url_of_file(file)
    return found


def _url_of_file(file: Path) -> str:
    """A stored thumbnail as a `data:` URL; anything but a small PNG or JPEG is refused."""
    with file.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    kind = next((kind for start, kind in _KINDS.items() if data.startswith(start)), "")
    if len(data) > MAX_BYTES or not kind:
        raise DataError(f"{file}: expected a PNG or JPEG of up to {MAX_BYTES:,} bytes; {WITHOUT.format(file.parent)}")
    return data_url(data, kind)


def data_url(data: bytes, kind: str) -> str:
    """An image as a `data:` URL; `kind` is "png" or "jpeg"."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _read(path: Path) -> dict[str, str]:
    """File by key, of an index."""
    index = read_json(path, dict, hint=f"; {WITHOUT.format(path.parent)}")
    return {str(key): str(name) for key, name in index.items()}


def _encode(image: Image.Image, side: int) -> tuple[bytes, str]:
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    flat = len(np.unique(np.asarray(small).reshape(-1, 3), axis=0)) <= 16  # unit tests, which JPEG would blur
    if max(small.size) <= 48 or flat:
        small.save(buffer, "PNG", optimize=True)
        return buffer.getvalue(), ".png"
    return jpeg(small), ".jpg"


def jpeg(image: Image.Image) -> bytes:
    """An image as a JPEG file."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return buffer.getvalue()


class ThumbnailStyles:
    """CSS classes of thumbnails by key, so that the page stores each picture once."""

    def __init__(self, urls: Mapping[str, str], prefix: str) -> None:
        self._urls = urls
        self._names = {key: f"{prefix}{index}" for index, key in enumerate(urls)}

    def css(self) -> str:
        """CSS rules, one per image; base64 has no characters that could end a rule."""
        return "\n".join(f".{self._names[key]} {{ background-image: url({url}) }}" for key, url in self._urls.items())

    def classes(self, key: str) -> str:
        """CSS classes that show the image; empty if there is none."""
        if key not in self._names:
            return ""
        return self._names[key] + (" tiny" if self._urls[key].startswith("data:image/png") else "")
