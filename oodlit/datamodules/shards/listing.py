"""Assign labels and groups to files by folder, by a list, or by a rule."""

import csv
import io
import os.path
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from oodlit.base.errors import DataError
from oodlit.base.roles import KNOWN_CLASSES, Role
from oodlit.base.text.warn import warn
from oodlit.datamodules.keys import printable, repeated
from oodlit.datamodules.shards.archives import Files, open_files
from oodlit.datamodules.shards.members import IMAGE_FIELDS
from oodlit.datamodules.shards.writer import Entry

_ARCHIVE = re.compile(r"(?i)(.*)\.(zip|tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz))")
_DIGITS = 9  # digits of the largest index in a shard


@dataclass(frozen=True)
class Assignment:
    """Label and group of a file (-1 = none), and its path in the set (None = its path in the source)."""

    label: int = -1
    group: int = -1
    path: str | None = None


@dataclass(frozen=True)
class Listing:
    """Entries to be packed, in order; can be iterated repeatedly.

    Args:
        files: The files of the source.
        assignments: Assignments by path in the source. Other files are left out.
        class_names: Names by index, of labels or of groups by the role of the set.
        label_names: Names of the labels of a SHIFT set by index.
        file_list: Name of the published list that chose the files; "" = none.
    """

    files: Files
    assignments: dict[str, Assignment]
    class_names: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    file_list: str = ""

    def __len__(self) -> int:
        """Number of entries."""
        return len(self.assignments)

    def __iter__(self) -> Iterator[Entry]:
        """The entries in the order of the files."""
        for file in self.files:
            found = self.assignments.get(file.path)
            if found is not None:
                yield Entry(found.path or file.path, file.read, found.label, found.group, file.in_order)


def is_image(path: str) -> bool:
    """Whether a file has the extension of an image.

    Example:
        >>> is_image("a/b.JPEG"), is_image("README")
        (True, False)
    """
    return PurePosixPath(path).suffix[1:].lower() in IMAGE_FIELDS


def map_files(
    source: str | Path | Files, rule: Callable[[str], Assignment | None], *, class_names: Sequence[str] = ()
) -> Listing:
    """List files by a rule, which returns the assignment for a path, or None to leave the file out.

    Use it for benchmarks with their own layout.

    Raises:
        DataError: The source cannot be read, a path occurs twice, or the rule leaves out all files.
    """
    files = open_files(source) if isinstance(source, str | Path) else source
    assignments: dict[str, Assignment] = {}
    for path in files.paths:
        if path in assignments:
            raise DataError(f"{path!r} occurs twice in the archive; remove one of the two files")
        found = rule(path)
        if found is not None:
            assignments[path] = found
    if not assignments:
        raise _no_image(files, source)
    return Listing(files, assignments, tuple(class_names))


def _no_image(files: Files, source: object) -> DataError:
    some = f" (first: {', '.join(map(repr, list(files.paths)[:3]))})" if files.paths else ""
    where = f"{source}: " if isinstance(source, str | Path) else ""
    return DataError(
        f"{where}found no image of the data set among {len(files.paths)} files{some}; check the path and the layout"
    )


def class_listing(
    source: str | Path | Files,
    role: Role,
    *,
    class_names: Sequence[str] | None = None,
    by_folder: bool = True,
    names_decide: bool = False,
) -> Listing:
    """List all images of a source; the folder of an image is its class.

    The class is the path of the folder below the deepest folder that all images share. Its index is the position among
    `class_names`, by default the sorted names; names that are the numbers 0, 1, ..., n - 1 are their own index.
    It is the label for TRAIN, ID and SHIFT sets, and the group for OOD and UNIT_TEST sets; SHIFT sets have no groups.
    Files without an image extension are left out with one warning.

    Args:
        source: A source that `open_files` accepts, or its result.
        role: Role of the set.
        class_names: All classes in the order of the classifier; required if the source is missing some of them.
        by_folder: If False, the set has no classes, regardless of folders.
        names_decide: Whether labels will be mapped by name later, so that names may be numbers that do not count from
            0.

    Raises:
        DataError: There is no image, a folder is not in `class_names`, images are beside the folders, or labels are
            required and there is only one folder.
    """
    files = open_files(source) if isinstance(source, str | Path) else source
    images = [path for path in files.paths if is_image(path)]
    others = [path for path in files.paths if not is_image(path)]
    if not images:
        raise _no_image(files, source)
    _check_unpacked(others, images)
    if others:
        warn(f"{len(others)} files without an image extension (first: {others[0]!r}) are left out")
    folders = {path: path.rpartition("/")[0] or "." for path in images}
    classes = _class_names(set(folders.values())) if by_folder else {}
    found, labelled = sorted(classes.values()), role in KNOWN_CLASSES
    if labelled and found == ["."]:
        raise DataError(
            f"all images are in one folder, {next(iter(classes))!r}, but data sets of role {role} require class"
            " folders; pass the folder that contains the class folders"
        )
    if not by_folder or found == ["."]:
        return map_files(files, dict.fromkeys(images, Assignment()).get)
    _check_beside(folders, classes)
    if class_names is None:
        _check_spelling(found)
    names = list(class_names) if class_names is not None else _index_order(found, names_decide)
    if unknown := sorted(set(found) - set(names)):
        raise DataError(
            f"{len(unknown)} folders (first: {unknown[0]!r}) have names that are not among the {len(names)} class"
            " names; rename or remove these folders, or add their names to class_names"
        )
    # one assignment per class saves memory for millions of images
    index = {name: Assignment(label=i) if labelled else Assignment(group=i) for i, name in enumerate(names)}
    listing = map_files(files, {path: index[classes[folder]] for path, folder in folders.items()}.get)
    # class names of a SHIFT set name its groups, but folders are labels there
    if role is Role.SHIFT:
        return replace(listing, label_names=tuple(names))
    return replace(listing, class_names=tuple(names))


def _check_unpacked(others: Sequence[str], images: Sequence[str]) -> None:
    """Refuse archives among images, unless they are unpacked next to them: their images would be ignored."""
    folders = {parent.as_posix() for path in images for parent in PurePosixPath(path).parents}
    for path in others:
        archive = _ARCHIVE.fullmatch(path)
        if archive and archive[1] not in folders:
            raise DataError(
                f"the images in archive {path!r} would be ignored; unpack it to a folder of the same name, or remove it"
                " if its images are already in the source"
            )


def _check_beside(folders: Mapping[str, str], classes: Mapping[str, str]) -> None:
    """Refuse images beside the class folders: they would count as another class and shift the labels of all classes."""
    if beside := [path for path, folder in folders.items() if classes[folder] == "."]:
        others = ", ".join(map(repr, sorted(set(classes.values()) - {"."})[:3]))
        raise DataError(
            f"expected every image to be in a class folder, but {len(beside)} images are beside the class folders"
            f" {others} (first image: {beside[0]!r}); move these images, or ignore folders with flat=True"
        )


def _class_names(folders: set[str]) -> dict[str, str]:
    """Printable class name by folder: the path below the deepest folder that all share."""
    shared = PurePosixPath(os.path.commonpath(folders) if folders else ".")
    names = {folder: printable(PurePosixPath(folder).relative_to(shared).as_posix()) for folder in folders}
    if twice := repeated(names.values()):
        raise DataError(f"folders {[f for f in names if names[f] == twice[0]]} have the same class name; rename one")
    return names


def _check_spelling(names: Sequence[str]) -> None:
    """Refuse folders that are identical on Windows or macOS: an archive may contain a class in both spellings."""
    spelt: dict[str, str] = {}
    for name in names:
        other = spelt.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name:
            raise DataError(
                f"class folders {other!r} and {name!r} differ only in case or Unicode form. If they are the same class,"
                " merge them; otherwise pass class_names that contain both"
            )


def _index_order(names: list[str], names_decide: bool) -> list[str]:
    """Sort class names. If they are the numbers 0, 1, ..., sort them by number."""
    if set(names) == {str(i) for i in range(len(names))} or (names_decide and all(map(str.isdecimal, names))):
        return sorted(names, key=int)
    if all(name.isdecimal() for name in names):
        raise DataError(
            f"the {len(names)} class folders are numbers, but not 0, ..., {len(names) - 1} (the first is"
            f" {names[0]!r}), so the order of the classes is unclear; pass class_names in the order of the classifier"
        )
    return names


def listed_listing(list_file: str | Path, source: str | Path | Files | None = None) -> Listing:
    """List the images named in a file.

    A `.csv` has a header with the column `path`, and optionally `label` (an index) and `group` (an index or a name).
    Any other file has one path per line, optionally followed by an index as label.

    Args:
        list_file: The list, in UTF-8.
        source: Folder or archive of the paths. None (default) = the folder of the list.

    Raises:
        DataError: A path is listed twice or does not exist, or a value is not an index.
    """
    list_file = Path(list_file)
    source = list_file.parent if source is None else source
    files = open_files(source) if isinstance(source, str | Path) else source
    known = set(files.paths)
    rows = _csv_rows(list_file) if list_file.suffix.lower() == ".csv" else _plain_rows(list_file, known)
    groups = sorted({group for _, _, _, group in rows if not _is_index(group)})
    if groups and any(_is_index(group) and group not in ("", "-1") for _, _, _, group in rows):
        raise DataError(
            f"{list_file}: groups must be either all names or all numbers, got both; the first name is {groups[0]!r}"
        )
    assignments: dict[str, Assignment] = {}
    for line, path, label, group in rows:
        where = f"{list_file}, line {line}: {path!r}"
        if path in assignments:
            raise DataError(f"{where} is listed twice")
        if path not in known:
            place = source if isinstance(source, str | Path) else "the source"
            raise DataError(f"{where} is not in {place}; write paths relative to it")
        if not _is_index(label):
            raise DataError(f"{where}: expected a class index as label, or -1 for none; got {label!r}")
        number = groups.index(group) if groups and not _is_index(group) else int(group or -1)
        assignments[path] = Assignment(int(label or -1), number)
    return map_files(files, assignments.get, class_names=groups)


def read_text(path: str | Path) -> str:
    """Read a text file without its byte order mark.

    Raises:
        DataError: It is not UTF-8.
    """
    try:
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error


def _is_index(text: str) -> bool:
    return text in ("", "-1") or (text.isascii() and text.isdigit() and len(text) <= _DIGITS)


def _csv_rows(path: Path) -> list[tuple[int, str, str, str]]:
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    if "path" not in (reader.fieldnames or ()):
        got = f"the columns {', '.join(reader.fieldnames)}" if reader.fieldnames else "an empty file"
        raise DataError(f"{path}: expected a column 'path', got {got}; add a header line with 'path'")
    rows = []
    try:
        for row in reader:
            if None in row or None in row.values():
                raise DataError(f"{path}, line {reader.line_num}: expected as many columns as in the header")
            label, group = (row.get("label") or "").strip(), (row.get("group") or "").strip()
            rows.append((reader.line_num, row["path"].removeprefix("./"), label, group))
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: cannot parse the line ({error}); is a quotation mark missing?"
        ) from error
    return rows


def _plain_rows(path: Path, known: set[str]) -> list[tuple[int, str, str, str]]:
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text = line.strip().removeprefix("./")
        if not text:
            continue
        name, _, label = text.rpartition(" ") if text not in known else (text, "", "")
        rows.append((number, *((name.strip(), label) if name and _is_index(label) else (text, "")), ""))
    return rows
