"""Every colour mode has one reading; nothing broken gets through."""

import io
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, PngImagePlugin

from oodlit.datamodules import MemorySource, Sample, unit_test_stream
from oodlit.datamodules.decode import FORMATS, decode_image, image_size, max_pixels_of
from oodlit.datamodules.published_sets import verify_set
from oodlit.datamodules.shards import Entry, build_shards, listed_listing, verify_shards
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def gradient(width: int = 23, height: int = 17) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([x * 11, y * 15, (x + y) * 6], axis=2).astype(np.uint8))


def test_rgb_png_is_exact():
    assert np.array_equal(np.asarray(decode_image(encoded(gradient()))), np.asarray(gradient()))


def test_cmyk_zero_is_white():
    image = decode_image(encoded(Image.new("CMYK", (8, 4)), "JPEG", quality=100))
    assert image.mode == "RGB"
    assert np.all(np.asarray(image) == 255)


def test_cmyk_key_is_black():
    assert np.all(np.asarray(decode_image(encoded(Image.new("CMYK", (8, 8), (0, 0, 0, 255)), "JPEG"))) <= 1)


@pytest.mark.parametrize("value", [0, 1, 127, 255])
def test_grey_has_three_equal_channels(value):
    assert decode_image(encoded(Image.new("L", (3, 2), value))).getpixel((0, 0)) == (value,) * 3


def test_one_bit_is_black_and_white():
    image = Image.new("1", (2, 1))
    image.putpixel((1, 0), 1)
    decoded = decode_image(encoded(image))
    assert [decoded.getpixel((x, 0)) for x in (0, 1)] == [(0, 0, 0), (255, 255, 255)]


def test_palette_with_alpha_keeps_its_colours():
    image = gradient().quantize(16)
    data = encoded(image, transparency=bytes(range(0, 256, 16)))
    assert np.array_equal(np.asarray(decode_image(data)), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_dropped_and_the_colour_stays(mode):
    image = Image.new(mode, (2, 2), (200, 100, 50, 0) if mode == "RGBA" else (90, 0))
    assert decode_image(encoded(image)).getpixel((0, 0)) == ((200, 100, 50) if mode == "RGBA" else (90, 90, 90))


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_give_the_high_byte(format):
    values = np.array([[0, 255, 256, 0x8000, 0xFFFF]], np.uint16)
    decoded = np.asarray(decode_image(encoded(Image.fromarray(values), format)))
    assert np.array_equal(decoded[0, :, 0], [0, 0, 1, 128, 255])
    assert np.array_equal(decoded[..., 0], decoded[..., 2])


def test_sixteen_bit_pgm_gives_the_high_byte():
    data = b"P5 2 1 65535\n" + bytes([0x12, 0x34, 0xFF, 0xFF])
    assert np.asarray(decode_image(data))[0, :, 0].tolist() == [0x12, 0xFF]


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_without_a_range_are_refused(dtype):
    with pytest.raises(DataError, match="cannot convert pixel type"):
        decode_image(encoded(Image.fromarray(np.ones((2, 2), dtype)), "TIFF"))


def test_animation_gives_the_first_frame():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(data).getpixel((0, 0)) == (255, 0, 0)


def test_exif_orientation_is_ignored():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.new("RGB", (8, 4)), "JPEG", exif=exif)
    assert decode_image(data).size == (8, 4)


ALSO = ["AVIF"] if "AVIF" in FORMATS else []


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", *ALSO])
def test_the_content_decides_the_format(format):
    data = encoded(gradient(), format)
    assert decode_image(data).size == (23, 17)
    assert image_size(data) == (23, 17, format)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_cut_file_is_an_error_or_has_all_its_pixels(format, share):
    data = encoded(gradient(), format)
    cut = data[: int(share * len(data))]
    try:
        image = decode_image(cut)
    except DataError:
        return
    assert np.array_equal(np.asarray(image), np.asarray(decode_image(data)))


@pytest.mark.parametrize("tolerant", [False, True])
def test_half_a_jpeg_is_an_error_whatever_pillow_was_told(monkeypatch, tolerant):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", tolerant)
    data = encoded(gradient(200, 200), "JPEG")
    with pytest.raises(DataError, match=r"undecodable JPEG image: .*truncated"):
        decode_image(data[: len(data) // 2])
    assert ImageFile.LOAD_TRUNCATED_IMAGES is tolerant


def test_threads_do_not_switch_tolerance_on_for_each_other(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    half = encoded(gradient(300, 300), "JPEG")[:3000]

    def decode(data: bytes) -> bool:
        try:
            decode_image(data)
        except DataError:
            return False
        return True

    whole = encoded(gradient(300, 300), "JPEG")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(decode, [half, whole] * 100))
    assert results == [False, True] * 100
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


@given(st.binary(max_size=60))
def test_noise_is_a_data_error(data):
    with pytest.raises(DataError, match="undecodable"):
        decode_image(data)


def test_empty_file():
    with pytest.raises(DataError, match="empty"):
        decode_image(b"")


def test_formats_that_start_programs_are_refused():
    with pytest.raises(DataError, match="expected one of JPEG"):
        decode_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n")


def test_too_many_pixels():
    with pytest.raises(DataError, match=r"image has 23 x 17 pixels, more than max_pixels=390"):
        decode_image(encoded(gradient()), max_pixels=390)
    assert decode_image(encoded(gradient()), max_pixels=391).size == (23, 17)


def test_reduced_decoding_keeps_both_sides_long_enough():
    data = encoded(gradient(1000, 600), "JPEG")
    assert decode_image(data).size == (1000, 600)
    assert decode_image(data, reduce_to=224).size == (500, 300)
    assert decode_image(encoded(gradient(300, 300), "JPEG"), reduce_to=224).size == (300, 300)
    with pytest.raises(InvalidArgumentError, match="reduce_to to be None or at least 1, got 0"):
        decode_image(data, reduce_to=0)


class TestLimitsOfLibraries:
    """The user's limit applies, regardless of the libraries' own limits."""

    @pytest.fixture(autouse=True)
    def _small_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # as if the image were very large

    @pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
    def test_pixel_limit(self, format: str) -> None:
        file = io.BytesIO()
        gradient().save(file, format)
        assert decode_image(file.getvalue(), max_pixels=391).size == (23, 17)
        assert image_size(file.getvalue(), max_pixels=391)[:2] == (23, 17)
        for read in (decode_image, image_size):
            with pytest.raises(DataError, match="max_pixels=390"):
                read(file.getvalue(), max_pixels=390)
        assert Image.MAX_IMAGE_PIXELS == 100  # as it was

    def test_long_texts_and_profiles_of_a_png(self) -> None:
        text = PngImagePlugin.PngInfo()
        for number in range(3):
            text.add_text(f"story {number}", "x" * 2_000_000, zip=True)
        file = io.BytesIO()
        gradient().save(file, "PNG", pnginfo=text, icc_profile=bytes(3_000_000))
        assert decode_image(file.getvalue()).size == (23, 17)
        assert image_size(file.getvalue()) == (23, 17, "PNG")

    def test_a_tile_larger_than_its_image(self) -> None:
        tags = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 277: 1, 322: 1 << 20, 323: 1 << 20, 324: 8, 325: 64}
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
        data = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(68)
        with pytest.raises(DataError, match="1048576 x 1048576 pixels"):
            decode_image(data)

    def test_build_and_verify_use_the_pixel_limit(self, tmp_path: Path) -> None:
        file = io.BytesIO()
        gradient().save(file, "PNG")
        entries = [Entry("a.png", file.getvalue)]
        for check in ("header", "decode"):
            options: Any = {"name": "x", "role": Role.OOD, "check": check}
            with pytest.raises(DataError, match="max_pixels=390"):
                build_shards(entries, tmp_path / check, max_pixels=390, **options)
            build_shards(entries, tmp_path / check, max_pixels=391, **options)
            assert verify_shards(tmp_path / check, max_pixels=391)[0].ok
            assert verify_set(tmp_path / check, max_pixels=391)[0].ok
            assert not verify_shards(tmp_path / check, max_pixels=390)[0].ok

    def test_a_csv_with_an_open_quotation_mark(self, tmp_path: Path) -> None:
        (tmp_path / "list.csv").write_text('path,label\n"a.png' + "x" * 200_000 + ",1\n")
        with pytest.raises(DataError, match=r"list\.csv, line \d+: cannot parse"):
            listed_listing(tmp_path / "list.csv")

    def test_generated_images_use_the_pixel_limit_of_the_run(self) -> None:
        assert max_pixels_of(partial(decode_image, max_pixels=7)) == 7
        file = io.BytesIO()
        Image.new("RGB", (10_000, 9_000)).save(file, "PNG")
        large = MemorySource([Sample("0", file.getvalue())])
        with pytest.raises(DataError, match="max_pixels=89478485"):
            unit_test_stream(large, count=1)
        allowed = unit_test_stream(large, count=1, decode=partial(decode_image, max_pixels=10**9))
        assert len(allowed) == 17


def test_jpegs_with_hundreds_of_scans_are_refused() -> None:
    file = io.BytesIO()
    gradient().save(file, "JPEG", progressive=True)
    data = file.getvalue()
    assert 5 < data.count(b"\xff\xda") < 20
    assert decode_image(data).size == (23, 17)
    last = data[data.rindex(b"\xff\xda") : -2]
    for more, is_read in ((50, True), (300, False)):
        slow = data[:-2] + last * more + data[-2:]
        if is_read:
            assert image_size(slow) == (23, 17, "JPEG")
            continue
        with pytest.raises(DataError, match=r"image has 31\d scans, more than 100; save it again as a baseline JPEG"):
            image_size(slow)
        with pytest.raises(DataError, match="scans"):
            decode_image(slow)
