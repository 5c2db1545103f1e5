"""The pictures of a COCO file as a source of samples, with the ids of images as keys."""

import os
from pathlib import Path

from oodlit.base.errors import DataError
from oodlit.base.sizes import read_file
from oodlit.datamodules.keys import is_hidden
from oodlit.datamodules.sources import IndexedSource
from oodlit.datamodules.stream import Sample
from oodlit.objects.files.annotations import Annotations
from oodlit.objects.files.orientation import Orientation, turned

FIRST = 50
"""Number of pictures to search for to find their folder."""


class PictureSource(IndexedSource):
    """Pictures by the ids of their annotations, read when needed.

    Args:
        annotations: The images.
        folder: Folder of their files.
        orientation: Whether boxes refer to pictures as stored or as displayed; None = by width and height.

    Raises:
        DataError: An image has no file name, or one outside of the folder.
    """

    def __init__(self, annotations: Annotations, folder: Path, orientation: Orientation | None = None) -> None:
        self.keys = [key.removeprefix(f"{annotations.dataset}/") for key in annotations.keys]
        for key, name in zip(self.keys, annotations.file_names, strict=True):
            if not name or Path(name).is_absolute() or ".." in Path(name).parts:
                raise DataError(
                    f"{annotations.dataset}: expected file_name of image {key!r} to be a path inside {folder}"
                    f" (relative, without '..'), got {name!r}"
                )
        self.paths = [folder / name for name in annotations.file_names]
        self.sizes = annotations.sizes.tolist()
        self.orientation = orientation

    @property
    def content(self) -> str:
        """What else identifies the pictures: the given orientation."""
        return self.orientation or ""

    def __len__(self) -> int:
        """Number of images, including those without objects."""
        return len(self.keys)

    def key(self, index: int) -> str:
        """Id of one image."""
        return self.keys[index]

    def sample(self, index: int) -> Sample:
        """One image."""
        key, path = self.keys[index], self.paths[index]
        try:
            data = read_file(path)
            image = turned(data, tuple(self.sizes[index]), self.orientation)
        except OSError as error:
            return Sample(key, b"", error=f"cannot be read: {error}", origin=str(path))
        except DataError as error:
            return Sample(key, b"", error=str(error), origin=str(path))
        return Sample(key, image, origin=str(path))


def find_folder(below: Path, annotations: Annotations) -> Path:
    """Find the folder with the pictures of a file: `below`, or the folder below it with the most of them.

    Raises:
        DataError: There is none.
    """
    names = [name for name in annotations.file_names[:FIRST] if name]
    found = sorted(Path(folder) for folder, _, _ in os.walk(below))
    folders = [folder for folder in found if folder == below or not is_hidden(folder.relative_to(below).as_posix())]
    counts = [sum((folder / name).is_file() for name in names) for folder in folders]
    if not names:
        raise DataError(f"{annotations.dataset}: expected a file_name in every entry of 'images', found none")
    if not any(counts):
        raise DataError(
            f"{annotations.dataset}: none of the annotated pictures was found in {below} or its subfolders; expected"
            f" files such as {names[0]}. Download the pictures to this folder, or pass their folder as images=..."
        )
    return folders[counts.index(max(counts))]
