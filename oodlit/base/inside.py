"""Read files that a manifest names without leaving its folder."""

from pathlib import Path

from oodlit.base.errors import DataError


def file_inside(folder: Path, name: str) -> Path:
    """The path of a file in `folder`.

    Manifests may come from elsewhere: a name with folders in it, or a link, could make oodlit read, embed or delete any
    file of the user.

    Args:
        folder: A folder; links in the path to it are followed.
        name: Name of the file, without folders.

    Raises:
        DataError: The name is not a plain file name, or the file is a link out of the folder.

    Example:
        >>> file_inside(Path("cache"), "train-0000.safetensors").as_posix()
        'cache/train-0000.safetensors'
        >>> file_inside(Path("cache"), "../secret")
        Traceback (most recent call last):
        oodlit.base.errors.DataError: cache: expected file names without folders in its index, got '../secret'
    """
    if name in ("", ".", "..") or any(character in name for character in "/\\:\0"):
        raise DataError(f"{folder}: expected file names without folders in its index, got {name[:100]!r}")
    path = folder / name
    if path.is_symlink() and path.resolve().parent != folder.resolve():
        raise DataError(f"{path} is a link to {path.resolve()} outside the folder; replace the link with the file")
    return path
