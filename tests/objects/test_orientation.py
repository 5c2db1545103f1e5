"""Pictures with an EXIF orientation: boxes stay on their objects, or the run says that it cannot know."""

import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from oodlit.datamodules.decode import decode_image
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.objects import CocoSet, ObjectBenchmark
from oodlit.objects.files.orientation import turned

FORMATS = ("PNG", "TIFF", "WEBP", "JPEG")
PIXELS = np.random.default_rng(0).integers(0, 256, (18, 24, 3), dtype=np.uint8)


def file(turn: int, kind: str = "PNG", pixels: np.ndarray = PIXELS) -> bytes:
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = turn
    options = {"lossless": True} if kind == "WEBP" else {}
    Image.fromarray(pixels).save(buffer, kind, exif=exif, **options)
    return buffer.getvalue()


def read(data: bytes, size: tuple[int, int], orientation=None) -> np.ndarray:
    image = turned(data, size, orientation)
    return np.asarray(decode_image(image) if isinstance(image, bytes) else image)


def plain(kind: str) -> Image.Image:
    return Image.open(io.BytesIO(file(1, kind))).convert("RGB")


def displayed(turn: int, kind: str) -> np.ndarray:
    image = plain(kind)
    image.getexif()[ExifTags.Base.Orientation] = turn
    return np.asarray(ImageOps.exif_transpose(image))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("turn", range(1, 9))
def test_pictures_are_as_stored_or_as_displayed(turn: int, kind: str) -> None:
    data = file(turn, kind)
    assert (read(data, (24, 18), "stored") == np.asarray(plain(kind))).all()
    expected = displayed(turn, kind)
    assert (read(data, expected.shape[1::-1], "displayed") == expected).all()


@pytest.mark.parametrize("kind", FORMATS)
def test_width_and_height_decide(kind: str) -> None:
    for turn in (5, 6, 7, 8):
        assert (read(file(turn, kind), (24, 18)) == np.asarray(plain(kind))).all()
        assert (read(file(turn, kind), (18, 24)) == displayed(turn, kind)).all()
    for turn in (2, 3, 4):
        with pytest.raises(DataError, match=rf"EXIF orientation {turn} .* orientation='stored'"):
            turned(file(turn, kind), (24, 18), None)
    with pytest.raises(DataError, match="EXIF orientation 6"):
        turned(file(6, kind, PIXELS[:, :18]), (18, 18), None)
    for turn in (0, 1, 9):  # as stored, or of no meaning
        assert turned(file(turn, kind), (24, 18), None) == file(turn, kind)


def test_unreadable_orientations_are_none() -> None:
    data = bytearray(file(3, "JPEG"))
    data[data.index(b"Exif\0\0") + 6] = 0
    assert turned(bytes(data), (24, 18), None) == bytes(data)
    for kind, value in ((2, b"x"), (7, b"ab")):  # text and bytes in place of a number
        buffer, entry = io.BytesIO(), struct.pack("<HHHI4s", 1, ExifTags.Base.Orientation, kind, 2, value)
        exif = b"Exif\0\0II*\0\x08\0\0\0" + entry + bytes(4)
        Image.fromarray(PIXELS).save(buffer, "JPEG", exif=exif)
        assert turned(buffer.getvalue(), (24, 18), None) == buffer.getvalue()
    with pytest.raises(DataError, match="undecodable"):
        turned(b"Exif, but no picture", (24, 18), None)


def benchmark(folder: Path, turns: list[int], size: tuple[int, int], **options) -> ObjectBenchmark:
    images = [{"id": n, "file_name": f"{n}.png", "width": size[0], "height": size[1]} for n in range(len(turns))]
    objects = [{"id": n, "image_id": n, "category_id": 1, "bbox": [0, 0, 4, 4]} for n in range(len(turns))]
    content = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "cat"}]}
    (folder / "known.json").write_text(json.dumps(content))
    for n, turn in enumerate(turns):
        (folder / f"{n}.png").write_bytes(file(turn))
    return ObjectBenchmark(CocoSet("known", folder / "known.json"), [], **options)


def pictures(data: ObjectBenchmark) -> list[np.ndarray]:
    batches = list(data._loader(data.stream("known"), 0, 1))
    found = [image for batch in batches for image in batch["image"]]
    return [(image * 255).round().byte().permute(1, 2, 0).numpy() for image in found]


def test_a_benchmark_reads_pictures_as_its_boxes_were_drawn(tmp_path: Path) -> None:
    (plain_one, turned_one) = pictures(benchmark(tmp_path, [1, 3], (24, 18), orientation="displayed"))
    assert (plain_one == PIXELS).all()
    assert (turned_one == PIXELS[::-1, ::-1]).all()
    for shown in pictures(benchmark(tmp_path, [1, 3], (24, 18), orientation="stored")):
        assert (shown == PIXELS).all()
    (shown,) = pictures(benchmark(tmp_path, [8], (18, 24)))
    assert (shown == displayed(8, "PNG")).all()
    stored = benchmark(tmp_path, [8], (18, 24)).read_images(["known/0"])["known/0"]
    assert (np.asarray(stored) == shown).all()  # the page shows what the network has seen


def test_undecided_pictures_are_an_error_or_are_listed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data set 'known': .*1\.png, key '1': EXIF orientation 3"):
        pictures(benchmark(tmp_path, [1, 3], (24, 18)))
    assert len(pictures(benchmark(tmp_path, [1, 3], (24, 18), on_error="skip"))) == 1
    with pytest.raises((InvalidArgumentError, TypeError), match=r"'stored'.* 'displayed'"):
        benchmark(tmp_path, [1], (24, 18), orientation="upright")
