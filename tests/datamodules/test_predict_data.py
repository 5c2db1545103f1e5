"""What Lightning's predict loop makes of the data module."""

import multiprocessing
import tracemalloc
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from PIL import Image

from oodlit.base.plan import RunPlan
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.shards import ShardSource, shard_stream
from oodlit.datamodules.sources import DatasetSource, FileSource, MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role
from tests.tiny_shards import tiny_image, write_tiny_shards

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total"),
    pytest.mark.filterwarnings("ignore:.*local rank has zero length"),  # legal here
]


def numbers(name: str, role: Role, total: int) -> Stream:
    samples = [Sample(str(i), torch.full((1, 2, 2), float(i)), label=0) for i in range(total)]
    return Stream(name, role, MemorySource(samples))


def zeros(image: Image.Image) -> torch.Tensor:
    return torch.zeros(3, 2, 2)


class Keys(pl.LightningModule):
    """Notes every key with the loader that it came from."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, str]] = []
        self.batches: Counter[int] = Counter()

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> int:
        self.batches[dataloader_idx] += 1
        assert len(batch["key"]) == len(batch["image"]) == len(batch["label"]) == len(batch["group"])
        self.seen += [(dataloader_idx, key) for key in batch["key"]]
        return len(batch["key"])


def predict(data: OODDataModule) -> Keys:
    module = Keys()
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer.predict(module, data, return_predictions=False)
    return module


@pytest.mark.parametrize("num_workers", [0, 2])
def test_position_used_as_identity(tmp_path: Path, num_workers: int) -> None:
    keys = write_tiny_shards(tmp_path, [5, 3], role=Role.ID)
    module = predict(OODDataModule([shard_stream(tmp_path)], transform=zeros, batch_size=4, num_workers=num_workers))
    assert Counter(module.seen) == Counter((0, f"tiny/{key}") for key in keys)


def test_streamed_data_repeated_by_workers() -> None:
    module = predict(OODDataModule([numbers("id", Role.ID, 10)], num_workers=2, batch_size=3))
    assert Counter(module.seen) == Counter((0, f"id/{i}") for i in range(10))


def test_special_case_for_one_loader() -> None:
    one = predict(OODDataModule([numbers("id", Role.ID, 10)], batch_size=6))
    assert one.seen == [(0, f"id/{i}") for i in range(10)]
    two = predict(OODDataModule([numbers("far", Role.OOD, 5), numbers("id", Role.ID, 10)], batch_size=6))
    assert two.seen == [(0, f"id/{i}") for i in range(10)] + [(1, f"far/{i}") for i in range(5)]


AWKWARD = {
    "fault": ([5, 3], 4),
    "one sample": ([1], 4),
    "an empty shard": ([0, 3, 0, 2], 2),
    "one more than full": ([4, 4, 1], 4),
    "one less than full": ([4, 3], 4),
    "singles": ([1, 1, 1, 1, 1], 1),
    "larger than the set": ([2, 5], 100),
}


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("case", AWKWARD)
def test_length_arithmetic(tmp_path: Path, case: str, workers: int) -> None:
    """An exact length for any shards, workers and processes; partial batches are kept, and Lightning agrees."""
    lengths, batch_size = AWKWARD[case]
    keys = write_tiny_shards(tmp_path, lengths, role=Role.ID)
    stream = shard_stream(tmp_path)
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers}
    for world_size in (1, 2):
        found: list[str] = []
        for rank in range(world_size):
            loader = StreamLoader(stream, zeros, rank=rank, world_size=world_size, **options)
            batches = [batch["key"] for batch in loader]
            sizes = [len(batch) for batch in batches]
            found += [key for batch in batches for key in batch]
            assert len(sizes) == len(loader)
            assert sum(sizes) == loader.num_samples
            assert 0 not in sizes
            assert max(sizes, default=0) <= batch_size
            assert len(loader) >= -(-loader.num_samples // batch_size)
        assert sorted(found) == sorted(f"tiny/{key}" for key in keys)
    data = OODDataModule([stream, numbers("far", Role.OOD, 3)], transform=zeros, **options)
    announced = [len(loader) for loader in data.predict_dataloader()]
    module = predict(data)
    assert module.trainer.num_predict_batches == announced
    assert module.batches == Counter(dict(enumerate(announced)))


def test_length_of_the_fault_itself(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path, [5, 3], role=Role.ID)
    lengths = [len(StreamLoader(shard_stream(tmp_path), zeros, batch_size=4, num_workers=n)) for n in range(4)]
    assert lengths == [2, 2, 2, 3]  # three workers read 2, 3 and 3 samples


def test_lightning_has_nothing_to_warn_about() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        predict(OODDataModule([numbers("id", Role.ID, 4), numbers("far", Role.OOD, 3)], num_workers=1))
    texts = [str(warning.message) for warning in caught]
    assert not [text for text in texts if "__len__" in text or "sampler" in text or "indices" in text], texts


def test_train_stream_is_left_out_when_nothing_needs_it() -> None:
    data = OODDataModule([numbers("far", Role.OOD, 1), numbers("id", Role.ID, 1), numbers("train", Role.TRAIN, 1)])
    assert [stream.name for stream in data.active_streams] == ["train", "id", "far"]
    data.trainer = SimpleNamespace(callbacks=[SimpleNamespace(plan=RunPlan(use_train=False))])
    assert [stream.name for stream in data.active_streams] == ["id", "far"]
    assert [loader.stream.name for loader in data.predict_dataloader()] == ["id", "far"]


def test_streams_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="name 'a' occurs twice"):
        OODDataModule([numbers("a", Role.ID, 1), numbers("a", Role.OOD, 1)])
    with pytest.raises(InvalidArgumentError, match="expected exactly one stream with role 'id', got none"):
        OODDataModule([numbers("a", Role.OOD, 1)])
    with pytest.raises(InvalidArgumentError, match="got a, b; every metric"):
        OODDataModule([numbers("a", Role.ID, 1), numbers("b", Role.ID, 1)])
    with pytest.raises(DataError, match="data set 'b' has no samples"):
        OODDataModule([numbers("a", Role.ID, 1), numbers("b", Role.OOD, 0)])
    for name in ("", "a/b", " a", "a\n"):
        with pytest.raises(InvalidArgumentError, match="expected printable"):
            numbers(name, Role.OOD, 1)


def test_images_by_key(tmp_path: Path) -> None:
    keys = write_tiny_shards(tmp_path / "s", [3, 3])
    (tmp_path / "f.png").write_bytes(tiny_image(9))
    pixels = np.full((2, 2), 7, np.uint8)
    streams = [
        shard_stream(tmp_path / "s"),
        Stream("files", Role.ID, FileSource([tmp_path / "f.png"])),
        Stream("items", Role.OOD, DatasetSource([(Image.fromarray(pixels), 0)])),
        Stream(
            "tensors",
            Role.OOD,
            MemorySource([Sample("0", torch.full((1, 2, 3), 0.5)), Sample("1", -torch.ones(3, 1, 1))]),
        ),
    ]
    data = OODDataModule(streams)
    wanted = [f"tiny/{keys[4]}", f"tiny/{keys[0]}", "files/f%2Epng", "items/000000", "tensors/0"]
    images = data.read_images(wanted)
    assert sorted(images) == sorted(wanted)
    assert all(image.mode == "RGB" for image in images.values())
    assert images["items/000000"].getpixel((0, 0)) == (7, 7, 7)
    assert images["tensors/0"].size == (3, 2)
    assert images["tensors/0"].getpixel((0, 0)) == (128, 128, 128)
    assert images[f"tiny/{keys[4]}"].getpixel((0, 0)) != images[f"tiny/{keys[0]}"].getpixel((0, 0))
    with pytest.raises(DataError, match=r"1 of 1 keys \(first: 'no'\) was not found in"):
        data.read_images(["tiny/no"])
    assert data.read_images(["tensors/1"])["tensors/1"].getpixel((0, 0)) == (0, 0, 0)  # constant, outside [0, 1]
    with pytest.raises(InvalidArgumentError, match="no stream is called 'nowhere'"):
        data.read_images(["nowhere/0"])


def test_memory_is_flat_in_the_number_of_shards(tmp_path: Path) -> None:
    peaks = []
    for name, shards in (("few", 2), ("many", 40)):
        write_tiny_shards(tmp_path / name, [8] * shards, size=(64, 64))
        source = ShardSource(tmp_path / name)
        tracemalloc.start()
        for _ in source.read(0, len(source)):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + 20_000


# Real processes. One launch per world size holds every case.

CASES = {
    "even": ([7], 2),  # samples duplicated to even out ranks
    "uneven shards": ([5, 1, 1], 2),  # collective inside the data loop
    "fewer than ranks": ([1], 4),
    "many shards": ([2, 1, 3, 1, 1, 2, 1], 3),
}


def rank_main(rank: int, world_size: int, folder: str, queue: "multiprocessing.Queue[Any]") -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
    )
    try:
        for name, (_, batch_size) in CASES.items():
            for num_workers in (0, 1, 3):
                streams = [shard_stream(f"{folder}/{name}")]
                data = OODDataModule(streams, transform=zeros, batch_size=batch_size, num_workers=num_workers)
                (loader,) = data.predict_dataloader()
                batches = list(loader)
                assert len(batches) == len(loader)
                queue.put((name, num_workers, [key for batch in batches for key in batch["key"]]))
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.mark.ddp
@pytest.mark.parametrize("world_size", [2, 3])
def test_union_over_real_processes_is_exact(tmp_path: Path, world_size: int) -> None:
    keys = {name: write_tiny_shards(tmp_path / name, lengths, role=Role.ID) for name, (lengths, _) in CASES.items()}
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [
        context.Process(target=rank_main, args=(rank, world_size, str(tmp_path), queue)) for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    found: dict[tuple[str, int], Counter[str]] = {}
    for _ in range(world_size * len(CASES) * 3):
        name, num_workers, part = queue.get(timeout=120)
        found.setdefault((name, num_workers), Counter()).update(part)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(found) == len(CASES) * 3
    for (name, _), counted in found.items():
        assert counted == Counter(f"tiny/{key}" for key in keys[name])


class Write(Keys):
    """Leaves the keys of each rank in a file."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def on_predict_end(self) -> None:
        Path(self.folder, f"rank{self.global_rank}").write_text("\n".join(f"{i} {key}" for i, key in self.seen))


@pytest.mark.ddp
def test_lightning_with_two_processes_one_of_them_without_samples(tmp_path: Path) -> None:
    data = OODDataModule([numbers("id", Role.ID, 7), numbers("far", Role.OOD, 1)], batch_size=2, num_workers=1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_fork",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.predict(Write(str(tmp_path)), data, return_predictions=False)
    lines = [line for rank in range(2) for line in (tmp_path / f"rank{rank}").read_text().splitlines()]
    assert Counter(lines) == Counter([f"0 id/{i}" for i in range(7)] + ["1 far/0"])
