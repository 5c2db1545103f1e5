"""What a device cannot decode or transform is read exactly; what cannot be followed on it is refused."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from PIL import Image
from torchvision import transforms as v1

from oodlit.datamodules import ImageNetBenchmark, MemorySource, OODDataModule, Sample, Stream, StreamLoader
from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.device import decoder, jpegs
from oodlit.datamodules.device.jpegs import Jpeg, Jpegs, check_device, decode_jpegs
from oodlit.errors import DataError, InvalidArgumentError, RequirementError
from oodlit.roles import Role
from tests.datamodules.jpeg_files import (
    FOR_DEVICE,
    FOR_WORKERS,
    RESIZED,
    check_same,
    encoded,
    fails_on,
    is_for_device,
    mixed,
    outcome,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")


def test_what_a_device_cannot_decode_is_read_by_the_exact_reading(monkeypatch):
    exact = outcome(StreamLoader(mixed(), RESIZED, on_error="skip"))
    monkeypatch.setattr(jpegs, "_decoded", fails_on({len(FOR_DEVICE["grey"]), len(FOR_DEVICE["progressive"])}))
    batches = list(StreamLoader(mixed(), RESIZED, decode_on="cpu", on_error="skip"))
    rows = {row for batch in batches for row in batch["exact"].rows.values()}
    assert len(rows) == sum(map(is_for_device, (s.image for s in mixed().source.read(0, 26)))) - 2
    check_same(outcome(StreamLoader(mixed(), RESIZED, decode_on="cpu", on_error="skip")), exact)


@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_files_that_nothing_decodes_are_skipped_or_an_error(monkeypatch, on_error):
    """As if no file showed by its header that it is broken."""
    how = {"batch_size": 7, "on_error": on_error}
    exact = outcome(StreamLoader(mixed(), RESIZED, **how))
    original = jpegs.jpeg_for_device

    def all_jpegs(data, max_pixels):
        return original(data, max_pixels) or (Jpeg(data, 8, 8) if data.startswith(b"\xff\xd8") else None)

    monkeypatch.setattr("oodlit.datamodules.batches.jpeg_for_device", all_jpegs)
    device = outcome(StreamLoader(mixed(), RESIZED, decode_on="cpu", **how))
    assert exact[1] if on_error == "raise" else not exact[1]
    for batch, like in zip(device[0], exact[0], strict=True):  # CMYK and RGB components have other colours there
        batch["skipped"].sort()
        assert {**batch, "image": 0} == {**like, "image": 0}
    assert bool(device[1]) is bool(exact[1])


def test_a_batch_of_which_nothing_is_left_has_its_shape(monkeypatch):
    monkeypatch.setattr("oodlit.datamodules.batches.jpeg_for_device", lambda data, _: Jpeg(data, 8, 8))
    stream = Stream("none", Role.OOD, MemorySource([Sample("0", FOR_WORKERS["half"]), Sample("1", b"?")]))
    batches = list(StreamLoader(stream, RESIZED, decode_on="cpu", on_error="skip", batch_size=1))
    assert [batch["image"].shape for batch in batches] == [(0, 3, 10, 10)] * 2
    assert [key for batch in batches for key, _ in batch["skipped"]] == ["none/0", "none/1"]


def test_a_batch_of_which_nothing_is_left_is_on_the_device(monkeypatch):
    """Images of the CPU have no CUDA stream to record."""
    monkeypatch.setattr(decoder, "check_device", lambda device: None)
    batches = StreamLoader(mixed(), RESIZED)._batches
    meta = torch.device("meta")
    assert decoder.DeviceDecoder(batches, RESIZED, meta)._joined([]).device == meta


def test_before_a_gpu_decodes_its_current_queue_is_waited_for(monkeypatch):
    """Torchvision writes from its own CUDA stream to memory that kernels of the current stream may still read."""
    events = []
    queue = type("Queue", (), {"synchronize": lambda self: events.append("queue")})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: queue)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("all"))

    def decode_jpeg(files, **_):
        events.append(len(files))
        if len(files) > 1 or len(files[0]) == 1:
            raise RuntimeError("nvjpegDecodeBatched failed: 5")
        return [torch.zeros(3, 1, 1, dtype=torch.uint8)]

    monkeypatch.setattr("torchvision.io.decode_jpeg", decode_jpeg)
    files = [torch.zeros(size, dtype=torch.uint8) for size in (2, 1)]
    good, bad = decode_jpegs(files, torch.device("cuda:0"))
    assert good is not None
    assert bad is None
    assert events == ["queue", 2, "all", "queue", 1, "queue", 1, "all"]


NARROW = v1.Compose([v1.Resize(8, max_size=16), v1.CenterCrop(8), v1.ToTensor()])
"""An image of 655 x 1 would get 16 x 0 pixels."""


@pytest.mark.parametrize("workers", [0, 2])
def test_images_that_a_step_fails_on_are_named(workers):
    samples = [Sample("wide", encoded("RGB")), Sample("narrow", encoded("RGB", size=(655, 1)), origin="shard a.tar")]
    stream = Stream("far", Role.OOD, MemorySource(samples))
    how = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    found = [outcome(StreamLoader(stream, NARROW, decode_on=where, **how)) for where in ("cpu", None)]
    assert "'far/narrow' (shard a.tar): the transform failed (ValueError: height and width must be > 0" in found[1][1]
    check_same(*found)


def test_large_images_are_decoded_in_parts(monkeypatch):
    sizes = [(10, 10), (20, 10), (100, 100), (5, 5), (5, 5), (5, 5)]
    made = Jpegs.of([Jpeg(bytes([i]), *size) for i, size in enumerate(sizes)])
    assert [*made.parts()] == [range(6)]
    monkeypatch.setattr(jpegs, "_MOST_BYTES", 1000)
    assert [*made.parts()] == [range(2), range(2, 3), range(3, 6)]
    assert [made.file(i).tolist() for i in range(6)] == [[i] for i in range(6)]
    how = {"on_error": "skip", "batch_size": 26}
    check_same(
        outcome(StreamLoader(mixed(), RESIZED, decode_on="cpu", **how)), outcome(StreamLoader(mixed(), RESIZED, **how))
    )


def test_images_of_different_shapes_are_an_error():
    stream = Stream("s", Role.OOD, MemorySource([Sample(str(i), encoded("L", size=(8 + i, 9))) for i in range(3)]))
    for where in ("cpu", None):
        with pytest.raises(
            InvalidArgumentError,
            match=r"'s': .* one shape and dtype, got \(3, 9, 8\) .* key '(s/)?1', \(3, 9, 9\) .*without the transform",
        ):
            list(StreamLoader(stream, v1.ToTensor(), decode_on=where))


def test_time_is_counted():
    (batch,) = StreamLoader(mixed(), RESIZED, decode_on="cpu", on_error="skip")
    assert batch["seconds"].keys() == {"read", "decode", "transform"}
    assert all(value > 0 for value in batch["seconds"].values())


def test_the_exact_reading_of_a_batch_and_how_far_it_is():
    (batch,) = StreamLoader(mixed(), RESIZED, decode_on="cpu", on_error="skip")
    reading = batch["exact"]
    exact = reading.images(batch["image"])
    torch.testing.assert_close(exact, batch["image"], rtol=0, atol=2.5 / 255 / 0.2)
    wrong = exact.clone()
    row = next(iter(reading.rows.values()))
    wrong[row, 1, 2, 3] += 3 / 255 / 0.2
    assert torch.equal(reading.images(wrong), exact)
    largest, mean = reading.deviation(wrong, reading.images(wrong))
    assert largest == pytest.approx(3, rel=1e-4)
    assert mean == pytest.approx(3 / (300 * len(reading.rows)), rel=1e-4)


def test_a_file_that_only_the_device_reads_is_named(monkeypatch):
    monkeypatch.setattr("oodlit.datamodules.batches.jpeg_for_device", lambda data, _: Jpeg(data, 8, 8))
    monkeypatch.setattr(
        decoder, "decode_jpegs", lambda files, _: [torch.zeros(3, 8, 8, dtype=torch.uint8)] * len(files)
    )
    stream = Stream("s", Role.OOD, MemorySource([Sample("0", FOR_WORKERS["half"])]))
    (batch,) = StreamLoader(stream, RESIZED, decode_on="cpu")
    with pytest.raises(
        DataError, match=r"'s/0': cpu decodes this image, but workers cannot decode it .undecodable JPEG"
    ):
        batch["exact"].images(batch["image"])


def own_decoder(data: bytes) -> Image.Image:
    return decode_image(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode": partial(decode_image, reduce_to=8)}, r"only supports decode=decode_image"),
        ({"decode": own_decoder}, "got decode=<function own_decoder"),
        ({"any_size": True}, "supports neither any_size=True"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, message):
    streams = [replace(mixed(), role=Role.ID, class_names=())]
    with pytest.raises(InvalidArgumentError, match=f"decode_on_device.*{message}"):
        OODDataModule(streams, decode_on_device=True, **options)
    with pytest.raises(InvalidArgumentError, match=f"decode_on_device.*{message}"):
        OODDataModule(streams, **options).with_loading(decode_on_device=True)
    assert not OODDataModule(streams, **options).with_loading(batch_size=3).decode_on_device


def test_the_limit_of_pixels_may_be_set():
    data = OODDataModule([replace(mixed(), role=Role.ID, class_names=())], decode=partial(decode_image, max_pixels=9))
    assert data.with_loading(decode_on_device=True).decode_on_device
    assert data.with_loading(decode_on_device=True).with_loading(batch_size=2).decode_on_device


def test_benchmarks_take_it(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        ImageNetBenchmark(tmp_path, decode_on_device=True)


def test_devices_that_decode_nothing_are_refused(monkeypatch):
    with pytest.raises(RequirementError, match=r"JPEGs on the device 'meta' \(expected one of cuda, cpu\); omit"):
        StreamLoader(mixed(), RESIZED, decode_on="meta")
    monkeypatch.setattr(jpegs, "_decoded", fails_on(set(range(100_000))))
    check_device.cache_clear()
    try:
        with pytest.raises(RequirementError, match=r"the device 'cpu' \(nvjpegDecodeBatched failed: 5\); omit"):
            StreamLoader(mixed(), RESIZED, decode_on="cpu")
    finally:
        check_device.cache_clear()


def test_a_torchvision_without_decoders_is_refused(monkeypatch):
    monkeypatch.delattr("torchvision.io.decode_jpeg")
    check_device.cache_clear()
    try:
        with pytest.raises(RequirementError, match=r"device 'cpu' \(cannot import name 'decode_jpeg' .* omit"):
            StreamLoader(mixed(), RESIZED, decode_on="cpu")
    finally:
        check_device.cache_clear()


def test_without_a_transform_everything_is_as_it_is_without_the_option():
    tensors = Stream("t", Role.OOD, MemorySource([Sample("0", torch.ones(3, 2, 2))]))
    (batch,) = StreamLoader(tensors, decode_on="cpu")
    assert torch.equal(batch["image"], torch.ones(1, 3, 2, 2))
    with pytest.raises(InvalidArgumentError, match="require a transform"):
        list(StreamLoader(mixed(), decode_on="cpu"))
