"""Pictures with boxes: unknown objects that were found, dismissed, or taken for a known class."""

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.objects.detections import CORNERS
from oodlit.objects.results import ObjectResults
from oodlit.report.thumbnails import WITHOUT, data_url, jpeg, load_thumbnails, store
from oodlit.results.views.sampled_images import hash_of

__all__ = ["Mark", "draw_boxes", "marks_of", "picture_keys", "save_pictures"]

SIDE = 320
"""Longest side of a stored picture, in pixels; smaller images keep their size."""

COLOURS = {"found": (46, 160, 67), "dismissed": (150, 150, 150), "taken": (217, 72, 15), "false": (36, 89, 168)}
"""Colors of found objects, objects without a hit, objects taken for a known class, and unknown boxes without object."""


@dataclass(frozen=True)
class Mark:
    """A box to draw.

    Args:
        corners: xmin, ymin, xmax, ymax in pixels of the original image.
        state: One of COLOURS.
        label: Text at the upper left corner; empty = none.
    """

    corners: tuple[float, float, float, float]
    state: str
    label: str = ""

    def __post_init__(self) -> None:
        """Check the state."""
        if self.state not in COLOURS:
            raise InvalidArgumentError(f"Mark: expected state to be one of {', '.join(COLOURS)}, got {self.state!r}")


def draw_boxes(image: Image.Image, marks: Sequence[Mark], *, size: tuple[int, int] | None = None) -> Image.Image:
    """Draw boxes on a copy of an image.

    Args:
        image: The image, or a smaller copy of it.
        marks: Boxes in pixels of the original; later ones are drawn above.
        size: Width and height of the original; None = the image is the original.

    Example:
        >>> drawn = draw_boxes(Image.new("RGB", (8, 8)), [Mark((4.0, 4.0, 14.0, 14.0), "found")], size=(16, 16))
        >>> drawn.getpixel((2, 4)), drawn.getpixel((4, 4))
        ((46, 160, 67), (0, 0, 0))
    """
    drawn = image.convert("RGB").copy()
    pen = ImageDraw.Draw(drawn)
    width, height = size or image.size
    factor = drawn.width / max(width, 1), drawn.height / max(height, 1)
    thick = max(1, round(max(drawn.size) / 160))
    for mark in marks:
        x0, y0, x1, y1 = (value * factor[axis % 2] for axis, value in enumerate(mark.corners))
        right, low = min(x1, drawn.width - 1), min(y1, drawn.height - 1)
        left, top = max(0.0, min(x0, right)), max(0.0, min(y0, low))
        pen.rectangle((left, top, right, low), outline=COLOURS[mark.state], width=thick)
        if mark.label:
            font = ImageFont.load_default()
            area = pen.textbbox((left + 2, max(0.0, top - 11)), mark.label, font=font)
            pen.rectangle(area, fill=COLOURS[mark.state])
            pen.text(area[:2], mark.label, fill=(255, 255, 255), font=font, anchor="lt")
    return drawn


def marks_of(results: ObjectResults, detector: str, dataset: str) -> dict[str, list[Mark]]:
    """Return the boxes to draw on images of a split by key: objects with their state, and unknown boxes without object.

    An object taken for a known class is labeled with the class of the box of highest confidence that hits it.
    """
    tau = results.threshold(detector)
    scored = results.scored_boxes(dataset)
    marks: dict[str, list[Mark]] = {key: [] for key in scored.images["key"]}
    if np.isnan(tau):
        return marks
    found = scored.open_set(detector, tau)
    rows = np.flatnonzero(scored.counted)
    order = rows[np.argsort(-scored.confidence[rows], kind="stable")]
    best = {int(scored.best.objects[row]): row for row in order[::-1] if scored.hits[row]}
    keys = scored.images["key"].tolist()
    names = results.class_names
    for number, (corners, image) in enumerate(
        zip(scored.objects.boxes.tolist(), scored.objects.image.tolist(), strict=True)
    ):
        state = "found" if found.found[number] else "dismissed" if found.dismissed[number] else "taken"
        label = ""
        if state == "taken":
            code = int(scored.boxes["prediction"].iloc[best[number]])
            label = names[code] if 0 <= code < len(names) else "known"
        marks[keys[image]].append(Mark(tuple(corners), state, label))
    corners = scored.boxes[CORNERS].to_numpy(dtype=np.float64)
    for row in rows[found.is_unknown & ~found.hits].tolist():
        marks[keys[scored.image[row]]].append(Mark(tuple(corners[row].tolist()), "false"))
    return marks


def picture_keys(results: ObjectResults, *, per_split: int = 6) -> list[str]:
    """Keys of the images on the page: some images with objects of every split, selected by a hash of the key."""
    keys = []
    for name in results.splits:
        rows = results.images[(results.images["dataset"] == name) & (results.images["objects"] > 0)]
        keys += sorted(rows["key"], key=hash_of)[:per_split]
    return keys


def save_pictures(
    results: ObjectResults,
    folder: Path,
    read_images: Callable[[list[str]], Mapping[str, Image.Image]],
    *,
    per_split: int = 6,
) -> None:
    """Write small copies of the images that the page shows to `folder/thumbnails`, without boxes.

    Args:
        results: A run.
        folder: Folder of the results, such as that of `add` in `ObjectResults.save`.
        read_images: Returns decoded images by key.
        per_split: Maximum number of images per split.
    """
    store(folder, read_images(picture_keys(results, per_split=per_split)), SIDE)


def drawn_pictures(results: ObjectResults, detector: str, folder: Path | None, keys: Iterable[str]) -> dict[str, str]:
    """`data:` URLs of the stored pictures with the boxes of a detector, by key."""
    stored = load_thumbnails(folder, keys)
    rows = results.images[["key", "width", "height"]].itertuples(index=False, name=None)
    sizes = {key: (int(width), int(height)) for key, width, height in rows}
    urls = {}
    marks = {name: marks_of(results, detector, name) for name in {key.partition("/")[0] for key in stored}}
    without = WITHOUT.format(f"{folder}/thumbnails")
    for key, url in stored.items():
        picture = _stored_picture(base64.b64decode(url.partition(",")[2]), key, without)
        times = SIDE // max(picture.size)
        if times > 1:  # room for lines and labels
            picture = picture.resize((times * picture.width, times * picture.height), Image.Resampling.BICUBIC)
        drawn = draw_boxes(picture, marks[key.partition("/")[0]][key], size=sizes[key] if sizes[key][0] else None)
        urls[key] = data_url(jpeg(drawn), "jpeg")
    return urls


def _stored_picture(data: bytes, key: str, without: str) -> Image.Image:
    """Decode a stored picture, which may come from elsewhere.

    Raises:
        DataError: It is broken, of another format, or larger than those that `save_pictures` writes.
    """
    try:
        picture: Image.Image = Image.open(io.BytesIO(data), formats=["PNG", "JPEG"])
        if max(picture.size) <= SIDE:  # before any pixel is decoded
            picture.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"thumbnail of {key!r} is not readable ({error}); {without}") from error
    if max(picture.size) > SIDE:
        size = f"{picture.width} x {picture.height}"
        raise DataError(f"thumbnail of {key!r}: expected at most {SIDE} pixels per side, got {size}; {without}")
    return picture
