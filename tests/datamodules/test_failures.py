"""Errors of a user's own code: the sample is named and the error kept, with and without worker processes."""

import itertools
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from oodlit.base.text.readable import readable
from oodlit.datamodules.failures import Failure, WorkerTraceback
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.shards import shard_stream
from oodlit.datamodules.sources import DatasetSource, MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import InvalidArgumentError, PreprocessingError
from oodlit.roles import Role
from tests.tiny_shards import tiny_image, write_tiny_shards

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")
WORKERS = pytest.mark.parametrize("workers", [0, 2])


class TwoArgumentsError(Exception):
    """Cannot be made from its text alone, as PyTorch would."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(code, what)
        self.code = code


class StubbornError(Exception):
    """Does not survive pickle."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{code} {what}")


def plain(_: object) -> Tensor:
    return torch.zeros(1, 1, 1)


def raise_chained(_: object) -> Tensor:
    try:
        {}["a"]
    except KeyError as error:
        raise TwoArgumentsError(7, "a fault of the user's") from error
    raise AssertionError


def raise_stubborn(_: object) -> Tensor:
    raise StubbornError(7, "a fault of the user's")


def give_a_number(_: object) -> int:
    return 1


def caught(loader: StreamLoader) -> Exception:
    with pytest.raises((PreprocessingError, InvalidArgumentError)) as info:
        list(loader)
    return info.value


@WORKERS
@pytest.mark.parametrize("part", ["transform", "decode"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_fault_names_key_and_shard_and_keeps_the_error(
    tmp_path: Path, workers: int, part: str, on_error: str
) -> None:
    write_tiny_shards(tmp_path, [3, 2])
    stream = shard_stream(tmp_path, name="tiny", role=Role.OOD)
    options = {"transform": plain} | {part: raise_chained}
    error = caught(StreamLoader(stream, num_workers=workers, on_error=on_error, **options))
    first = next(iter(stream.source.read(0, 1))).key
    what = {"transform": "the transform", "decode": "the decoder"}[part]
    shard = tmp_path / "tiny-000000.tar"
    assert str(error) == (
        f"'tiny/{readable(first)}' (shard {shard}): {what} failed (TwoArgumentsError: (7, \"a fault of the user's\"))"
    )
    cause = error.__cause__
    assert isinstance(cause, TwoArgumentsError)
    assert cause.code == 7
    assert isinstance(cause.__cause__, KeyError)
    assert "in raise_chained" in "".join(traceback.format_exception(error))  # where, also from a worker


@WORKERS
def test_an_error_that_cannot_be_moved_is_told(workers: int) -> None:
    stream = Stream("s", Role.OOD, MemorySource([Sample(str(i), tiny_image(i)) for i in range(4)]))
    error = caught(StreamLoader(stream, raise_stubborn, num_workers=workers))
    assert str(error) == "'s/0': the transform failed (StubbornError: 7 a fault of the user's)"
    assert "StubbornError: 7 a fault of the user's" in "".join(traceback.format_exception(error.__cause__))


@WORKERS
def test_a_transform_that_gives_no_tensor_names_the_sample(workers: int) -> None:
    stream = Stream("s", Role.OOD, MemorySource([Sample(str(i), tiny_image(i)) for i in range(4)]))
    error = caught(StreamLoader(stream, give_a_number, num_workers=workers))
    assert str(error) == "'s/0': expected the transform to return a tensor, got int"


@WORKERS
def test_images_of_two_shapes_name_the_sample_in_one_line(workers: int) -> None:
    samples = [Sample(str(i), torch.zeros(1, 2, 2 + i % 2)) for i in range(4)]
    error = caught(StreamLoader(Stream("s", Role.OOD, MemorySource(samples)), num_workers=workers))
    assert isinstance(error, InvalidArgumentError)
    assert "at key '1'" in str(error)
    assert "\n" not in str(error)


class Faulty:
    """A data set of a user's own with a fault in its code."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if index == 1:
            raise TwoArgumentsError(7, "a fault of the user's")
        return Image.new("RGB", (2, 2)), 0


class FaultySource:
    """A source of a user's own with a fault in its code."""

    def __len__(self) -> int:
        return 4

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        for i in itertools.count(start):
            if i == 1:
                raise TwoArgumentsError(7, "a fault of the user's")
            yield Sample(str(i), torch.zeros(1, 1, 1))


@WORKERS
@pytest.mark.parametrize(
    ("source", "place"),
    [
        (DatasetSource(Faulty(), keys="abcd"), "item 1 of Faulty, key 'b': the data set failed"),
        (FaultySource(), "FaultySource failed at the sample after 's/0'"),
    ],
)
def test_a_fault_of_the_source_names_the_place(workers: int, source: object, place: str) -> None:
    error = caught(StreamLoader(Stream("s", Role.OOD, source), plain, num_workers=workers))
    assert str(error) == f"data set 's': {place} (TwoArgumentsError: (7, \"a fault of the user's\"))"
    assert isinstance(error.__cause__, TwoArgumentsError)


def test_the_stand_in_of_an_empty_batch_is_no_sample() -> None:
    stream = Stream("s", Role.OOD, MemorySource([Sample("0", b"")]))
    error = caught(StreamLoader(stream, raise_chained, on_error="skip"))
    assert str(error).startswith("data set 's', black image in place of a skipped image: the transform failed")


def test_a_chain_without_end_arrives_in_part() -> None:
    error = first = ValueError("0")
    for i in range(1, 50):
        error.__cause__ = ValueError(str(i))
        error = error.__cause__
    arrived = pickle.loads(pickle.dumps(Failure(first))).error
    texts = []
    while not isinstance(arrived, WorkerTraceback):
        texts.append(str(arrived))
        arrived = arrived.__cause__
    assert texts == [str(i) for i in range(20)]
