"""Thumbnails from elsewhere: a page embeds only small PNG and JPEG files in its folder."""

import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from oodlit.errors import DataError
from oodlit.report.box_pictures import drawn_pictures
from oodlit.report.thumbnails import MAX_BYTES, clear_thumbnails, load_thumbnails, store
from tests.objects.test_results import example


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    store(tmp_path / "run", {"far/a": Image.fromarray(noise), "far/b": Image.new("RGB", (8, 8))}, 128)
    return tmp_path / "run"


def file_of(folder: Path, key: str) -> Path:
    return folder / "thumbnails" / json.loads((folder / "thumbnails" / "index.json").read_text())[key]


def test_both_kinds_are_embedded(folder: Path) -> None:
    found = load_thumbnails(folder, ["far/a", "far/b", "far/c"])
    assert [found[key].partition(";")[0] for key in ("far/a", "far/b")] == ["data:image/jpeg", "data:image/png"]
    assert "far/c" not in found


@pytest.mark.parametrize("content", [b"secret", b"", b"%!PS-Adobe-3.0 EPSF-3.0", b"GIF89a", b"<svg onload='x'/>"])
def test_other_content_is_refused(folder: Path, content: bytes) -> None:
    file_of(folder, "far/a").write_bytes(content)
    with pytest.raises(DataError, match="expected a PNG or JPEG"):
        load_thumbnails(folder, ["far/a"])
    assert load_thumbnails(folder, ["far/b"])


def test_large_files_are_refused(folder: Path) -> None:
    file = file_of(folder, "far/a")
    file.write_bytes(file.read_bytes() + bytes(MAX_BYTES))
    with pytest.raises(DataError, match=f"of up to {MAX_BYTES:,} bytes"):
        load_thumbnails(folder, ["far/a"])


def test_links_out_of_the_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    Image.new("RGB", (4, 4)).save(secret)
    file = file_of(folder, "far/a")
    file.unlink()
    file.symlink_to(secret)
    with pytest.raises(DataError, match="outside the folder"):
        load_thumbnails(folder, ["far/a"])
    with pytest.raises(DataError, match="outside the folder"):
        clear_thumbnails(folder)
    assert secret.is_file()


def test_a_linked_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "thumbnails").rename(tmp_path / "moved")
    (folder / "thumbnails").symlink_to(tmp_path / "moved", target_is_directory=True)
    before = sorted((tmp_path / "moved").iterdir())
    with pytest.raises(DataError, match="outside the folder"):
        load_thumbnails(folder, ["far/a"])
    with pytest.raises(DataError, match="outside the folder"):
        clear_thumbnails(folder)
    assert sorted((tmp_path / "moved").iterdir()) == before


@pytest.mark.parametrize("name", ["../secret.png", "/etc/hostname", "sub/x.png"])
def test_names_are_plain(folder: Path, name: str) -> None:
    (folder / "secret.png").write_bytes(b"\x89PNG\r\n")
    (folder / "thumbnails" / "index.json").write_text(json.dumps({"far/a": name}))
    with pytest.raises(DataError, match="file names without folders"):
        load_thumbnails(folder, ["far/a"])
    with pytest.raises(DataError, match="file names without folders"):
        clear_thumbnails(folder)
    assert (folder / "secret.png").is_file()


@pytest.mark.parametrize("size", [(4000, 10), (10, 4000), (9000, 9000)])
def test_a_stored_picture_of_boxes_is_small(tmp_path: Path, size: tuple[int, int]) -> None:
    """A PNG of one color takes a few KB and would be decoded to hundreds of MB."""
    results = example()
    key = results.images["key"].iloc[0]
    store(tmp_path, {key: Image.new("RGB", (8, 8))}, 128)
    Image.new("RGB", size).save(file_of(tmp_path, key), "PNG")
    with pytest.raises(
        DataError, match=rf"320 pixels per side, got {size[0]} x {size[1]}; delete .*/thumbnails to write"
    ):
        drawn_pictures(results, results.detectors[0], tmp_path, [key])


def png_of_size(side: int) -> bytes:
    """A PNG whose header promises more pixels than it has."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    data = buffer.getvalue()
    header = b"IHDR" + struct.pack(">II", side, side) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


@pytest.mark.parametrize("side", [12_000, 60_000])
def test_a_stored_picture_that_promises_too_much_is_refused(tmp_path: Path, side: int) -> None:
    """Pillow warns about the first one, and raises its own error for the second one."""
    results = example()
    key = results.images["key"].iloc[0]
    store(tmp_path, {key: Image.new("RGB", (8, 8))}, 128)
    file_of(tmp_path, key).write_bytes(png_of_size(side))
    with pytest.raises(DataError, match=f"thumbnail of {key!r} is not readable"):
        drawn_pictures(results, results.detectors[0], tmp_path, [key])


def test_a_broken_stored_picture_is_named(tmp_path: Path) -> None:
    results = example()
    key = results.images["key"].iloc[0]
    store(tmp_path, {key: Image.effect_noise((200, 200), 90)}, 128)
    file = file_of(tmp_path, key)
    whole = file.read_bytes()
    for data in (whole[:100], whole[: len(whole) // 2], b"\xff\xd8\xff" + b"%!PS"):
        file.write_bytes(data)
        with pytest.raises(DataError, match=f"thumbnail of {key!r} is not readable"):
            drawn_pictures(results, results.detectors[0], tmp_path, [key])
