"""Remote shards: a server that drops connections and cuts bodies never costs a sample."""

import hashlib
import importlib.util
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.shards import Cache, ShardSource, remote, shard_stream
from oodlit.errors import DataError, InvalidArgumentError, MissingExtraError
from tests.tiny_shards import write_tiny_shards

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")


class Server(ThreadingHTTPServer):
    """Serves `root`; `faults` is what goes wrong with the next answers to GET."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root, self.faults, self.requests = root, list[str](), 0
        self.refusals: list[int] = []  # status of the next requests, whatever they ask for
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of the test."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = self.server.root / self.path.lstrip("/").partition("?")[0]
        if self.server.refusals:
            self.send_error(self.server.refusals.pop(0))
            return
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        fault = ""
        if body:
            self.server.requests += 1
            fault = self.server.faults.pop(0) if self.server.faults else ""
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
            return
        if fault == "hang":
            time.sleep(0.6)
            self.close_connection = True
            return
        if fault == "503":
            self.send_error(503)
            return
        self.send_response(200)
        # a proxy that cuts the body and announces the cut length, or no length at all
        sent = data[: len(data) // 2] if fault in ("cut", "short", "unannounced") else data
        if fault == "flip":
            sent = data[:700] + bytes([data[700] ^ 1]) + data[701:]
        if fault != "unannounced":
            self.send_header("Content-Length", str(len(data) if fault == "cut" else len(sent)))
        self.end_headers()
        if body:
            self.wfile.write(sent)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "remote")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("fault", ["drop", "503", "cut", "short", "unannounced", "flip", "hang"])
def test_the_stream_recovers(tmp_path: Path, server: Server, fault: str) -> None:
    keys = write_tiny_shards(tmp_path / "remote", [3, 4])
    cache = Cache(tmp_path / "cache", attempts=4, backoff_s=0.001, timeout_s=0.3)
    source = ShardSource(server.url, cache=cache)
    server.faults = [fault, fault, "", fault]
    before = server.requests
    assert [sample.key for sample in source.read(0, 7)] == keys
    assert server.requests - before == 5
    assert [sample.key for sample in source.read(2, 7)] == keys[2:]  # from the cache
    assert server.requests - before == 5


@pytest.mark.parametrize("manifest", [True, False])
def test_or_it_fails_never_with_fewer_samples(tmp_path: Path, server: Server, manifest: bool) -> None:
    write_tiny_shards(tmp_path / "remote", [3, 4], manifest=manifest)
    cache = Cache(tmp_path / "cache", attempts=3, backoff_s=0.001)
    shards = server.url if manifest else server.url + "tiny-{000000..000001}.tar"
    if manifest:
        source = ShardSource(shards, cache=cache)
        server.faults = ["short"] * 3
        with pytest.raises(DataError, match=r"tiny-000000\.tar: .* after 3 attempts \(expected \d+ bytes, got \d+"):
            list(source.read(0, 7))
    else:
        server.faults = ["short"] * 3
        with pytest.raises(DataError, match=r"after 3 attempts \(.*(no end-of-archive|expected 10240 bytes)"):
            ShardSource(shards, cache=cache)
    assert not list((tmp_path / "cache").rglob("*.tar"))


def test_a_manifest_beside_single_shards_is_used(tmp_path: Path, server: Server) -> None:
    keys = write_tiny_shards(tmp_path / "remote", [3, 4])
    source = ShardSource(server.url + "tiny-{000000..000001}.tar", cache=Cache(tmp_path / "cache"))
    assert (len(source), server.requests) == (7, 1)  # counted without fetching the shards
    assert [sample.key for sample in source.read(4, 7)] == keys[4:]
    assert server.requests == 2


def test_lost_remote_shards_can_be_marked(tmp_path: Path, server: Server) -> None:
    write_tiny_shards(tmp_path / "remote", [3, 2])
    (tmp_path / "remote" / "tiny-000001.tar").unlink()
    source = ShardSource(server.url, cache=Cache(tmp_path / "cache"), damaged="mark")
    lost = [sample for sample in source.read(0, 5) if sample.error]
    assert [sample.key for sample in lost] == ["tiny-000001.tar#0", "tiny-000001.tar#1"]
    assert "does not exist" in str(lost[0].error)


@pytest.mark.skipif(importlib.util.find_spec("adlfs") is not None, reason="adlfs is installed")
def test_a_missing_file_system_is_reported_immediately(tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"abfs://x/a\.tar.*adlfs"):
        Cache(tmp_path, attempts=50, backoff_s=10.0).fetch("abfs://x/a.tar")


def test_missing_files_are_not_retried(tmp_path: Path, server: Server) -> None:
    write_tiny_shards(tmp_path / "remote", [2])
    cache = Cache(tmp_path / "cache", attempts=50, backoff_s=10.0)
    with pytest.raises(DataError, match=r"none\.tar does not exist"):
        ShardSource(server.url + "none.tar", cache=cache)
    with pytest.raises(DataError, match=r"nowhere/_info\.json does not exist"):
        ShardSource(server.url + "nowhere/", cache=cache)


def test_a_server_that_is_busy_for_all_requests_is_asked_again(tmp_path: Path, server: Server) -> None:
    keys = write_tiny_shards(tmp_path / "remote", [3])
    server.refusals = [503, 500, 429, 503]  # also those that only ask for the length
    source = ShardSource(server.url, cache=Cache(tmp_path / "cache", attempts=4, backoff_s=0.001))
    assert [sample.key for sample in source.read(0, 3)] == keys
    server.refusals = [503] * 99
    with pytest.raises(DataError, match=r"failed after 2 attempts \(ClientResponseError 503"):
        ShardSource(server.url, cache=Cache(tmp_path / "other", attempts=2, backoff_s=0.001))


def test_an_unreachable_server_is_not_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"after 2 attempts \(ClientConnectorError"):
        ShardSource("http://127.0.0.1:1/", cache=Cache(tmp_path, attempts=2, backoff_s=0.001))


def test_refused_access_is_said_and_not_retried(tmp_path: Path, server: Server) -> None:
    server.refusals = [403] * 4
    with pytest.raises(DataError, match=r"permission denied .*403"):
        ShardSource(server.url, cache=Cache(tmp_path / "cache", attempts=50, backoff_s=10.0))


def test_signed_addresses_are_read_and_find_their_manifest(tmp_path: Path, server: Server) -> None:
    keys = write_tiny_shards(tmp_path / "remote", [3, 4])
    cache = Cache(tmp_path / "cache")
    source = ShardSource(server.url + "tiny-{000000..000001}.tar?signature=a/b&c=d", cache=cache)
    assert (len(source), server.requests) == (7, 1)  # counted without fetching the shards
    assert [sample.key for sample in source.read(0, 7)] == keys
    assert {path.name for path in (tmp_path / "cache").rglob("*.tar")} == {"tiny-000000.tar", "tiny-000001.tar"}


def test_a_cut_copy_is_fetched_again_where_no_manifest_knows_its_length(tmp_path: Path, server: Server) -> None:
    keys = write_tiny_shards(tmp_path / "remote", [3], manifest=False)
    url, cache = server.url + "tiny-000000.tar", Cache(tmp_path / "cache")
    copy = cache.fetch(url)
    copy.write_bytes(copy.read_bytes()[:700])
    assert [sample.key for sample in ShardSource(url, cache=cache).read(0, 3)] == keys


@pytest.mark.parametrize(("context", "num_workers"), [("fork", 2), ("spawn", 1)])
def test_workers_share_one_download(tmp_path: Path, server: Server, context: str, num_workers: int) -> None:
    keys = write_tiny_shards(tmp_path / "remote", [3, 4])
    stream = shard_stream(server.url, cache=Cache(tmp_path / "cache", backoff_s=0.001))
    loader = StreamLoader(stream, zeros, num_workers=num_workers, multiprocessing_context=context)
    before = server.requests
    assert sorted(key for batch in loader for key in batch["key"]) == sorted(f"tiny/{key}" for key in keys)
    assert server.requests - before == 2


def zeros(image: object) -> torch.Tensor:
    return torch.zeros(1, 1, 1)


def test_a_stale_copy_of_another_size_is_fetched_again(tmp_path: Path, server: Server) -> None:
    keys = write_tiny_shards(tmp_path / "remote", [3])
    cache = Cache(tmp_path / "cache")
    source = ShardSource(server.url, cache=cache)
    copy = cache.path(server.url + "tiny-000000.tar")
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"x")
    assert [sample.key for sample in source.read(0, 3)] == keys


def flip(path: Path) -> bytes:
    """Another byte at the place of a byte of the image; gives the content as it was."""
    data = path.read_bytes()
    place = data.index(b"IDAT") + 6
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    return data


@pytest.mark.parametrize("checked_before", [False, True])
def test_a_damaged_copy_of_the_right_length_is_fetched_again(
    tmp_path: Path, server: Server, checked_before: bool
) -> None:
    write_tiny_shards(tmp_path / "remote", [3])
    source = ShardSource(server.url, cache=Cache(tmp_path / "cache"))
    images = [sample.image for sample in source.read(0, 3)]
    copy = source.cache.path(server.url + "tiny-000000.tar")
    if checked_before:
        list(source.read(0, 3))
        time.sleep(0.05)  # more than the resolution of time stamps
    state = copy.stat()
    whole = flip(copy)
    os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))  # as a program that hides its change
    before = server.requests
    assert [sample.image for sample in source.read(0, 3)] == images
    assert (server.requests - before, copy.read_bytes() == whole) == (1, True)


def test_a_copy_of_an_earlier_build_is_fetched_again(tmp_path: Path, server: Server) -> None:
    write_tiny_shards(tmp_path / "remote", [3])
    cache = Cache(tmp_path / "cache")
    list(ShardSource(server.url, cache=cache).read(0, 3))
    shard = tmp_path / "remote" / "tiny-000000.tar"
    earlier = hashlib.sha256(shard.read_bytes()).hexdigest()
    flip(shard)
    manifest = tmp_path / "remote" / "_info.json"
    manifest.write_text(manifest.read_text().replace(earlier, hashlib.sha256(shard.read_bytes()).hexdigest()))
    source = ShardSource(server.url, cache=cache)
    list(source.read(0, 3))
    assert cache.path(server.url + shard.name).read_bytes() == shard.read_bytes()


def test_a_damaged_copy_without_a_server_is_refused(tmp_path: Path, server: Server) -> None:
    write_tiny_shards(tmp_path / "remote", [3])
    cache = Cache(tmp_path / "cache", attempts=2, backoff_s=0.001)
    source = ShardSource(server.url, cache=cache)
    list(source.read(0, 3))
    flip(cache.path(server.url + "tiny-000000.tar"))
    server.refusals = [503] * 99
    with pytest.raises(DataError, match=r"the copy .*tiny-000000\.tar is damaged or outdated: .* 2 attempts"):
        list(source.read(0, 3))


def test_a_copy_is_read_for_its_checksum_once(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = write_tiny_shards(tmp_path / "remote", [3])
    source = ShardSource(server.url, cache=Cache(tmp_path / "cache"))
    list(source.read(0, 3))  # downloaded, and its checksum taken on the way
    checks = []
    real = remote.hexdigest
    monkeypatch.setattr(remote, "hexdigest", lambda file: checks.append(file) or real(file))
    for _ in range(3):
        assert [sample.key for sample in source.read(0, 3)] == keys
    assert len(checks) == 1
    source.cache.path(server.url + "tiny-000000.tar").touch()
    list(source.read(0, 3))
    assert len(checks) == 2


def test_a_cache_that_cannot_be_written_is_read_and_checked(tmp_path: Path, server: Server) -> None:
    keys = write_tiny_shards(tmp_path / "remote", [3])
    source = ShardSource(server.url, cache=Cache(tmp_path / "cache"))
    list(source.read(0, 3))
    copy = source.cache.path(server.url + "tiny-000000.tar")
    lock = copy.with_name(f".{copy.name}.lock")
    lock.unlink(missing_ok=True)
    lock.mkdir()  # no lock can be had, whoever runs the test
    assert [sample.key for sample in source.read(0, 3)] == keys
    flip(copy)
    with pytest.raises(DataError, match=r"is damaged or outdated.* cannot write to .*; pass Cache"):
        list(source.read(0, 3))


def test_leftovers_of_killed_downloads_are_removed(tmp_path: Path, server: Server) -> None:
    write_tiny_shards(tmp_path / "remote", [3])
    cache = Cache(tmp_path / "cache")
    copy = cache.path(server.url + "tiny-000000.tar")
    copy.parent.mkdir(parents=True)
    left, other = copy.with_name(f".{copy.name}.0123abcd.tmp"), copy.with_name(".mine.0123abcd.tmp")
    for path in (left, other):
        path.write_bytes(b"half a shard")
    list(ShardSource(server.url, cache=cache).read(0, 3))
    assert (left.exists(), other.exists()) == (False, True)


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="Cache: expected attempts to be at least 1, got 0"):
        Cache(attempts=0)
    with pytest.raises(InvalidArgumentError, match=r"Cache: expected backoff_s to be a finite number >= 0, got -1\.0"):
        Cache(backoff_s=-1.0)
