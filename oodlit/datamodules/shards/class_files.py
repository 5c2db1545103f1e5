"""List classes that are folders or tars of images, without unpacking them, one class at a time."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from oodlit.base.errors import DataError
from oodlit.datamodules.keys import is_hidden
from oodlit.datamodules.shards.archives import tar_places
from oodlit.datamodules.shards.listing import is_image


class Place(NamedTuple):
    """Location of a file's bytes: a file in a folder, or a part of a tar.

    Files of one folder share its path, which saves memory for millions of files.

    Args:
        path: The folder or tar.
        offset: First byte in the tar.
        size: Number of bytes in the tar; None = the whole file.
        name: Name of the file in the folder; empty for a tar.
    """

    path: Path
    offset: int = 0
    size: int | None = None
    name: str = ""

    def read(self) -> bytes:
        """Read the bytes.

        Raises:
            DataError: They cannot be read, or the file has become shorter.
        """
        try:
            with (self.path / self.name).open("rb") as file:
                file.seek(self.offset)
                data = file.read() if self.size is None else file.read(self.size)
        except OSError as error:
            raise DataError(f"{self.path / self.name} cannot be read: {error}") from error
        if self.size is not None and len(data) < self.size:
            raise DataError(f"{self.path} is truncated at byte {self.offset + len(data)}; download it again")
        return data


Images = Mapping[str, Place]
"""Image files of a class by name."""
Classes = dict[str, Callable[[], Images]]
"""Functions that list the images of a class, by its name."""


def class_files(source: str | Path, is_class: Callable[[str], bool]) -> Classes:
    """Find the classes of a source, each with a function that lists its images.

    Supported layouts are a folder of class folders, a folder of tars `<class>.tar`, a tar of such tars, and a tar of
    class folders. Single parent folders around the classes are skipped.

    Args:
        source: The folder or tar. Compressed tars do not allow random access and are refused.
        is_class: Whether a name is a class.

    Returns:
        Functions by class, sorted. Each lists its class only; for a tar of class folders, all are listed in one pass.

    Raises:
        DataError: There is no class, a class occurs twice, or the source is damaged or of another kind.
    """
    root = Path(source)
    if root.is_dir():
        found = _of_folder(root, is_class)
    elif root.is_file():
        found = _of_tar(root, is_class)
    else:
        raise DataError(f"{root} does not exist; expected a tar, or a folder of class folders or tars")
    if not found:
        raise DataError(f"{root}: found no class folder and no <class>.tar; pass the folder that contains the classes")
    return dict(sorted(found.items()))


def _of_folder(root: Path, is_class: Callable[[str], bool]) -> Classes:
    found: Classes = {}
    others = []
    for entry in sorted(root.iterdir()):
        name = entry.name.removesuffix(".tar")
        if not is_class(name):
            others += [entry] if entry.is_dir() and not is_hidden(entry.name) else []
            continue
        if name in found:
            raise DataError(f"{root}: {name} exists as a folder and as a tar; remove one of them")
        found[name] = partial(_folder_images, entry) if entry.is_dir() else partial(_tar_images, Place(entry))
    return found if found or len(others) != 1 else _of_folder(others[0], is_class)


def _of_tar(path: Path, is_class: Callable[[str], bool]) -> Classes:
    found: Classes = {}
    folders: dict[str, dict[str, Place]] = {}
    for name, offset, size in tar_places(path):
        pure = PurePosixPath(name)
        if pure.suffix == ".tar" and is_class(pure.stem):
            if pure.stem in found:
                raise DataError(f"{path}: the archive contains {pure.name!r} twice; unpack it and keep one of them")
            found[pure.stem] = partial(_tar_images, Place(path, offset, size))
        elif is_class(pure.parent.name) and is_image(name):
            _add(folders.setdefault(pure.parent.name, {}), pure.name, Place(path, offset, size))
    if twice := sorted(found.keys() & folders.keys()):
        raise DataError(
            f"{path}: the archive contains {twice[0]!r} as a folder and as a tar; unpack it and remove one of them"
        )
    return found | {name: partial(dict, images) for name, images in folders.items()}


def _folder_images(folder: Path) -> Images:
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise DataError(f"cannot list {folder}: {error}") from error
    return {name: Place(folder, name=name) for name in names if is_image(name) and not is_hidden(name)}


def _tar_images(tar: Place) -> Images:
    images: dict[str, Place] = {}
    for name, offset, size in tar_places(tar.path, tar.offset, tar.size):
        if is_image(name):
            _add(images, PurePosixPath(name).name, Place(tar.path, offset, size))
    return images


def _add(images: dict[str, Place], name: str, place: Place) -> None:
    if name in images:
        raise DataError(
            f"{place.path}: the archive contains {name!r} twice in one class; unpack it and remove one of the two files"
        )
    images[name] = place
