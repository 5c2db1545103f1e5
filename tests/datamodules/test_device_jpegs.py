"""Batches whose JPEGs a device decodes are those that workers decode: samples, order, reasons, errors and pixels."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from oodlit.datamodules import MemorySource, Sample, Stream, StreamLoader
from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.device.jpegs import decode_jpegs, jpeg_for_device
from oodlit.datamodules.pipelines.pipeline_loader import PipelineLoader
from oodlit.datamodules.pipelines.source import pipeline_stream
from oodlit.datamodules.transforms import without_resize
from oodlit.errors import DataError
from oodlit.roles import Role
from tests.datamodules.jpeg_files import (
    CROPPED,
    FOR_DEVICE,
    FOR_WORKERS,
    RESIZED,
    check_same,
    encoded,
    is_for_device,
    mixed,
    outcome,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")


def test_what_the_device_gets():
    assert {name: is_for_device(data) for name, data in FOR_DEVICE.items()} == dict.fromkeys(FOR_DEVICE, True)
    small = {name: jpeg_for_device(data, 80_000) for name, data in FOR_WORKERS.items()}
    assert small == dict.fromkeys(FOR_WORKERS, None)


@pytest.mark.parametrize("name", FOR_DEVICE)
def test_what_the_device_gets_it_decodes_pixel_by_pixel(name):
    file = torch.frombuffer(bytearray(FOR_DEVICE[name]), dtype=torch.uint8)
    (image,) = decode_jpegs([file], torch.device("cpu"))
    assert image is not None
    assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(decode_image(FOR_DEVICE[name])))


@given(share=st.floats(0, 1), name=st.sampled_from(sorted(FOR_DEVICE)))
def test_no_cut_file_goes_to_the_device(share, name):
    data = FOR_DEVICE[name]
    cut = data[: int(share * (len(data) - 6))]  # 4 bytes lie behind one of them
    assert not is_for_device(cut)


named = st.sampled_from(sorted({**FOR_DEVICE, **FOR_WORKERS}))
photos = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["RGB", "L", "CMYK"]),
        "size": st.tuples(st.integers(1, 40), st.integers(1, 40)),
        "seed": st.integers(0, 9),
        "quality": st.integers(1, 100),
        "subsampling": st.sampled_from([0, 1, 2]),
        "progressive": st.booleans(),
    }
)
bites = st.tuples(photos, st.floats(0.01, 0.99), st.integers(0, 255), st.integers(0, 2))
"""A photo, where one of its bytes becomes another one, which, and how many bytes go."""
images = st.one_of(named, photos, bites, st.sampled_from(["tensor", "image", "error"]))


def sample_of(number: int, image: Any, group: int) -> Sample:
    error = "the disk failed" if image == "error" else None
    if isinstance(image, dict):
        content = encoded(**image)
    elif isinstance(image, tuple):
        photo, share, byte, gone = image
        whole = encoded(**photo)
        place = int(share * len(whole))
        content = whole[:place] + bytes([byte]) + whole[place + gone :]
    else:
        tensor, picture = torch.full((3, 10, 10), float(number)), Image.new("RGB", (12, 15), (number, 20, 30))
        content = {**FOR_DEVICE, **FOR_WORKERS, "tensor": tensor, "image": picture, "error": b""}[image]
    return Sample(f"{number}", content, number % 3, group, error, "shard a.tar")


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    contents=st.lists(st.tuples(images, st.integers(-1, 2)), min_size=1, max_size=9),
    batch_size=st.integers(1, 5),
    on_error=st.sampled_from(["skip", "raise"]),
    transform=st.sampled_from([RESIZED, CROPPED, without_resize(RESIZED)]),
    processes=st.integers(1, 2),
)
def test_batches_and_errors_are_those_of_workers(contents, batch_size, on_error, transform, processes):
    samples = [sample_of(number, image, group) for number, (image, group) in enumerate(contents)]
    stream = Stream("mixed", Role.OOD, MemorySource(samples), ("a", "b", "c"))
    how = {"batch_size": batch_size, "on_error": on_error, "decode": partial(decode_image, max_pixels=80_000)}
    check_same(
        outcome(StreamLoader(stream, transform, decode_on="cpu", **how)),
        outcome(StreamLoader(stream, transform, **how)),
    )


def broken() -> Stream:
    """Every way in which a sample of JPEGs can be of no use."""
    good = FOR_DEVICE["colours"]
    samples = [
        Sample("0", good, label=0, origin="shard a.tar"),
        Sample("1", good[: len(good) // 2], label=0, origin="shard a.tar"),
        Sample("2", b"", label=0, origin="shard a.tar"),
        Sample("3", good, label=-1, origin="shard a.tar"),
        Sample("4", good, error="the disk failed", origin="shard a.tar"),
        Sample("5", good, label=9, origin="shard a.tar"),
        Sample("6", good, label=1, origin="shard a.tar"),
    ]
    return Stream("bad", Role.TRAIN, MemorySource(samples), ("a", "b"))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_named_with_their_reasons(workers):
    how = {"batch_size": 3, "num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    with pytest.raises(DataError, match=r"^data set 'bad': shard a\.tar, key '1': undecodable .* on_error='skip'"):
        list(StreamLoader(broken(), RESIZED, decode_on="cpu", **how))
    batches = list(StreamLoader(broken(), RESIZED, decode_on="cpu", on_error="skip", **how))
    reasons = dict(pair for batch in batches for pair in batch["skipped"])
    assert sorted(key for batch in batches for key in batch["key"]) == ["bad/0", "bad/6"]
    assert sorted(reasons) == [f"bad/{i}" for i in range(1, 6)]
    check_same(
        outcome(StreamLoader(broken(), RESIZED, decode_on="cpu", on_error="skip", **how)),
        outcome(StreamLoader(broken(), RESIZED, on_error="skip", **how)),
    )


@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_with_worker_processes(on_error):
    how = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork", "on_error": on_error}
    device = StreamLoader(mixed(), RESIZED, decode_on="cpu", **how)
    check_same(outcome(device), outcome(StreamLoader(mixed(), RESIZED, **how)))


def test_files_of_a_batch_travel_in_one_piece_of_shared_memory():
    loader = StreamLoader(mixed(), RESIZED, decode_on="cpu", num_workers=1, on_error="skip", batch_size=20)
    readings = [batch["exact"] for batch in loader if "exact" in batch]
    assert readings
    assert all(reading.waiting.files.data.is_shared() for reading in readings)
    assert sum(len(reading.waiting.files) for reading in readings) == 13
    assert all(sample.image == b"" for reading in readings for sample in reading.waiting.samples)


def test_a_resumed_run_starts_at_the_same_batch():
    whole = [batch["key"] for batch in StreamLoader(mixed(), RESIZED, decode_on="cpu", batch_size=3, on_error="skip")]
    rest = StreamLoader(mixed(), RESIZED, decode_on="cpu", batch_size=3, on_error="skip", start=4)
    assert [batch["key"] for batch in rest] == whole[4:]


def test_pipelines_go_the_same_way():
    items = [(sample.key, sample.image, sample.label, sample.group) for sample in mixed().source.read(0, 26)]

    def loader(**how):
        stream = pipeline_stream(items, name="mixed", role=Role.OOD, count=26, class_names=("a", "b"))
        return PipelineLoader(stream, RESIZED, batch_size=4, on_error="skip", **how)

    check_same(outcome(loader(decode_on="cpu")), outcome(loader()))
