"""StreamLoader: every sample exactly once, exact lengths, one policy for bad samples."""

import math
import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from oodlit.datamodules.batches import reader_range
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.sources import DatasetSource, MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role
from tests.tiny_shards import tiny_image

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")  # more than the machine has


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255


def numbers(total: int) -> Stream:
    """A stream of tensors whose value is their position."""
    samples = [Sample(str(i), torch.full((1, 2, 2), float(i)), label=i % 3, group=i % 2) for i in range(total)]
    return Stream("numbers", Role.OOD, MemorySource(samples), ("a", "b"))


@given(st.integers(0, 60), st.integers(1, 9))
def test_ranges_are_disjoint_and_cover_everything(total: int, readers: int) -> None:
    ranges = [reader_range(total, reader, readers) for reader in range(readers)]
    assert [position for part in ranges for position in part] == list(range(total))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@given(st.integers(0, 40), st.integers(1, 7), st.integers(1, 5))
def test_every_sample_arrives_once_in_order_with_its_own_fields(total: int, batch_size: int, world_size: int) -> None:
    stream = numbers(total)
    keys: list[str] = []
    for rank in range(world_size):
        loader = StreamLoader(stream, batch_size=batch_size, rank=rank, world_size=world_size)
        batches = list(loader)
        assert len(batches) == len(loader) == math.ceil(loader.num_samples / batch_size)
        for batch in batches:
            positions = batch["image"][:, 0, 0, 0].long()
            assert batch["key"] == [f"numbers/{i}" for i in positions.tolist()]
            assert torch.equal(batch["label"], positions % 3)
            assert torch.equal(batch["group"], positions % 2)
            keys += batch["key"]
    assert keys == [f"numbers/{i}" for i in range(total)]


@pytest.mark.parametrize(("workers", "context"), [(1, "fork"), (3, "fork")])
def test_workers_read_disjoint_parts(workers: int, context: str) -> None:
    loader = StreamLoader(numbers(11), batch_size=2, num_workers=workers, multiprocessing_context=context)
    batches = list(loader)
    assert len(batches) == len(loader)
    assert sorted(key for batch in batches for key in batch["key"]) == sorted(f"numbers/{i}" for i in range(11))
    again = [batch["key"] for batch in loader]
    assert again == [batch["key"] for batch in batches]


@pytest.mark.parametrize("workers", [0, 1])
def test_reading_leaves_the_random_state_alone(workers: int) -> None:
    before = torch.get_rng_state()
    list(StreamLoader(numbers(3), num_workers=workers))
    assert torch.equal(torch.get_rng_state(), before)


def test_it_is_no_torch_loader_so_that_lightning_leaves_it_alone() -> None:
    loader = StreamLoader(numbers(3))
    assert not isinstance(loader, torch.utils.data.DataLoader)
    assert not hasattr(loader, "dataset")


def bad_stream(role: Role = Role.OOD) -> Stream:
    good = tiny_image(1)
    samples = [
        Sample("0", good, label=0, origin="shard a.tar"),
        Sample("1", good[: len(good) // 2], label=0, origin="shard a.tar"),
        Sample("2", b"", label=0, origin="shard a.tar"),
        Sample("3", good, label=-1, origin="shard a.tar"),
        Sample("4", good, error="the disk failed", origin="shard a.tar"),
    ]
    return Stream("bad", role, MemorySource(samples))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_is_fatal_and_named(workers: int) -> None:
    loader = StreamLoader(bad_stream(), to_tensor, num_workers=workers)
    with pytest.raises(DataError, match=r"^data set 'bad': shard a\.tar, key '1': undecodable .* on_error='skip'"):
        list(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_skipped_samples_are_listed_and_the_length_stays(workers: int, batch_size: int) -> None:
    loader = StreamLoader(bad_stream(), to_tensor, num_workers=workers, batch_size=batch_size, on_error="skip")
    batches = list(loader)
    assert len(batches) == len(loader)
    assert sorted(key for batch in batches for key in batch["key"]) == ["bad/0", "bad/3"]
    reasons = dict(pair for batch in batches for pair in batch["skipped"])
    assert sorted(reasons) == ["bad/1", "bad/2", "bad/4"]
    assert reasons["bad/4"] == "the disk failed"
    for batch in batches:
        assert batch["image"].shape == (len(batch["key"]), 3, *((8, 8) if batch["key"] else batch["image"].shape[2:]))
        assert len(batch["key"]) == len(batch["label"]) == len(batch["group"])


def test_a_batch_without_rows_has_the_shape_of_the_transform() -> None:
    stream = Stream("none", Role.OOD, MemorySource([Sample("0", b"")]))
    (batch,) = StreamLoader(stream, lambda image: torch.zeros(3, 5, 7), on_error="skip")
    assert batch["image"].shape == (0, 3, 5, 7)
    assert len(batch["skipped"]) == 1


def test_training_images_need_labels() -> None:
    loader = StreamLoader(Stream("t", Role.TRAIN, MemorySource([Sample("0", tiny_image(0))])), to_tensor)
    with pytest.raises(DataError, match=r"data set 't': key '0': training images require a label"):
        list(loader)


@pytest.mark.parametrize(
    ("role", "label", "group", "message"),
    [
        (Role.OOD, -1, 2, "group 2 is out of range for 2 class names"),
        (Role.SHIFT, 0, -1, "group -1 is out of range for 2 class names"),
        (Role.ID, 2, -1, "label 2 is out of range for 2 class names"),
    ],
)
def test_indices_without_a_name_are_unusable(role: Role, label: int, group: int, message: str) -> None:
    stream = Stream("s", role, MemorySource([Sample("0", torch.zeros(1, 2, 2), label, group)]), ("a", "b"))
    with pytest.raises(DataError, match=f"data set 's': key '0': {message}"):
        list(StreamLoader(stream))
    assert [batch["skipped"] for batch in StreamLoader(stream, on_error="skip")] == [[("s/0", message)]]


@pytest.mark.parametrize("names", [("a", "two\nlines"), ("a", ""), ("a", "a"), ("a", "caf\udce9")])
def test_class_names_that_no_table_can_show(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'s': (class name|two classes are called)"):
        Stream("s", Role.OOD, MemorySource([]), names)


def test_images_without_transform_are_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="require a transform; pass"):
        list(StreamLoader(bad_stream()))


def test_images_of_different_shape_are_an_error() -> None:
    stream = Stream("s", Role.OOD, MemorySource([Sample("0", torch.zeros(3, 2, 2)), Sample("1", torch.zeros(3, 2, 3))]))
    with pytest.raises(
        InvalidArgumentError, match=r"\(3, 2, 2\) \(torch\.float32\) and, at key '1', \(3, 2, 3\) \(torch"
    ):
        list(StreamLoader(stream))


def test_images_of_different_type_are_an_error() -> None:
    images = torch.zeros(3, 2, 2), torch.zeros(3, 2, 2, dtype=torch.float64)
    stream = Stream("s", Role.OOD, MemorySource([Sample(str(i), image) for i, image in enumerate(images)]))
    with pytest.raises(
        InvalidArgumentError, match=r"\(torch\.float32\) and, at key '1', \(3, 2, 2\) \(torch\.float64\)"
    ):
        list(StreamLoader(stream))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_hold_the_images_and_their_type(dtype: torch.dtype, workers: int) -> None:
    images = [torch.arange(6).view(1, 2, 3).add(i).to(dtype).transpose(1, 2) for i in range(5)]
    stream = Stream("s", Role.OOD, MemorySource([Sample(str(i), image) for i, image in enumerate(images)]))
    batches = [batch["image"] for batch in StreamLoader(stream, batch_size=2, num_workers=workers)]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert torch.equal(torch.cat(batches), torch.stack(images))
    assert {batch.dtype for batch in batches} == {dtype}
    assert all(batch.is_contiguous() for batch in batches)
    assert {batch.is_shared() for batch in batches} == {bool(workers)}


class Liar:
    """A source that gives `given` samples and announces `announced`."""

    def __init__(self, given: list[str], announced: int) -> None:
        self.given, self.announced = given, announced

    def __len__(self) -> int:
        return self.announced

    def read(self, start: int, stop: int):
        yield from (Sample(key, torch.zeros(1, 1, 1), origin="shard z.tar") for key in self.given[start:stop])


def test_a_source_that_is_too_short_is_fatal() -> None:
    with pytest.raises(DataError, match=r"expected 3 samples at positions 0 to 2, but \w+ returned 2; correct read"):
        list(StreamLoader(Stream("s", Role.OOD, Liar(["a", "b"], 3))))


def test_a_repeated_key_is_fatal() -> None:
    stream = Stream("s", Role.OOD, Liar(["a", "b", "a"], 3))
    with pytest.raises(DataError, match=r"key 'a' occurs more than once, first in shard z\.tar"):
        list(StreamLoader(stream, batch_size=1, num_workers=2))


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"num_workers": -1}, {"rank": 2, "world_size": 2}])
def test_numbers_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"(batch_size|num_workers) to be an integer|0 <= rank"):
        StreamLoader(numbers(3), **options)


def test_map_style_data_sets() -> None:
    items = [(Image.new("L", (2, 2), i), i) for i in range(4)]
    source = DatasetSource(items, groups=[0, 0, 1, 1])
    (batch,) = StreamLoader(Stream("d", Role.SHIFT, source, ("a", "b")), to_tensor)
    assert batch["key"] == ["d/000000", "d/000001", "d/000002", "d/000003"]
    assert batch["label"].tolist() == [0, 1, 2, 3]
    assert batch["group"].tolist() == [0, 0, 1, 1]
    assert batch["image"].shape == (4, 3, 2, 2)
    with pytest.raises(InvalidArgumentError, match="expected keys to have one entry per item, got 3 for 4 items"):
        DatasetSource(items, keys=["a", "b", "c"])
    with pytest.raises(InvalidArgumentError, match="key 'a' occurs twice"):
        DatasetSource(items, keys=["a", "b", "c", "a"])


class Fatal:
    """A source that kills its reader, like a machine that runs out of memory."""

    def __len__(self) -> int:
        return 4

    def read(self, start: int, stop: int):
        yield Sample(str(start), torch.zeros(1, 1, 1))
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_killed_worker_is_fatal() -> None:
    loader = StreamLoader(Stream("s", Role.OOD, Fatal()), num_workers=1, batch_size=1, multiprocessing_context="fork")
    with pytest.raises(DataError, match=r"data set 's': a worker process died .*; if the machine ran out of memory"):
        list(loader)


def broken_transform(image: Image.Image) -> Tensor:
    raise RuntimeError("a fault in the user's code")


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_the_transform_are_never_skipped(workers: int) -> None:
    loader = StreamLoader(bad_stream(), broken_transform, num_workers=workers, on_error="skip")
    with pytest.raises(RuntimeError, match="a fault in the user's code") as caught:
        list(loader)
    assert not isinstance(caught.value, DataError)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": "2"}, {"num_workers": -1}, {"num_workers": 1.5}])
def test_sizes_are_checked_before_a_run(options):
    stream = Stream("mine", Role.ID, MemorySource([Sample("0", torch.zeros(3, 2, 2))]))
    message = f"expected {next(iter(options))} to be an integer >= |Type-check error"
    for make in (StreamLoader, lambda stream, **given: OODDataModule([stream], **given)):
        with pytest.raises((InvalidArgumentError, TypeError), match=message):
            make(stream, **options)
    with pytest.raises((InvalidArgumentError, TypeError), match=message):
        OODDataModule([stream]).with_loading(**options)
    with pytest.raises((InvalidArgumentError, TypeError), match=r"a list of streams, got .* 'mine'|Type-check"):
        OODDataModule(stream)
