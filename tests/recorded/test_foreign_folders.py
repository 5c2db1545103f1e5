"""A cache folder from elsewhere can name, link or hide files of the user: none is read or removed."""

from pathlib import Path

import pytest

from oodlit.errors import DataError
from oodlit.recorded import open_cache
from oodlit.recorded.store import StoredRows, read_manifest
from tests.callbacks.support import make_streams
from tests.recorded.support import edit_manifest, record, rows_in, tiny_stream


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    record(folder)
    return folder


@pytest.fixture
def cache(source: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "cache"
    for path in source.rglob("*"):
        target = copy / path.relative_to(source)
        if path.is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return copy


@pytest.mark.parametrize("name", ["../other.safetensors", "sub/part.safetensors", "/etc/hostname", "..", "", "a\\b"])
def test_parts_have_plain_names(cache: Path, name: str) -> None:
    def change(manifest):
        manifest["streams"][0]["parts"][0][0] = name

    edit_manifest(cache, change)
    with pytest.raises(DataError, match="file names without folders"):
        open_cache(cache)


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp", ".."])
def test_the_folder_of_the_parts_has_a_plain_name(cache: Path, name: str) -> None:
    edit_manifest(cache, lambda manifest: manifest.update(rows=name))
    with pytest.raises(DataError, match="file names without folders"):
        read_manifest(cache)


def test_linked_parts_are_read_inside_the_folder_only(cache: Path, tmp_path: Path) -> None:
    expected = rows_in(cache)
    part = next((cache / "rows-0").glob("*.safetensors"))
    beside = part.with_name("beside.safetensors")
    part.rename(beside)
    part.symlink_to(beside)
    assert rows_in(cache) == expected
    moved = tmp_path / "moved.safetensors"
    beside.rename(moved)
    part.unlink()
    part.symlink_to(moved)
    with pytest.raises(DataError, match="outside the folder"):
        StoredRows(cache / "rows-0", [(part.name, 1)])


def test_cleaning_follows_no_links(cache: Path, tmp_path: Path) -> None:
    """Old rows are removed when a recording ends; a link in their place leads to files of the user."""
    mine = tmp_path / "mine"
    mine.mkdir()
    names = ("weights.safetensors", "notes.txt")
    for name in names:
        (mine / name).write_text("mine")
    (cache / "rows-0123456789ab").symlink_to(mine, target_is_directory=True)
    (cache / "rows-0" / "old.safetensors").symlink_to(mine / names[0])
    (cache / "rows-0" / "left.safetensors").write_text("of an interrupted run")
    record(cache, [*make_streams(), tiny_stream()])
    assert sorted(path.name for path in mine.iterdir()) == sorted(names)
    assert (cache / "rows-0" / "old.safetensors").is_symlink()
    assert not (cache / "rows-0" / "left.safetensors").exists()
    assert "tiny" in rows_in(cache)


def test_progress_that_is_a_link_is_refused(cache: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "abc-0000.json").write_text("{}")
    (cache / ".progress").symlink_to(mine, target_is_directory=True)
    with pytest.raises(DataError, match="is a link"):
        record(cache, [*make_streams(), tiny_stream()])
    assert (mine / "abc-0000.json").read_text() == "{}"
