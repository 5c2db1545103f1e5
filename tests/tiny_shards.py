"""Tiny shards for tests: a few small images, written as the real ones are, or by hand with any fault in them."""

import colorsys
import io
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image

from oodlit.datamodules.shards import ShardSource
from oodlit.datamodules.shards.manifest import ShardInfo, ShardRecord, write_info
from oodlit.datamodules.shards.writer import Entry, write_shard
from oodlit.roles import KNOWN_CLASSES, NAMES_OF_LABELS, Role


def tiny_image(number: int, *, size: tuple[int, int] = (8, 8), format: str = "PNG") -> bytes:
    """An image file of one colour that depends on `number`.

    Example:
        >>> from oodlit.datamodules.decode import image_size
        >>> image_size(tiny_image(3, format="JPEG"))
        (8, 8, 'JPEG')
    """
    red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(number * 0.618 % 1, 0.8, 0.9))
    file = io.BytesIO()
    Image.new("RGB", size, (red, green, blue)).save(file, format)
    return file.getvalue()


def write_tiny_shards(
    folder: str | Path,
    shard_lengths: Sequence[int],
    *,
    name: str = "tiny",
    role: Role = Role.OOD,
    num_classes: int = 3,
    size: tuple[int, int] = (8, 8),
    manifest: bool = True,
) -> list[str]:
    """Write shards of tiny PNG images; image i has label or group i % num_classes.

    Args:
        folder: Where to; made if it does not exist.
        shard_lengths: Samples of every shard; 0 gives an empty shard.
        name: Name of the data set and start of the file names.
        role: TRAIN, ID and SHIFT images get labels; all but TRAIN and ID get groups.
        num_classes: Number of labels and groups.
        size: Width and height in pixels.
        manifest: Whether `_info.json` is written; without it readers count the shards.

    Returns:
        The keys in order.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    keys: list[str] = []
    records: list[ShardRecord] = []
    for shard, length in enumerate(shard_lengths):
        entries = [_tiny_entry(len(keys) + i, role, num_classes, size) for i in range(length)]
        records.append(write_shard(folder / f"{name}-{shard:06d}.tar", entries))
        keys.extend(entry.key for entry in entries)
    if manifest:
        names = tuple(f"class {i}" for i in range(num_classes))
        write_info(folder, ShardInfo("test", tuple(records), name=name, role=role, class_names=names))
    return keys


def _tiny_entry(number: int, role: Role, num_classes: int, size: tuple[int, int]) -> Entry:
    index = number % num_classes
    data = tiny_image(number, size=size)
    return Entry(
        path=f"class_{index}/{number:05d}.png",
        read=lambda: data,
        label=index if role in KNOWN_CLASSES else -1,
        group=index if role not in NAMES_OF_LABELS else -1,
    )


def write_raw_tar(path: str | Path, members: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> Path:
    """Write a plain tar with exactly these files in this order: for shards of others, and for faulty ones.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_raw_tar(Path(folder) / "a.tar", {"0.cls": b"1", "0.png": tiny_image(0)})
        ...     tarfile.is_tarfile(path)
        True
    """
    path = Path(path)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def tiny_zeros(image: object) -> torch.Tensor:
    """A transform to one pixel."""
    return torch.zeros(1, 1, 1)


def keys_of(source: ShardSource) -> list[str]:
    """The keys of all samples, in order."""
    return [sample.key for sample in source.read(0, len(source))]
