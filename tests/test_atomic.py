"""Files are complete or absent; leftovers of interrupted writers are removed, files being written are not."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from oodlit.base import atomic
from oodlit.base.atomic import fsync, lock, move, temporary_file, temporary_folder, write_bytes, write_text

ROOT = Path(__file__).parents[1]
WRITER = """
import pathlib, sys, time
from oodlit.base.atomic import temporary_folder, temporary_file
target = pathlib.Path(sys.argv[2])
with {"file": temporary_file, "folder": temporary_folder}[sys.argv[1]](target) as path:
    print(path, flush=True)
    time.sleep(600)
"""


def start_writer(kind: str, target: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process in the middle of writing, and what it writes to."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, kind, str(target)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def write(kind: str, target: Path) -> None:
    if kind == "file":
        write_bytes(target, b"new")
    else:
        with temporary_folder(target) as path:
            path.rename(target)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_leftovers_go_when_their_writer_is_gone_and_not_before(tmp_path: Path, kind: str) -> None:
    process, left = start_writer(kind, tmp_path / "a")
    try:
        write(kind, tmp_path / "a")
        assert left.exists()  # somebody is still writing there
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert left.exists()
    if kind == "folder":
        (tmp_path / "a").rmdir()
    write(kind, tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_other_names_are_never_touched(tmp_path: Path) -> None:
    others = [".b.01234567.tmp", ".a.txt.01234567.tmp", ".a.mine.tmp", ".a.0123456.tmp", "a.01234567.tmp"]
    for name in others:
        (tmp_path / name).touch()
    write_bytes(tmp_path / "a", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "a"])


def test_names_with_signs_of_patterns(tmp_path: Path) -> None:
    (tmp_path / ".a[1]*.01234567.tmp").touch()
    write_bytes(tmp_path / "a[1]*", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a[1]*"]


def test_a_file_taken_for_a_leftover_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, taken = atomic._locked, []

    def late(path: Path, *, wait: bool) -> int | None:
        if not taken:
            taken.append(path)
            path.unlink()
        return real(path, wait=wait)

    monkeypatch.setattr(atomic, "_locked", late)
    with temporary_file(tmp_path / "a") as path:
        assert path.exists()
        assert path != taken[0]


def test_without_locks_the_age_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_locked", lambda *_, **__: None)
    young, old = tmp_path / ".a.01234567.tmp", tmp_path / ".a.89abcdef.tmp"
    for path in (young, old):
        path.touch()
    long_ago = time.time() - atomic.ABANDONED_S - 60
    os.utime(old, (long_ago, long_ago))
    write_bytes(tmp_path / "a", b"new")
    assert (young.exists(), old.exists()) == (True, False)


def test_many_writers_of_one_file(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def repeat(content: bytes) -> None:
        try:
            for _ in range(50):
                write_bytes(tmp_path / "a", content)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(bytes([i]) * 1000,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set((tmp_path / "a").read_bytes())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"old")

    def interrupted() -> None:
        with temporary_file(tmp_path / "a") as path:
            path.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_files_that_belong_together_are_all_written_or_none(tmp_path: Path) -> None:
    atomic.write_files({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    places = {tmp_path / "a": b"3", tmp_path / "missing" / "c": b"4"}
    with pytest.raises(FileNotFoundError):
        atomic.write_files(places)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="expected a file name, got the folder"):
        atomic.write_files({tmp_path / "a": b"3", tmp_path / "folder": b"4"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == {"a": b"1", "b": b"2"}


def test_files_have_the_usual_rights(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_text_is_written_in_utf_8(tmp_path: Path) -> None:
    write_text(str(tmp_path / "a"), "Galápagos\n")
    assert (tmp_path / "a").read_bytes() == "Galápagos\n".encode()


def test_files_are_brought_to_disk_by_handles_that_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses others, and cannot open folders at all."""
    opened: list[int] = []
    real = os.open

    def recorded(path: Path, flags: int) -> int:
        opened.append(flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR))
        return real(path, flags)

    (tmp_path / "a").touch()
    monkeypatch.setattr(os, "open", recorded)
    fsync(tmp_path / "a")
    fsync(tmp_path)
    assert opened == [os.O_RDWR, os.O_RDONLY]
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    fsync(tmp_path)
    with pytest.raises(OSError, match="EACCES"):
        fsync(tmp_path / "a")


def failing(number: int):
    def fail(*_: object) -> int:
        raise OSError(number, errno.errorcode[number])

    return fail


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO, errno.ENOTSUP])
def test_folders_that_cannot_be_flushed_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """SMB refuses it for folders; for a file, it is a failing disk."""
    real = os.fsync

    def refuse_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, errno.errorcode[number])
        real(handle)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    write_bytes(tmp_path / "a", b"content")
    fsync(tmp_path)
    assert (tmp_path / "a").read_bytes() == b"content"
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(OSError, match=errno.errorcode[number]):
        write_bytes(tmp_path / "b", b"content")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """NFS without a lock service: the caller continues without a lock."""
    done = False
    monkeypatch.setattr(atomic, "FileLock", Refusing.with_error(number))
    with pytest.warns(UserWarning, match="does not support locks"), lock(tmp_path / ".lock", wait=False):
        done = True
    assert done


def test_other_errors_of_a_lock_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "FileLock", Refusing.with_error(errno.EROFS))
    with pytest.raises(OSError, match="EROFS"), lock(tmp_path / ".lock"):
        pass


class Refusing:
    """A lock that the file system refuses."""

    number = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    @classmethod
    def with_error(cls, number: int) -> "type[Refusing]":
        return type("Refusing", (cls,), {"number": number})

    def acquire(self) -> None:
        raise OSError(self.number, errno.errorcode[self.number])

    def release(self) -> None:
        pass


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = pytest.raises(BlockingIOError, match="is locked by another process")
    monkeypatch.setattr(atomic, "ORPHANS_S", 0.0)
    with lock(tmp_path / "lock"), held, lock(tmp_path / "lock", wait=False):
        pass
    with lock(tmp_path / "lock", wait=False):
        pass
    with pytest.raises(OSError), lock(tmp_path):  # noqa: PT011 - whatever the system says
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only what is forked shares a lock")
def test_who_was_killed_is_waited_for_until_what_it_forked_has_ended(tmp_path: Path) -> None:
    """As workers of data do that see within seconds that nobody wants their batches any more (filelock below 4)."""
    place, ready, end = (tmp_path / name for name in ("lock", "ready", "end"))
    pid = os.fork()
    if pid == 0:
        try:
            hold_with_a_worker(place, ready, end)
        finally:
            os._exit(1)  # whatever happens, no second pytest goes on from here
    wait_for(ready)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ending = threading.Timer(0.3, end.touch)
    ending.start()
    with lock(place, wait=False):
        assert place.exists()
    ending.join()  # the worker ends in any case


def hold_with_a_worker(place: Path, ready: Path, end: Path) -> None:
    """A run that holds a lock, and its worker, which lives until the file `end` exists."""
    with lock(place):
        if os.fork() == 0:
            ready.touch()
            wait_for(end)
            os._exit(0)
        time.sleep(600)  # until it is killed


def wait_for(file: Path) -> None:
    """Until another process has made a file; a minute at most, so that none is left behind."""
    deadline = time.monotonic() + 60
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_only_the_atomic_module_calls_fsync() -> None:
    """Windows refuses fsync on a read-only handle, which only `atomic.fsync` takes into account."""
    package = Path(atomic.__file__).parent
    others = [path.name for path in package.rglob("*.py") if "os.fsync" in path.read_text("utf-8")]
    assert others == ["atomic.py"]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSYS, errno.EXDEV])
@pytest.mark.parametrize("exists", [True, False])
def test_folders_that_cannot_be_renamed_are_moved_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, exists: bool
) -> None:
    refuse_folders(monkeypatch, code)
    with temporary_folder(tmp_path / "new") as folder:
        (folder / "part").mkdir()
        (folder / "part" / "a").write_text("a")
        (folder / "b").write_text("b")
        if exists:
            (tmp_path / "new").mkdir()
        move(folder, tmp_path / "new")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "new", "new/b", "new/part", "new/part/a"
    ]  # fmt: skip


def test_the_file_that_readers_require_is_moved_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.json", "b.txt", "part/z.txt"):
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / name).touch()
    refuse_folders(monkeypatch, errno.ENOSYS)
    moved, rename = [], os.rename
    monkeypatch.setattr(os, "rename", lambda source, target: (rename(source, target), moved.append(Path(target).name)))
    move(tmp_path / "old", tmp_path / "new", last="a.json")
    assert moved == ["z.txt", "b.txt", "a.json"]


def test_a_folder_with_content_is_not_mixed_with_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_folders(monkeypatch, errno.EMFILE)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    for source, target, expected in (("new", "old", "Too many open files"), ("missing", "other", "No such file")):
        with pytest.raises(OSError, match=expected):
            move(tmp_path / source, tmp_path / target)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["new", "old"]


def refuse_folders(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Rename files alone, as an object store that is mounted as a folder does."""
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if Path(source).is_dir():
            raise OSError(code, os.strerror(code), str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)


FULL = """
import pathlib, resource, signal, sys
import pandas as pd
from oodlit.base.atomic import temporary_folder, write_bytes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
target, frame = pathlib.Path(sys.argv[2]), pd.DataFrame({"a": range(100_000)})

def in_folder(write):
    with temporary_folder(target) as folder:
        write(folder / "part")

try:
    {
        "bytes": lambda: write_bytes(target, bytes(5000)),
        "text": lambda: in_folder(lambda path: path.write_text("a" * 5000)),
        "csv": lambda: in_folder(frame.to_csv),
        "parquet": lambda: in_folder(frame.to_parquet),
    }[sys.argv[1]]()
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("kind", ["bytes", "text", "csv", "parquet"])
def test_a_full_disk_is_reported_with_the_name_of_what_was_written(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, kind, str(tmp_path / "target")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large" in done.stdout
    assert done.stdout.strip().endswith(f": '{tmp_path / 'target'}'")
    assert list(tmp_path.iterdir()) == []


def test_errors_that_are_not_of_the_disk_name_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError) as caught, temporary_file(tmp_path / "a"):
        raise ConnectionResetError(errno.ECONNRESET, "reset by peer")
    assert caught.value.filename is None
