"""Folders of images as they are, without packing them first."""

from collections.abc import Sequence
from pathlib import Path

from oodlit.datamodules.shards.listing import Listing, class_listing
from oodlit.datamodules.sources import FileSource
from oodlit.datamodules.stream import Stream
from oodlit.errors import DataError
from oodlit.roles import Role


def folder_stream(
    path: str | Path,
    *,
    role: Role,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    flat: bool = False,
) -> Stream:
    """The images below a folder as a stream; the folder of an image is its class.

    Keys, labels and groups are those that `oodlit shards build` gives. Labels follow the sorted names of the folders;
    an `OODDataModule` brings them to the order of the training classes by these names, so that a folder may lack
    classes.

    Args:
        path: The folder.
        role: What the images are for: "train", "id", "ood", "shift" or "unit_test".
        name: Name of the stream; None (default) = that of the folder.
        class_names: Names of the classes in the order of the classifier; None (default) = the folders' names, sorted.
        flat: The images have no classes, whatever their folders.

    Raises:
        DataError: It is no folder, there is no image, or labels are needed and there is one folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for folder in ("cat", "dog"):
        ...         Path(root, folder).mkdir()
        ...         _ = Path(root, folder, "1.png").write_bytes(b"...")
        ...     stream = folder_stream(root, name="mine", role=Role.ID)
        ...     stream.class_names, [(sample.key, sample.label) for sample in stream.source.read(0, 2)]
        (('cat', 'dog'), [('cat/1%2Epng', 0), ('dog/1%2Epng', 1)])
    """
    folder, role = Path(path), Role(role)
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder of images; pack archives with `oodlit shards build`")
    listing = class_listing(folder, role, class_names=class_names, by_folder=not flat, names_decide=True)
    source = file_source(folder, listing)
    label_names = listing.label_names if role is Role.SHIFT else ()
    return Stream(name or folder.resolve().name, role, source, listing.class_names, label_names=label_names)


def file_source(folder: Path, listing: Listing, *, root: str | Path | None = None) -> FileSource:
    """The files of a listing of a folder; `root` as in `FileSource`, by default the folder."""
    found = listing.assignments.values()
    return FileSource(
        [folder / path for path in listing.assignments],
        labels=[assignment.label for assignment in found],
        groups=[assignment.group for assignment in found],
        root=folder if root is None else root,
    )
