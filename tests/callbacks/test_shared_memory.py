"""Processes of a machine hold large rows in the same memory, which nobody else sees and nobody leaves behind."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from oodlit.base.processes import distributed
from oodlit.base.processes.distributed import gather_objects, gather_rows, shared_empty
from tests.callbacks.processes import by_hand, run_function

pytestmark = [pytest.mark.ddp, pytest.mark.xdist_group("processes")]


def shared_by_two(folder: Path) -> None:
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=2)
    tensor = shared_empty(None, (3, 2), torch.float64)
    gather_objects(None, None)
    if rank == 0:
        tensor.fill_(7.0)
    gather_objects(None, None)
    assert (tensor == 7).all(), "the other process has memory of its own"
    gather_objects(None, None)

    rows = torch.arange(6.0).view(3, 2)[: 2 if rank == 0 else 1] + 10 * rank
    shared, own = (gather_rows(None, rows, [2, 1], is_shared=choice) for choice in (True, False))
    assert shared.tolist() == own.tolist() == [[0, 1], [2, 3], [10, 11]]
    gather_objects(None, None)
    shared[0] = rank  # one of them is the last one
    gather_objects(None, None)
    (folder / f"{rank}").write_text(str(shared[0, 0].item()))

    distributed._reserve = lambda size: None  # not enough shared memory anywhere
    tensor = shared_empty(None, (2,), torch.int64)
    tensor.fill_(rank)
    gather_objects(None, None)
    assert (tensor == rank).all()


def test_two_processes_share_memory(tmp_path):
    ended = run_function(shared_by_two, tmp_path, folder=tmp_path / "logs", each=by_hand(2), timeout=100)
    assert [one.code for one in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text()
    assert "not enough shared memory" in ended[0].stderr
    assert not list(Path("/dev/shm").glob("oodlit-*"))


def test_room_is_looked_for_before_it_is_taken():
    assert distributed._reserve(2**60) is None
    reserved = distributed._reserve(1000)
    assert reserved is not None
    assert reserved.stat().st_size == 1000
    reserved.unlink()


def test_folders_that_cannot_be_written_to_are_passed_over(monkeypatch):
    make, refused = tempfile.mkstemp, ["/dev/shm"]

    def mkstemp(*, prefix, dir):
        if dir in refused:
            raise PermissionError(13, "Permission denied", dir)
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    elsewhere = distributed._reserve(1000)
    assert elsewhere is not None
    assert elsewhere.parent == Path(tempfile.gettempdir())
    elsewhere.unlink()
    refused.append(tempfile.gettempdir())
    assert distributed._reserve(1000) is None

    def no_folder():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    assert distributed._reserve(1000) is None


def test_a_file_without_room_is_removed(monkeypatch, tmp_path):
    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(OSError, match="No space"):
        distributed._file_of(1000, str(tmp_path))
    assert not list(tmp_path.iterdir())
