"""Downloads from a server on this machine: interrupted, resumed, refused, damaged; and the commands around them."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.cli.main import main
from oodlit.datamodules import DatasetDescription, descriptions
from oodlit.datamodules.benchmarks.lists import published_list
from oodlit.datamodules.sets.description import ArchiveFile, Membership
from oodlit.datamodules.shards.download import download
from oodlit.roles import Role

CONTENT = bytes(range(256)) * 20
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(HTTPServer):
    """Serves `content`; the first `breaks` answers end in the middle."""

    content, breaks, has_ranges = CONTENT, 0, True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.starts: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/set.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, size = self.server, len(self.server.content)
        asked = self.headers.get("Range", "") if server.has_ranges else ""
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        server.starts.append(start)
        if "missing" in self.path or start >= size:
            self.send_response(404 if "missing" in self.path else 416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.end_headers()
            return
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - start))
        self.end_headers()
        rest = server.content[start:]
        self.wfile.write(rest[: len(rest) // 2] if server.breaks > 0 else rest)
        server.breaks -= 1

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_broken_connection_is_continued(server: Server, tmp_path: Path) -> None:
    server.breaks = 2
    seen: list[tuple[int, int | None]] = []
    path = download(server.url, tmp_path / "a" / "set.tar.gz", md5=MD5, backoff_s=0, progress=lambda *n: seen.append(n))
    assert path.read_bytes() == CONTENT
    assert server.starts == [0, len(CONTENT) // 2, len(CONTENT) * 3 // 4]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert download(server.url, path, md5=MD5) == path
    assert len(server.starts) == 3, "a file that exists is not downloaded again"


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(have=st.integers(0, len(CONTENT)), has_ranges=st.booleans())
def test_any_part_is_completed(server: Server, tmp_path: Path, have: int, has_ranges: bool) -> None:
    server.has_ranges = has_ranges
    (tmp_path / "set.part").write_bytes(CONTENT[:have])
    path = download(server.url, tmp_path / "set", md5=MD5)
    assert path.read_bytes() == CONTENT
    path.unlink()


def test_an_interrupted_command_leaves_only_the_part(server: Server, tmp_path: Path) -> None:
    server.breaks = 1
    with pytest.raises(DataError, match=r"run the command again to continue"):
        download(server.url, tmp_path / "set", md5=MD5, attempts=1)
    assert not (tmp_path / "set").exists()
    assert download(server.url, tmp_path / "set", md5=MD5).read_bytes() == CONTENT
    assert server.starts[1] == len(CONTENT) // 2


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"expected MD5 {'0' * 32}, got {MD5}"):
        download(server.url, tmp_path / "set", md5="0" * 32)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
    (tmp_path / "set").write_bytes(b"mine")
    with pytest.raises(DataError, match="Remove or rename this file"):
        download(server.url, tmp_path / "set", md5=MD5)
    assert (tmp_path / "set").read_bytes() == b"mine"


def test_a_refusal_is_not_repeated(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the server answered 404"):
        download(server.url.replace("set", "missing"), tmp_path / "set")
    assert len(server.starts) == 1
    with pytest.raises(InvalidArgumentError, match="expected an address with http://"):
        download("file:///etc/hostname", tmp_path / "set")


def place(path: PurePosixPath) -> Membership:
    return Membership(group=path.parent.name)


def archive(images: int) -> bytes:
    raw, picture = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "PNG")
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for index in range(images):
            info = tarfile.TarInfo(f"tiny/cat/{index}.png")
            info.size = len(picture.getvalue())
            tar.addfile(info, io.BytesIO(picture.getvalue()))
    return raw.getvalue()


@pytest.fixture
def tiny(server: Server, monkeypatch: pytest.MonkeyPatch) -> DatasetDescription:
    """A known set of three images that the server has."""
    server.content = archive(3)
    file = ArchiveFile(server.url, hashlib.md5(server.content).hexdigest())
    made = DatasetDescription(
        "tiny", "Tiny", Role.OOD, "<class>/<file>", place, expected_count=3, licence="MIT", files=(file,)
    )
    monkeypatch.setitem(descriptions(), "tiny", made)
    return made


def test_get_then_check(tiny: DatasetDescription, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "tiny", "--out", str(tmp_path)]) == 0
    assert "Tiny; license: MIT" in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "tiny: set.tar.gz: checksum matches" in shown
    assert "tiny: 3 images, as published; next: oodlit shards build tiny" in shown
    (tmp_path / "tiny" / "set.tar.gz").write_bytes(archive(2))
    assert main(["data", "check", str(tmp_path)]) == 1
    assert "wrong checksum; download it again (expected MD5" in capsys.readouterr().out


def test_check_counts_a_folder_of_images(
    tiny: DatasetDescription, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny" / "cat").mkdir(parents=True)
    for index in range(2):
        Image.new("RGB", (8, 8)).save(tmp_path / "tiny" / "cat" / f"{index}.png")
    assert main(["data", "check", str(tmp_path)]) == 1
    assert "FAILED tiny: expected 3 images, got 2" in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path / "tiny")]) == 1
    assert "expected subfolders named as in 'oodlit data list'" in capsys.readouterr().err


def test_sets_with_a_login_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "imagenet_val", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "cannot be downloaded by this command. Register at https://image-net.org" in shown
    assert f"Put the files into {tmp_path / 'imagenet_val'}" in shown
    assert main(["data", "get", "nincoo"]) == 2
    assert "did you mean 'ninco'" in capsys.readouterr().err


def test_generated_images_need_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "unit_tests", "--out", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "unit_tests: nothing to download, because a run generates the images"


def test_a_set_without_a_published_number_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "species" / "fungi").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "species" / "fungi" / "1.png")
    assert main(["data", "check", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "1 image, not compared, because no published number is known; next: oodlit shards build species" in shown


def test_the_list_names_a_way_for_every_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    assert "imagenet_a" in capsys.readouterr().out
    assert main(["data", "list", "--verbose"]) == 0
    assert "MD5 b9ffae324363cd900a81ce3c367cd834" in capsys.readouterr().out
    for about in descriptions().values():
        assert about.files or about.by_hand or about.source.startswith("https://"), about.name
        assert all(len(file.md5) in (0, 32) and file.name for file in about.files)


def test_a_published_list_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--images", "textures_5160"]) == 0
    assert tuple(capsys.readouterr().out.splitlines()) == published_list("textures_5160")
    assert main(["data", "list", "--images", "textures"]) != 0
    assert "textures_5160" in capsys.readouterr().err
    assert main(["data", "list", "--images", "__pycache__"]) == 2
    assert "__pycache__," not in capsys.readouterr().err
