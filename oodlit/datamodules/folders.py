"""Read folders of images directly, without packing them first."""

from collections.abc import Sequence
from pathlib import Path

from oodlit.base.errors import DataError
from oodlit.base.roles import Role
from oodlit.datamodules.shards.listing import Listing, class_listing
from oodlit.datamodules.sources import FileSource
from oodlit.datamodules.stream import Stream


def folder_stream(
    path: str | Path,
    *,
    role: Role,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    flat: bool = False,
) -> Stream:
    """A stream of the images below a folder; the folder of an image is its class.

    Keys, labels and groups are the same as with `oodlit shards build`. Labels follow the sorted names of the folders;
    an `OODDataModule` maps them to the order of the training classes by name, so the folder need not contain all
    classes.

    Args:
        path: The folder.
        role: Role of the images: "train", "id", "ood", "shift" or "unit_test".
        name: Name of the stream; None (default) = that of the folder.
        class_names: Names of the classes in the order of the classifier; None (default) = the folders' names, sorted.
        flat: If True, the images have no classes, regardless of their folders.

    Raises:
        DataError: The folder does not exist or has no images, or the role requires labels and there is only one folder.

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
        what = "is a file; pack archives with `oodlit shards build`" if folder.exists() else "does not exist"
        raise DataError(f"expected a folder of images, but {folder} {what}")
    listing = class_listing(folder, role, class_names=class_names, by_folder=not flat, names_decide=True)
    source = file_source(folder, listing)
    name = name or folder.resolve().name
    return Stream(name, role, source, listing.class_names, label_names=listing.label_names)


def file_source(folder: Path, listing: Listing, *, root: str | Path | None = None) -> FileSource:
    """Create a source of the files in a listing of `folder`; for `root` (default: `folder`) see `FileSource`."""
    found = listing.assignments.values()
    return FileSource(
        [folder / path for path in listing.assignments],
        labels=[assignment.label for assignment in found],
        groups=[assignment.group for assignment in found],
        root=folder if root is None else root,
    )
