"""Small files from elsewhere do not fill the memory, the disk or the screen."""

import gzip
import io
import json
import lzma
import os
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from oodlit import Results
from oodlit.base import sizes
from oodlit.base.sizes import check_expansion
from oodlit.datamodules.shards import Cache, ShardSource, archives, open_files
from oodlit.datamodules.shards.manifest import MAX_MANIFEST_BYTES, read_info
from oodlit.datamodules.shards.members import MAX_FACTS_BYTES, MAX_MEMBER_BYTES
from oodlit.datamodules.shards.tars import MAX_HEADER_BYTES, MAX_NAME
from oodlit.datamodules.sources import FileSource
from oodlit.errors import DataError, InvalidArgumentError, OodlitError, UnknownNameError
from oodlit.objects.files.annotations import Annotations
from oodlit.objects.files.picture_source import PictureSource
from oodlit.objects.files.predictions import read_predictions
from oodlit.recorded.array_files import read_arrays
from oodlit.results.files.storage import read_parquet
from tests.report.problems import make_results
from tests.tiny_shards import write_tiny_shards

MEGABYTE = 2**20


@contextmanager
def refused(match: str) -> Iterator[None]:
    """A clear error that takes little memory and few words."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=match) as caught:
            yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * MEGABYTE
    assert len(str(caught.value)) < 5000


def tar_of(*members: tuple[str, bytes], **more: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers=more) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def long_name(size: int) -> bytes:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, size + 1
    name = b"n" * size + bytes(tarfile.BLOCKSIZE - size % tarfile.BLOCKSIZE)
    return header.tobuf(tarfile.GNU_FORMAT) + name + tar_of(("a.jpg", b"x"))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (long_name(MAX_HEADER_BYTES), "headers of at most"),
        (long_name(MAX_NAME + 1), "names of at most"),
        (tar_of(("n" * (MAX_NAME + 1), b"x")), "names of at most"),
        (tar_of(("a.jpg", b"x"), comment="c" * MAX_HEADER_BYTES), "headers of at most"),
        (tar_of(("a.jpg", b"x"), **{f"c{i}": "x" for i in range(1001)}), "global entries"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_headers_of_tars_are_bounded(tmp_path: Path, content: bytes, match: str, compressed: bool) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(gzip.compress(content, 1) if compressed else content)
    with refused(match):
        open_files(path)
    if not compressed:
        with refused(match):
            ShardSource(path)


def test_headers_within_the_bounds_are_read(tmp_path: Path) -> None:
    names = ["n" * MAX_NAME, "a/" + "m" * 1000]
    (tmp_path / "a.tar").write_bytes(tar_of(*((name, b"x") for name in names), comment="c" * (MAX_HEADER_BYTES // 2)))
    assert [file.path for file in open_files(tmp_path / "a.tar")] == names


def test_a_compressed_tar_has_few_files_for_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tarfile.TarInfo("a.jpg").tobuf() * 1500 + bytes(2 * tarfile.BLOCKSIZE)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(content))
    assert len(open_files(tmp_path / "a.tar.gz").paths) == 1500
    monkeypatch.setattr(archives, "_FREE_FILES", 1000)
    with refused(r"expected at most 1,\d\d\d files in"):
        open_files(tmp_path / "a.tar.gz")


def test_the_memory_of_xz_is_bounded(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**30 + 2**29}]
    packer = lzma.LZMACompressor(lzma.FORMAT_XZ, filters=filters)
    (tmp_path / "a.tar.xz").write_bytes(packer.compress(tar_of(("a.jpg", b"x"))) + packer.flush())
    with refused("Memory usage limit"):
        open_files(tmp_path / "a.tar.xz")


@pytest.mark.parametrize("field", ["json", "cls"])
def test_facts_of_samples_are_bounded(tmp_path: Path, field: str) -> None:
    data = (b'{"a":' + b"0" * MAX_FACTS_BYTES + b"}") if field == "json" else b"0" * (MAX_FACTS_BYTES + 1)
    (tmp_path / "a.tar").write_bytes(tar_of(("a.jpg", b"x"), (f"a.{field}", data)))
    (sample,) = ShardSource(tmp_path / "a.tar").read(0, 1)
    assert f"more than the limit of {MAX_FACTS_BYTES}" in str(sample.error)
    assert MAX_FACTS_BYTES < MAX_MEMBER_BYTES


class Endless(BaseHTTPRequestHandler):
    """Sends a body without end, and without its length."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        try:
            while True:
                self.wfile.write(b"[" * MEGABYTE)
        except OSError:  # the client has enough
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


@pytest.fixture
def endless() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Endless)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_bodies_without_end_are_bounded(tmp_path: Path, endless: str) -> None:
    cache = Cache(tmp_path, attempts=2, backoff_s=0.0, max_bytes=8 * MEGABYTE)
    with pytest.raises(DataError, match=r"/a\.tar: expected at most 8,388,608 bytes .*, got more"):
        cache.fetch(endless + "a.tar")
    with pytest.raises(DataError, match=r"a\.tar: reading failed after 2 attempts \(expected 1000 bytes, got more"):
        cache.fetch(endless + "a.tar", size=1000)
    with pytest.raises(DataError, match=r"a\.tar: expected at most 8,388,608 bytes .*, got 9,000,000"):
        cache.fetch(endless + "a.tar", size=9_000_000)
    with pytest.raises(DataError, match=r"_info\.json: expected at most 8,388,608 bytes"):
        ShardSource(endless, cache=cache)
    with pytest.raises(DataError, match=f"_info.json: expected at most {MAX_MANIFEST_BYTES:,} bytes"):
        ShardSource(endless, cache=Cache(tmp_path, attempts=1))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]
    with pytest.raises(InvalidArgumentError, match="max_bytes to be at least 1, got 0"):
        Cache(max_bytes=0)


def test_manifests_are_bounded(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path, [2])
    manifest = tmp_path / "_info.json"
    deep = json.loads(manifest.read_text())
    next(iter(deep["splits"].values()))["extra"] = {"a": json.loads("[" * 120 + "]" * 120)}
    manifest.write_text(json.dumps(deep))
    with refused("at most 100 levels of nested"):
        read_info(tmp_path)
    with manifest.open("wb") as file:
        file.truncate(MAX_MANIFEST_BYTES + 1)
    with refused("at most 67,108,864 bytes, got 67,108,865; restore the manifest"):
        read_info(tmp_path)


def test_scores_have_as_many_rows_as_the_run_counts(tmp_path: Path) -> None:
    make_results().save(tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    record["counts"] = {"val": 1}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    with refused(r"scores\.parquet: expected at most 1 row according to run\.json, got \d+"):
        Results.load(tmp_path / "run")


def test_tables_expand_in_proportion_to_their_size(tmp_path: Path) -> None:
    zeros = pa.table({"msp": pa.chunked_array([pa.array(np.zeros(MEGABYTE))] * 40)})
    pq.write_table(zeros, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < MEGABYTE
    texts = pa.table({"groups": pa.chunked_array([pa.array(["x" * MEGABYTE])] * 300)})
    pq.write_table(texts, tmp_path / "c.parquet", compression="zstd", use_dictionary=False, row_group_size=1)
    for read in (read_parquet, read_arrays, partial(read_predictions, images="near")):
        for name in ("a", "c"):
            with refused(rf"{name}\.parquet: expected at most 268,435,456 bytes of content"):
                read(tmp_path / f"{name}.parquet")
    frame = pd.DataFrame({"msp": np.zeros(MEGABYTE)})
    frame.to_parquet(tmp_path / "b.parquet")
    pd.testing.assert_frame_equal(read_parquet(tmp_path / "b.parquet"), frame)


@pytest.mark.parametrize("kind", ["text", "bytes", "fixed", "lists", "large"])
def test_repeated_values_count_as_often_as_they_occur(tmp_path: Path, kind: str) -> None:
    long = b"x" * MEGABYTE
    values = {
        "text": pa.array([long.decode(), "b"] * 300),
        "bytes": pa.array([long] * 300, pa.binary()),
        "fixed": pa.array([long] * 300, pa.binary(MEGABYTE)),
        "lists": pa.array([[long.decode()]] * 300),
        "large": pa.array([long.decode()] * 300, pa.large_string()),
    }[kind]
    pq.write_table(pa.table({"groups": values}), tmp_path / "a.parquet", compression="zstd", row_group_size=200)
    assert (tmp_path / "a.parquet").stat().st_size < MEGABYTE
    for read in (read_parquet, read_arrays, partial(read_predictions, images="near")):
        with refused(r"a\.parquet: expected at most 268,435,456 bytes of content"):
            read(tmp_path / "a.parquet")


def test_long_names_in_few_rows_and_short_names_in_many_are_read(tmp_path: Path) -> None:
    names = ["x" * 50_000] + ["a class", "b"] * 200_000  # numpy's own texts would have 80 GB
    pq.write_table(pa.table({"groups": pa.array(names)}), tmp_path / "a.parquet")
    assert read_arrays(tmp_path / "a.parquet")["groups"].tolist() == names
    assert read_parquet(tmp_path / "a.parquet")["groups"].tolist() == names


def test_arrays_expand_in_proportion_to_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", logits=np.zeros((MEGABYTE, 1)))
    assert read_arrays(tmp_path / "a.npz")["logits"].shape == (MEGABYTE, 1)
    monkeypatch.setattr(sizes, "ALWAYS_ALLOWED", MEGABYTE)
    with refused(r"a\.npz: expected at most 1,048,576 bytes of content in a file of [0-9,]+ bytes, got 8,388,736"):
        read_arrays(tmp_path / "a.npz")
    check_expansion("features", packed=10**9, unpacked=10**11)


def test_an_array_that_claims_a_huge_shape_is_an_error(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (2**50, 4)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("logits.npy", file.getvalue())
    with pytest.raises(DataError, match=r"a\.npz: cannot read arrays"):
        read_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "make",
    [
        lambda text: DataError(f"{text!r}: damaged"),
        lambda text: OodlitError("a", text),
        lambda text: UnknownNameError.of("detector", text, ["msp", text + "x"]),
    ],
)
def test_messages_are_bounded(make: Callable[[str], OodlitError]) -> None:
    assert len(str(make("n" * 10**7))) < 10_000
    assert str(DataError("a short one")) == "a short one"
    assert str(DataError("start " + "x" * 9999 + " end")).startswith("start x")
    assert str(DataError("start " + "x" * 9999 + " end")).endswith("x end")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pictures_are_plain_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.png"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert "expected a plain file, got a pipe, socket or device" in FileSource([path]).sample(0).error
    size = torch.tensor([[8, 8]])
    none = torch.zeros(0, dtype=torch.int64)
    annotations = Annotations(
        "near", ("near/1",), size, torch.zeros(0, 4), none, none, none.bool(), (), (), (), ("a.png",)
    )
    (sample,) = PictureSource(annotations, tmp_path).read(0, 1)
    assert "expected a plain file, got a pipe, socket or device" in sample.error
