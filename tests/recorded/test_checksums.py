"""Damaged files of a cache are noticed before their rows are used."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oodlit.errors import DataError
from oodlit.recorded import open_cache
from tests.callbacks.support import make_streams
from tests.recorded.support import edit_manifest, files_in, record, rows_in, tiny_stream


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checksums") / "cache"
    streams = [stream for stream in make_streams() if stream.name == "val"]
    record(folder, [*streams, tiny_stream(count=3)])
    return folder


def content(folder: Path) -> object:
    """All that a cache says."""
    module, data = open_cache(folder)
    head = [value.tolist() for value in (module.head.weight, module.head.bias)]
    return rows_in(folder), head, [stream.class_names for stream in data.streams]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_no_flipped_bit_is_read_without_an_error(cache: Path, tmp_path: Path, data: st.DataObject) -> None:
    name, before = data.draw(st.sampled_from(sorted(files_in(cache).items())))
    place, bit = data.draw(st.integers(0, len(before) - 1)), data.draw(st.integers(0, 7))
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(cache, copy)
    after = bytearray(before)
    after[place] ^= 1 << bit
    (copy / name).write_bytes(after)
    try:
        found = content(copy)
    except DataError:
        return
    assert name == "cache.json", f"{name}: bit {bit} of byte {place}"  # only blanks between its values may change
    assert found == content(cache)


def part_of(folder: Path, stream: str, number: int = 0) -> Path:
    entry = next(e for e in json.loads((folder / "cache.json").read_text())["streams"] if e["name"] == stream)
    return folder / "rows-0" / entry["parts"][number][0]


def test_a_damaged_name_in_a_header_is_noticed_when_the_cache_is_opened(cache: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(cache, tmp_path / "copy")
    part = part_of(folder, "tiny")
    part.write_bytes(part.read_bytes().replace(b'"features"', b'"geatures"'))
    with pytest.raises(DataError, match=f"{part.name}: expected the arrays "):
        open_cache(folder)


def test_the_message_names_the_file_and_without_it_the_stream_is_recorded_again(cache: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(cache, tmp_path / "copy")
    part = part_of(folder, "val", 2)
    damaged = bytearray(part.read_bytes())
    damaged[-200] ^= 1
    part.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(
            DataError, match=f"{part.name}: the file is damaged .* checksum in cache.json.*; delete this file"
        ):
            rows_in(folder)
    part.unlink()
    streams = [stream for stream in make_streams() if stream.name == "val"]
    assert record(folder, [*streams, tiny_stream(count=3)]) == len(streams[0])
    assert rows_in(folder) == rows_in(cache)


def test_files_of_equal_shape_are_not_exchanged(cache: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(cache, tmp_path / "copy")
    one, other = part_of(folder, "val", 0), part_of(folder, "val", 1)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged .*checksum"):
        rows_in(folder)


def test_caches_without_checksums_are_read(cache: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(cache, tmp_path / "copy")

    def as_before(manifest: dict) -> None:
        del manifest["head_checksum"]
        for entry in manifest["streams"]:
            del entry["checksums"]

    edit_manifest(folder, as_before)
    assert rows_in(folder) == rows_in(cache)
