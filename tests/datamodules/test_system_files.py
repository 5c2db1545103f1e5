"""What file servers and operating systems leave beside pictures is no picture, no class and no shard."""

import json
from pathlib import Path

import pytest

from oodlit.datamodules import folder_stream
from oodlit.datamodules.keys import escape_key, is_hidden, unescape_key
from oodlit.datamodules.shards import ShardSource
from oodlit.datamodules.shards.class_files import class_files
from oodlit.datamodules.shards.listing import class_listing
from oodlit.errors import DataError
from oodlit.objects import CocoSet, ObjectBenchmark
from oodlit.roles import Role
from tests.datamodules.image_sources import KINDS, tiny_image, write_source

NAMES = ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]
SYSTEM = [
    "@eaDir/0.png/SYNOPHOTO_THUMB_M.jpg",
    "cat/@eaDir/0.png/SYNOPHOTO_THUMB_XL.jpg",
    "cat/@eaDir/1.png",
    "dog/.thumbnails/0.png",
    ".@__thumb/0.png",
    "@__thumb/0.png",
    "__MACOSX/cat/0.png",
    "cat/._0.png",
    "dog/Thumbs.db",
    "dog/desktop.ini",
    "#recycle/cat/2.png",
    "@Recycle/2.png",
    "$RECYCLE.BIN/S-1-5-21/$R1.png",
    "System Volume Information/2.png",
    "lost+found/2.png",
    ".ipynb_checkpoints/0-checkpoint.png",
]


def files() -> dict[str, bytes]:
    return {name: tiny_image(number) for number, name in enumerate([*NAMES, *SYSTEM])}


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_no_classes_of_folders_and_archives(tmp_path: Path, kind: str) -> None:
    listing = class_listing(write_source(kind, tmp_path, files()), Role.OOD)
    assert sorted(entry.path for entry in listing) == NAMES
    assert listing.class_names == ("cat", "dog")


@pytest.mark.filterwarnings("error")
def test_extensions_of_images(tmp_path: Path) -> None:
    """Every format that is decoded, by each of its usual extensions."""
    names = [f"cat/0.{kind}" for kind in ("jpg", "JPEG", "jpe", "jfif", "png", "gif", "webp", "avif", "jp2", "tif")]
    source = write_source("folder", tmp_path, dict.fromkeys(names, tiny_image(0)))
    assert sorted(entry.path for entry in class_listing(source, Role.OOD)) == sorted(names)


def test_they_are_no_classes_of_streams(tmp_path: Path) -> None:
    stream = folder_stream(write_source("folder", tmp_path, files()), role=Role.ID)
    assert stream.class_names == ("cat", "dog")
    keys = [sample.key for sample in stream.source.read(0, len(stream))]
    assert [unescape_key(key) for key in keys] == NAMES


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_classes_are_found_beside_them(tmp_path: Path, kind: str) -> None:
    inside = {f"images/{name}": data for name, data in files().items()} | {"@eaDir/images/x.jpg": tiny_image(0)}
    found = class_files(write_source(kind, tmp_path, inside), {"cat", "dog"}.__contains__)
    assert {name: sorted(images()) for name, images in found.items()} == {
        "cat": ["0.png", "1.png"],
        "dog": ["0.png", "1.png"],
    }


def test_they_are_no_samples_and_no_shards(tmp_path: Path) -> None:
    shard = write_source("tar", tmp_path, files())
    (tmp_path / "._source.tar").write_bytes(b"\0\5\x16\7")  # of macOS, on a disk of another system
    for shards in (tmp_path, str(tmp_path / "*.tar"), [shard]):
        with pytest.warns(UserWarning, match="does not belong to a sample"):
            source = ShardSource(shards)
        assert [sample.key for sample in source.read(0, 10)] == [name.removesuffix(".png") for name in NAMES]


def test_pictures_are_not_taken_from_folders_of_thumbnails(tmp_path: Path) -> None:
    content = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 8, "height": 8} for n in range(3)],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [],
    }
    (tmp_path / "known.json").write_text(json.dumps(content))
    for folder in (".thumbnails", "@eaDir", "images/@eaDir"):
        (tmp_path / folder).mkdir(parents=True)
        for n in range(3):
            (tmp_path / folder / f"{n}.png").write_bytes(tiny_image(n))
    known = CocoSet("known", tmp_path / "known.json")
    with pytest.raises(DataError, match="none of the annotated pictures was found in"):
        ObjectBenchmark(known, [])
    (tmp_path / "images/2.png").write_bytes(tiny_image(2))
    source = ObjectBenchmark(known, []).stream("known").source
    assert source.paths[0].parent == tmp_path / "images"


def test_a_file_that_a_user_lists_keeps_its_key(tmp_path: Path) -> None:
    for name in [*NAMES, *SYSTEM]:
        assert unescape_key(escape_key(name)) == name
        assert not is_hidden(escape_key(name))
        assert is_hidden(name) == (name in SYSTEM)
    for name in ("@home/1.png", "thumbs/1.png", "recycled/1.png", "icon/1.png"):
        assert not is_hidden(name)
