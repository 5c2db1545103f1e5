"""Annotated objects, and a strict reader of COCO's JSON."""

import math
import os
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import torch
from jaxtyping import Int
from torch import Tensor

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.json_files import loads
from oodlit.base.text.singular import singular
from oodlit.objects.files.box_bounds import check_relative
from oodlit.objects.files.file_problems import Problems
from oodlit.objects.files.identifiers import Identifiers, id_text
from oodlit.results.names import some

_Entry = Mapping[str, Any]
IGNORED = ("ignore", "difficult")
"""Entries that mark annotations which evaluations are to leave out."""
_IGNORED = {"ignore", "ignored", "isignored", "difficult", "isdifficult"}
_CROWD = {"iscrowd", "crowd", "isgroupof", "groupof"}
"""Names of marks in lower case without underscores, as COCO, Pascal VOC, Open Images and CVAT write them."""
_NESTED = ("attributes", "extra")
"""Mappings with further marks of an annotation."""
TOLERANCE = 1.0
"""Pixels that a box may extend beyond its image, due to the rounding of relative coordinates."""


@dataclass(frozen=True, eq=False)
class Annotations:
    """Objects of some images; row i of every field of objects belongs to the same object.

    Images without objects are included.

    Args:
        dataset: Name of the data set.
        keys: `dataset/id` of all images, with the id in the file.
        sizes: Width and height of all images in pixels, int64, shape (images, 2).
        boxes: xmin, ymin, xmax, ymax in pixels, float64, shape (objects, 4).
        image: Position in `keys` of the image of every object, int64, shape (objects,).
        labels: Position in `class_names` of the class of every object, int64, shape (objects,).
        is_crowd: Whether a box contains a group of objects, boolean, shape (objects,).
        ids: Id of every object in the file, as text.
        class_names: The classes; ids of the file are not indices.
        category_ids: Id of every class in the file, as text; "" for a class that is missing in the file.
        file_names: File name of every image; empty if the file has none.
        notes: Descriptions of repairs.
    """

    dataset: str
    keys: tuple[str, ...]
    sizes: Tensor
    boxes: Tensor
    image: Tensor
    labels: Tensor
    is_crowd: Tensor
    ids: tuple[str, ...]
    class_names: tuple[str, ...]
    category_ids: tuple[str, ...]
    file_names: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        """Number of objects."""
        return len(self.boxes)

    @property
    def num_images(self) -> int:
        """Number of images, including those without objects."""
        return len(self.keys)

    @property
    def counts(self) -> Int[Tensor, " images"]:
        """Number of objects of every image."""
        return torch.bincount(self.image, minlength=len(self.keys))

    @cached_property
    def image_ids(self) -> Identifiers:
        """Map ids of images to positions in `keys`."""
        return Identifiers(key.removeprefix(f"{self.dataset}/") for key in self.keys)

    @cached_property
    def categories(self) -> Identifiers:
        """Map ids of categories to positions in `class_names`."""
        return Identifiers(self.category_ids)

    def classes_like(self, class_names: Sequence[str]) -> list[str]:
        """Return classes with objects whose name equals one of `class_names`, ignoring case and spaces.

        A set of unknown objects should have none.

        Example:
            >>> coco = {"images": [{"id": 1, "width": 9, "height": 9}], "categories": [{"id": 3, "name": "Cat"}],
            ...     "annotations": [{"id": 0, "image_id": 1, "category_id": 3, "bbox": [0, 0, 4, 4]}]}
            >>> parse_annotations(coco, "near", Path("near.json")).classes_like(["dog", "cat"])
            ['Cat']
        """
        wanted = {_plain(name) for name in class_names}
        present = {self.class_names[label] for label in self.labels.tolist()}
        return [name for name in self.class_names if name in present and _plain(name) in wanted]

    def __repr__(self) -> str:
        """Counts, never values."""
        return singular(
            f"Annotations({self.dataset!r}, {len(self)} objects, {self.num_images} images,"
            f" {len(self.class_names)} classes)"
        )


def read_annotations(
    path: str | os.PathLike[str], dataset: str, *, class_names: Sequence[str] | None = None, repair: bool = False
) -> Annotations:
    """Read the objects of a COCO file (`images`, `annotations`, `categories`).

    Ids can be integers or text, start at 0 and have gaps. `area`, masks and other entries are ignored.

    Args:
        path: The file.
        dataset: Name of the data set, the first part of every key.
        class_names: The classes in the order of the logits; classes of the file are found by name. None = those of the
            file, in its order.
        repair: Whether to crop boxes at the border of their image, and to drop those without area or marked `ignore` or
            `difficult`, with a note in `notes`. False (default) = they are an error.

    Returns:
        All images and objects.

    Raises:
        DataError: The file is not readable, or incomplete or contradictory: ids that occur twice, objects of unknown
            images or categories, boxes outside of their image, relative to it, or without area, and annotations marked
            `ignore` or `difficult`. One error reports all kinds of problems, each with its number and the first
            occurrence.
        InvalidArgumentError: A name is not allowed.
    """
    source = Path(path)
    return parse_annotations(read_json(source), dataset, source, class_names=class_names, repair=repair)


def parse_annotations(
    content: Any, dataset: str, path: Path, *, class_names: Sequence[str] | None = None, repair: bool = False
) -> Annotations:
    """Convert the content of a COCO file; see `read_annotations`."""
    if not dataset or "/" in dataset:
        raise InvalidArgumentError(f"expected a nonempty name of a data set, without slashes, got {dataset!r}")
    parts = _parts(content, path)
    problems = Problems(path)
    images = _images(parts["images"], problems)
    categories = _categories(parts["categories"], problems)
    problems.check()
    if class_names is None:
        names, ids = list(categories.values()), list(categories)
    else:
        names = list(class_names)
        if twice := [name for name in names if names.count(name) > 1]:
            raise InvalidArgumentError(f"class_names: expected every name once, got {twice[0]!r} twice")
        by_name = {name: identity for identity, name in categories.items()}
        ids = [by_name.get(name, "") for name in names]
    found = _Objects(images, categories, names, problems, repair=repair)
    for position, entry in enumerate(parts["annotations"]):
        found.add(entry, f"annotations[{position}]")
    columns: list[tuple[Any, ...]] = list(zip(*found.rows, strict=True)) or [()] * 5
    boxes, image, labels, is_crowd, object_ids = columns
    sizes = torch.tensor([size for size, _ in images.values()], dtype=torch.int64).reshape(-1, 2)
    corners, rows = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4), torch.tensor(image, dtype=torch.int64)
    check_relative(corners.numpy(), sizes[rows].numpy(), problems)
    problems.check()
    return Annotations(
        dataset=dataset,
        keys=tuple(f"{dataset}/{identity}" for identity in images),
        sizes=sizes,
        boxes=corners,
        image=rows,
        labels=torch.tensor(labels, dtype=torch.int64),
        is_crowd=torch.tensor(is_crowd, dtype=torch.bool),
        ids=tuple(object_ids),
        class_names=tuple(names),
        category_ids=tuple(ids),
        file_names=tuple(name for _, name in images.values()),
        notes=tuple(f"{path.name}: {count} {what}" for what, count in found.repaired.items()),
    )


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: The file is missing, or not valid JSON.
    """
    try:
        return loads(path.read_text(encoding="utf-8-sig"))  # some programs write a byte order mark
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error})") from error


def _parts(content: Any, path: Path) -> dict[str, list[_Entry]]:
    names = ("images", "annotations", "categories")
    if not isinstance(content, dict):
        kind = "a list, as in files of predictions" if isinstance(content, list) else type(content).__name__
        raise DataError(f"{path}: expected annotations in COCO's format, an object with {', '.join(names)}; got {kind}")
    if missing := [name for name in names if not isinstance(content.get(name), list)]:
        raise DataError(
            f"{path}: expected annotations in COCO's format; missing lists: {', '.join(missing)} (found:"
            f" {', '.join(map(str, content)) or 'nothing'})"
        )
    # Entries of other types are reported as those without an id.
    return {name: [entry if isinstance(entry, Mapping) else {} for entry in content[name]] for name in names}


_Images = dict[str, tuple[tuple[int, int], str]]
"""Size and file name by id."""


def _images(entries: Sequence[_Entry], problems: Problems) -> _Images:
    found: _Images = {}
    for position, entry in enumerate(entries):
        identity, where = id_text(entry.get("id")), f"images[{position}]"
        if identity is None:
            problems.add("images without id", f"{where}: {entry.get('id')!r}", "ids are text or integers")
            continue
        if identity in found:
            problems.add("repeated image ids", f"{where}: {identity}")
        width, height = entry.get("width"), entry.get("height")
        if not (_is_length(width) and _is_length(height)):
            example = f"{where}, id {identity}: width {width!r}, height {height!r}"
            problems.add("images without size", example, "expected width and height in whole pixels")
            continue
        found[identity] = (int(width), int(height)), str(entry.get("file_name") or "")
    return found


def _categories(entries: Sequence[_Entry], problems: Problems) -> dict[str, str]:
    """Names by id."""
    found: dict[str, str] = {}
    for position, entry in enumerate(entries):
        identity, name, where = id_text(entry.get("id")), entry.get("name"), f"categories[{position}]"
        if identity is None or not isinstance(name, str) or not name.strip():
            problems.add("items of 'categories' without id or name", f"{where}: id {entry.get('id')!r}, name {name!r}")
            continue
        if identity in found:
            problems.add("repeated category ids", f"{where}: {identity}")
        if name in found.values():
            problems.add("repeated category names", f"{where}: {name}")
        found[identity] = name
    return found


class _Objects:
    """Collects the objects of a file."""

    def __init__(
        self, images: _Images, categories: Mapping[str, str], names: Sequence[str], problems: Problems, *, repair: bool
    ) -> None:
        self.image_ids, self.category_ids = Identifiers(images), Identifiers(categories)
        self.sizes = [size for size, _ in images.values()]
        self.category_names = list(categories.values())
        self.class_of = {name: position for position, name in enumerate(names)}
        self.problems, self.repair = problems, repair
        self.seen: set[str] = set()
        self.rows: list[tuple[list[float], int, int, bool, str]] = []  # box, image, label, is crowd, id
        self.repaired: dict[str, int] = {}

    def add(self, entry: _Entry, where: str) -> None:
        """Add one annotation, or its problem."""
        identity = id_text(entry.get("id"))
        if identity is None:
            self.problems.add("annotations without id", f"{where}: {entry.get('id')!r}", "ids are text or integers")
            return
        where = f"{where}, id {identity}"
        if identity in self.seen:
            self.problems.add("repeated annotation ids", where)
        self.seen.add(identity)
        image = self.image_ids.find(entry.get("image_id"))
        if image is None:
            self.problems.add("annotations of unknown images", f"{where}: image_id {entry.get('image_id')!r}")
            return
        category = self.category_ids.find(entry.get("category_id"))
        if category is None:
            self.problems.add("annotations of unknown categories", f"{where}: category_id {entry.get('category_id')!r}")
            return
        name = self.category_names[category]
        if name not in self.class_of:
            self.problems.add(
                "annotations of classes that are not in class_names",
                f"{where}: {name!r}",
                f"expected {some(list(self.class_of), 8)}; correct class_names (--class_names) or the annotations",
            )
            return
        crowd = list(_marks(entry, _CROWD).values())
        if wrong := [value for value in crowd if value not in (0, 1)]:
            self.problems.add("annotations whose iscrowd is neither 0 nor 1", f"{where}: {wrong[0]!r}")
            return
        box = self._box(entry.get("bbox"), self.sizes[image], where)
        if box is not None and not self._is_ignored(entry, where):
            self.rows.append((box, image, self.class_of[name], any(crowd), identity))

    def _box(self, bbox: Any, size: tuple[int, int], where: str) -> list[float] | None:
        """The corners of a box; None if it has a problem, or was dropped by a repair."""
        if not is_bbox(bbox):
            self.problems.add("annotations without box", f"{where}: bbox {bbox!r}", "expected [x, y, width, height]")
            return None
        x, y, width, height = map(float, bbox)
        box = [x, y, x + width, y + height]
        outside = max(-x, -y, box[2] - size[0], box[3] - size[1])
        if outside > TOLERANCE and not self.repair:
            self.problems.add(
                "boxes beyond the border of the image",
                f"{where}: {bbox} in an image of {size[0]} x {size[1]}",
                "repair=True (--repair) crops the boxes",
            )
            return None
        if outside > TOLERANCE:
            self._note("boxes were cropped at the border of the image")
            box = [min(max(value, 0.0), float(size[axis % 2])) for axis, value in enumerate(box)]
        if not (box[0] < box[2] and box[1] < box[3]):
            if self.repair:
                self._note("boxes without area were dropped")
            else:
                self.problems.add("boxes without area", f"{where}: {bbox}", "repair=True (--repair) drops them")
            return None
        return box

    def _is_ignored(self, entry: _Entry, where: str) -> bool:
        """Whether an annotation is marked as no object; no metric has such a kind."""
        marked = {name: value for name, value in _marks(entry, _IGNORED).items() if value not in (0, "", "0", "false")}
        if marked and self.repair:
            self._note(
                f"annotations marked {' or '.join(IGNORED)} were dropped. Predicted boxes on dropped objects count as"
                " boxes without an object"
            )
        elif marked:
            hint = "repair=True (--repair) drops these annotations; to keep them as objects, remove the marks"
            self.problems.add(f"annotations are marked {' or '.join(IGNORED)}", f"{where}: {marked}", hint)
        return bool(marked)

    def _note(self, what: str) -> None:
        self.repaired[what] = self.repaired.get(what, 0) + 1


def _marks(entry: _Entry, names: Set[str]) -> dict[str, Any]:
    """Entries of an annotation with these names, also of the mappings in it.

    Example:
        >>> _marks({"id": 1, "attributes": {"is_crowd": True}, "isGroupOf": 0}, _CROWD)
        {'isGroupOf': 0, 'attributes.is_crowd': True}
    """
    inner = {name: entry.get(name) for name in _NESTED}
    texts = {f"{name}.{key}": v for name, one in inner.items() if isinstance(one, Mapping) for key, v in one.items()}
    return {
        name: value
        for name, value in {**entry, **texts}.items()
        if value is not None and str(name).rpartition(".")[2].replace("_", "").lower() in names
    }


def is_bbox(value: Any) -> TypeGuard[list[float]]:
    """Whether a value is a list of four finite numbers.

    Example:
        >>> is_bbox([0, 0, 2.5, 3]), is_bbox([0, 0, 1]), is_bbox([0, 0, float("nan"), 1]), is_bbox(None)
        (True, False, False, False)
    """
    return isinstance(value, list) and len(value) == 4 and all(is_number(v) and math.isfinite(v) for v in value)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number in the range of a float; NaN and infinities count.

    Example:
        >>> is_number(3), is_number(float("nan")), is_number(True), is_number("3"), is_number(10**400)
        (True, True, False, False, False)
    """
    return isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    )


def _is_length(value: Any) -> TypeGuard[float]:
    """Whether a value is a number of pixels; pandas saves whole numbers as 64.0."""
    return is_number(value) and 0 < value < 1 << 31 and value == int(value)


def _plain(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum())
