"""Worker processes and limits of the machine. Each limit is set in a separate process."""

import resource
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from PIL import Image

from oodlit import OODModule
from oodlit.datamodules import OODDataModule
from oodlit.datamodules.failures import explained
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.sources import DatasetSource, MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import DataError, InvalidArgumentError, OodlitError
from oodlit.roles import Role
from oodlit.testing.backbones import TinyConvNet
from tests.callbacks.processes import check_ended, run_function

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")


class Keeping(pl.LightningModule):
    """Keeps what the data module gives it."""

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return batch["label"], batch["group"], batch["key"]


def predict(module: pl.LightningModule, count: int, size: int, **options: Any) -> Any:
    samples = [Sample(str(i), torch.full((3, size, size), i / count), label=i % 6) for i in range(count)]
    data = OODDataModule([Stream("val", Role.ID, MemorySource(samples))], **options)
    return pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False).predict(module, data)


def with_few_open_files(kept: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    module = OODModule(TinyConvNet()) if kept == "outputs" else Keeping()
    print(len(predict(module, 1200, 16, batch_size=2, num_workers=2)))


def with_little_shared_memory() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # no file, also none in /dev/shm, grows larger
    try:
        predict(OODModule(TinyConvNet()), 16, 64, batch_size=8, num_workers=1)
    except OodlitError as error:
        print(error)


@pytest.mark.parametrize("kept", ["outputs", "batches"])
def test_a_run_that_keeps_its_predictions_has_few_open_files(kept: str, tmp_path: Path) -> None:
    """600 batches with return_predictions at its default; also a module that keeps labels and groups itself."""
    done = run_function(with_few_open_files, kept, folder=tmp_path, each=[{}], timeout=300)
    check_ended(done)
    assert done[0].stdout.split()[-1] == "600"


def test_too_little_shared_memory(tmp_path: Path) -> None:
    (done,) = run_function(with_little_shared_memory, folder=tmp_path, each=[{}], timeout=300)
    assert done.stdout.startswith("data set 'val': a worker process"), done.stderr[-2000:]
    assert "/dev/shm" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def images(**options: Any) -> Stream:
    return Stream("val", Role.ID, DatasetSource([(Image.new("RGB", (2, 2)), 0)] * 4, **options))


class Unmovable(list[Any]):
    def __reduce__(self) -> Any:
        raise OSError("not to be copied")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("what", ["transform", "decode", "source"])
def test_code_that_cannot_be_sent_to_spawned_workers(method: str, what: str) -> None:
    source = DatasetSource(Unmovable([(torch.zeros(3, 2, 2), 0)]))
    stream = Stream("val", Role.ID, source) if what == "source" else images()
    options: Any = {} if what == "source" else {what: lambda _: torch.zeros(3, 2, 2)}
    loader = StreamLoader(stream, **options, num_workers=1, multiprocessing_context=method)
    with pytest.raises(InvalidArgumentError, match=rf"data set 'val': {what} .*num_workers=0"):
        list(loader)


def test_a_lambda_works_with_forked_workers() -> None:
    loader = StreamLoader(images(), lambda _: torch.zeros(3, 2, 2), num_workers=1, multiprocessing_context="fork")
    assert len(list(loader)) == 1


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that", "/dev/shm"),
        ("unable to allocate shared memory(shm) for file </torch_1_2>: No space left on device (28)", "/dev/shm"),
        ("unable to open shared memory object </torch_1_2>: Too many open files (24)", "ulimit -n"),
        ("received 0 items of ancdata", "ulimit -n"),
        ("DataLoader worker (pid(s) 7) exited unexpectedly", "smaller batch_size"),
    ],
)
def test_errors_of_pytorch_workers_are_explained(text: str, hint: str) -> None:
    error = explained(RuntimeError(text), "val")
    assert isinstance(error, DataError)
    assert hint in str(error)
    assert str(explained(RuntimeError("size mismatch"), "val")) == "size mismatch"


@pytest.mark.parametrize("role", [Role.OOD, Role.SHIFT])
def test_groups_without_names_warn(role: Role) -> None:
    samples = [Sample(str(i), torch.zeros(3, 2, 2), group=i) for i in range(3)]
    with pytest.warns(UserWarning, match=r"data set 'far': images have group numbers up to 2.*class_names"):
        list(StreamLoader(Stream("far", role, MemorySource(samples)), batch_size=2))
    list(StreamLoader(Stream("far", role, MemorySource(samples), ("a", "b", "c")), batch_size=2))
    list(StreamLoader(Stream("val", Role.ID, MemorySource(samples)), batch_size=2))
