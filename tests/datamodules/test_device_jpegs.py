"""Batches whose JPEGs a device decodes are those that workers decode: samples, order, reasons, errors and pixels."""

import io
import warnings
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as v1

from oodlit.datamodules import ImageNetBenchmark, MemorySource, OODDataModule, Sample, Stream, StreamLoader
from oodlit.datamodules.decode import MAX_PIXELS, decode_image
from oodlit.datamodules.device import decoder, jpegs
from oodlit.datamodules.device.jpegs import Jpeg, Jpegs, check_device, decode_jpegs, jpeg_for_device
from oodlit.datamodules.pipelines.loader import PipelineLoader
from oodlit.datamodules.pipelines.source import pipeline_stream
from oodlit.datamodules.transforms import without_resize
from oodlit.errors import DataError, InvalidArgumentError, RequirementError
from oodlit.roles import Role

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")

RESIZED = v1.Compose(
    [v1.Resize(12, v1.InterpolationMode.BICUBIC), v1.CenterCrop(10), v1.ToTensor(), v1.Normalize((0.4, 0.5, 0.6), 0.2)]
)
CROPPED = v1.Compose([v1.CenterCrop(10), v1.ToTensor()])


def encoded(mode: str, *, size: tuple[int, int] = (23, 17), seed: int = 0, format: str = "JPEG", **options) -> bytes:
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.convert(mode).save(file, format, **options)
    return file.getvalue()


@lru_cache
def with_preview() -> bytes:
    """A JPEG that carries a whole JPEG in its Exif, with an end mark of its own."""
    exif = Image.Exif()
    exif[0x010E] = encoded("RGB", size=(8, 8)).decode("latin-1")
    return encoded("RGB", exif=exif.tobytes()[:6] + exif.tobytes()[6:] + encoded("RGB", size=(8, 8)))


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded("RGB", exif=exif)


def adobe(transform: int) -> bytes:
    """A JPEG whose Adobe marker says that its three components are RGB (0) or luma and chroma (1)."""
    data = encoded("RGB")
    marker = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + bytes([transform])
    jfif = data.index(b"\xff\xe0")
    length = int.from_bytes(data[jfif + 2 : jfif + 4], "big")
    return data[:jfif] + marker + data[jfif + 2 + length :]


def is_for_device(data: bytes) -> bool:
    return jpeg_for_device(data, MAX_PIXELS) is not None


FOR_DEVICE = {
    "colours": encoded("RGB"),
    "grey": encoded("L"),
    "progressive": encoded("RGB", progressive=True, quality=30),
    "4:4:4": encoded("RGB", subsampling=0),
    "4:2:2": encoded("RGB", subsampling=1),
    "restarts": encoded("RGB", restart_marker_blocks=1),
    "adobe": adobe(1),
    "turned": turned(),
    "with a preview": with_preview(),
    "with bytes behind": encoded("RGB") + b"more",
}
FOR_WORKERS = {
    "cmyk": encoded("CMYK"),
    "adobe rgb": adobe(0),
    "png": encoded("RGB", format="PNG"),
    "palette": encoded("P", format="PNG"),
    "webp": encoded("RGB", format="WEBP"),
    "empty": b"",
    "noise": bytes(range(200)),
    "half": encoded("RGB")[:-60],
    "half with a preview": with_preview()[:-40],
    "without its end": encoded("RGB")[:-2],
    "a header alone": encoded("RGB")[:40],
    "too large": encoded("L", size=(300, 300)),
}


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
    error = "the disk said no" if image == "error" else None
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


def outcome(loader: StreamLoader) -> tuple[list[dict[str, Any]], str]:
    """Batches as plain values, and the error that ended them."""
    batches, error = [], ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of broken Exif
        try:
            for batch in loader:
                kept = {name: batch[name] for name in ("key", "skipped")}
                kept |= {name: batch[name].tolist() for name in ("label", "group")}
                batches.append(kept | {"image": batch["image"]})
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
    return batches, error


def check_same(one: tuple[list[dict[str, Any]], str], other: tuple[list[dict[str, Any]], str]) -> None:
    assert one[1] == other[1]
    assert len(one[0]) == len(other[0])
    for batch, like in zip(one[0], other[0], strict=True):
        image, exact = batch.pop("image"), like.pop("image")
        assert batch == like
        assert image.shape == exact.shape
        assert image.dtype == exact.dtype
        assert torch.equal(image, exact)  # Pillow's resizing, and on the CPU its decoder


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


def mixed(count: int = 26) -> Stream:
    kinds = [*FOR_DEVICE.values(), *FOR_WORKERS.values()]
    samples = [Sample(f"{i:02d}", kinds[i * 5 % len(kinds)], label=i, group=i % 2) for i in range(count)]
    return Stream("mixed", Role.OOD, MemorySource(samples), ("a", "b"))


def broken() -> Stream:
    """Every way in which a sample of JPEGs can be of no use."""
    good = FOR_DEVICE["colours"]
    samples = [
        Sample("0", good, label=0, origin="shard a.tar"),
        Sample("1", good[: len(good) // 2], label=0, origin="shard a.tar"),
        Sample("2", b"", label=0, origin="shard a.tar"),
        Sample("3", good, label=-1, origin="shard a.tar"),
        Sample("4", good, error="the disk said no", origin="shard a.tar"),
        Sample("5", good, label=9, origin="shard a.tar"),
        Sample("6", good, label=1, origin="shard a.tar"),
    ]
    return Stream("bad", Role.TRAIN, MemorySource(samples), ("a", "b"))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_named_with_their_reasons(workers):
    how = {"batch_size": 3, "num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    with pytest.raises(DataError, match=r"^stream 'bad': shard a\.tar, key '1': undecodable .* on_error='skip'"):
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


def test_a_run_that_goes_on_starts_at_the_same_batch():
    whole = [batch["key"] for batch in StreamLoader(mixed(), RESIZED, decode_on="cpu", batch_size=3, on_error="skip")]
    rest = StreamLoader(mixed(), RESIZED, decode_on="cpu", batch_size=3, on_error="skip", start=4)
    assert [batch["key"] for batch in rest] == whole[4:]


def test_pipelines_go_the_same_way():
    items = [(sample.key, sample.image, sample.label, sample.group) for sample in mixed().source.read(0, 26)]

    def loader(**how):
        stream = pipeline_stream(items, name="mixed", role=Role.OOD, count=26, class_names=("a", "b"))
        return PipelineLoader(stream, RESIZED, batch_size=4, on_error="skip", **how)

    check_same(outcome(loader(decode_on="cpu")), outcome(loader()))


def fails_on(numbers: set[int], original=jpegs._decoded):
    """A decoder that fails on files by their length."""

    def decoded(files, device):
        if any(len(file) in numbers for file in files):
            raise RuntimeError("nvjpegDecodeBatched failed: 5")
        return original(files, device)

    return decoded


def test_what_a_device_cannot_decode_is_read_by_the_exact_reading(monkeypatch):
    exact = outcome(StreamLoader(mixed(), RESIZED, on_error="skip"))
    monkeypatch.setattr(jpegs, "_decoded", fails_on({len(FOR_DEVICE["grey"]), len(FOR_DEVICE["progressive"])}))
    batches = list(StreamLoader(mixed(), RESIZED, decode_on="cpu", on_error="skip"))
    rows = {row for batch in batches for row in batch["exact"].rows.values()}
    assert len(rows) == sum(map(is_for_device, (s.image for s in mixed().source.read(0, 26)))) - 2
    check_same(outcome(StreamLoader(mixed(), RESIZED, decode_on="cpu", on_error="skip")), exact)


@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_files_that_nothing_decodes_are_listed_in_their_place(monkeypatch, on_error):
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
        assert {**batch, "image": 0} == {**like, "image": 0}
    assert device[1] == exact[1]


def test_a_batch_of_which_nothing_is_left_has_its_shape(monkeypatch):
    monkeypatch.setattr("oodlit.datamodules.batches.jpeg_for_device", lambda data, _: Jpeg(data, 8, 8))
    stream = Stream("none", Role.OOD, MemorySource([Sample("0", FOR_WORKERS["half"]), Sample("1", b"?")]))
    batches = list(StreamLoader(stream, RESIZED, decode_on="cpu", on_error="skip", batch_size=1))
    assert [batch["image"].shape for batch in batches] == [(0, 3, 10, 10)] * 2
    assert [key for batch in batches for key, _ in batch["skipped"]] == ["none/0", "none/1"]


def test_a_batch_of_which_nothing_is_left_is_on_the_device(monkeypatch):
    """Whose queue is told of it: images of the CPU know no queues."""
    monkeypatch.setattr(decoder, "check_device", lambda device: None)
    batches = StreamLoader(mixed(), RESIZED)._batches
    meta = torch.device("meta")
    assert decoder.DeviceDecoder(batches, RESIZED, meta)._joined([]).device == meta


def test_before_a_gpu_decodes_its_current_queue_is_waited_for(monkeypatch):
    """Torchvision takes memory that kernels of that queue may still read, and writes to it from a queue of its own."""
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
    assert "'far/narrow' (shard a.tar): the transform failed: ValueError: height and width must be > 0" in found[1][1]
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
            InvalidArgumentError, match=r"'s': images of one batch have shapes \(3, 9, 8\) .* key '?s?/?1"
        ):
            list(StreamLoader(stream, v1.ToTensor(), decode_on=where))


def test_time_is_counted():
    (batch,) = StreamLoader(mixed(), RESIZED, decode_on="cpu", on_error="skip")
    assert batch["seconds"].keys() == {"read", "decode", "transform"}
    assert all(value > 0 for value in batch["seconds"].values())


def test_the_exact_reading_of_a_batch_and_how_far_it_is():
    (batch,) = StreamLoader(mixed(), RESIZED, decode_on="cpu", on_error="skip")
    reading = batch["exact"]
    assert torch.equal(reading.images(batch["image"]), batch["image"])
    wrong = batch["image"].clone()
    row = next(iter(reading.rows.values()))
    wrong[row, 1, 2, 3] += 3 / 255 / 0.2
    assert torch.equal(reading.images(wrong), batch["image"])
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
    with pytest.raises(DataError, match="'s/0': cpu decodes it, but read exactly it cannot be used: undecodable JPEG"):
        batch["exact"].images(batch["image"])


def own_decoder(data: bytes) -> Image.Image:
    return decode_image(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"decode": partial(decode_image, reduce_to=8)},
            r"goes with decode=decode_image, or its max_pixels, and not with",
        ),
        ({"decode": own_decoder}, "and not with decode=<function own_decoder"),
        ({"any_size": True}, "images that keep their sizes .* are not compared with the exact reading; leave it out"),
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
    with pytest.raises(DataError, match="is not there"):
        ImageNetBenchmark(tmp_path, decode_on_device=True)


def test_devices_that_decode_nothing_are_refused(monkeypatch):
    with pytest.raises(RequirementError, match=r"JPEGs on the device 'meta' \(it is none of cuda, cpu\); leave it out"):
        StreamLoader(mixed(), RESIZED, decode_on="meta")
    monkeypatch.setattr(jpegs, "_decoded", fails_on(set(range(100_000))))
    check_device.cache_clear()
    try:
        with pytest.raises(RequirementError, match=r"the device 'cpu' \(nvjpegDecodeBatched failed: 5\); leave it out"):
            StreamLoader(mixed(), RESIZED, decode_on="cpu")
    finally:
        check_device.cache_clear()


def test_a_torchvision_without_decoders_is_refused(monkeypatch):
    monkeypatch.delattr("torchvision.io.decode_jpeg")
    check_device.cache_clear()
    try:
        with pytest.raises(RequirementError, match=r"device 'cpu' \(cannot import name 'decode_jpeg' .* leave it out"):
            StreamLoader(mixed(), RESIZED, decode_on="cpu")
    finally:
        check_device.cache_clear()


def test_without_a_transform_everything_is_as_it_is_without_the_option():
    tensors = Stream("t", Role.OOD, MemorySource([Sample("0", torch.ones(3, 2, 2))]))
    (batch,) = StreamLoader(tensors, decode_on="cpu")
    assert torch.equal(batch["image"], torch.ones(1, 3, 2, 2))
    with pytest.raises(InvalidArgumentError, match="no transform is set"):
        list(StreamLoader(mixed(), decode_on="cpu"))
