"""JPEGs of every kind, and what a loader makes of them as plain values; shared by the tests of decoding on a device."""

import io
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image
from torchvision import transforms as v1

from oodlit.datamodules import MemorySource, Sample, Stream, StreamLoader
from oodlit.datamodules.decode import MAX_PIXELS
from oodlit.datamodules.device import jpegs
from oodlit.datamodules.device.jpegs import jpeg_for_device
from oodlit.roles import Role

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
    """A JPEG with a complete JPEG, including an end marker, in its Exif."""
    exif = Image.Exif()
    exif[0x010E] = encoded("RGB", size=(8, 8)).decode("latin-1")
    return encoded("RGB", exif=exif.tobytes()[:6] + exif.tobytes()[6:] + encoded("RGB", size=(8, 8)))


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded("RGB", exif=exif)


def adobe(transform: int) -> bytes:
    """A JPEG whose Adobe marker declares its three components as RGB (0) or luma and chroma (1)."""
    data = encoded("RGB")
    marker = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + bytes([transform])
    jfif = data.index(b"\xff\xe0")
    length = int.from_bytes(data[jfif + 2 : jfif + 4], "big")
    return data[:jfif] + marker + data[jfif + 2 + length :]


def with_comment_between_scans() -> bytes:
    """A progressive JPEG whose comment behind the first scan holds an end mark."""
    data = encoded("RGB", progressive=True)
    behind = data.index(b"\xff\xc4", data.index(b"\xff\xda"))
    return data[:behind] + b"\xff\xfe\x00\x06a\xff\xd9b" + data[behind:]


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
    "with a comment": with_comment_between_scans(),
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
    "half with a comment": with_comment_between_scans()[:-40],
    "half before a whole": encoded("RGB")[:-60] + encoded("RGB"),
    "without its end": encoded("RGB")[:-2],
    "a header alone": encoded("RGB")[:40],
    "too large": encoded("L", size=(300, 300)),
}


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
    assert one[1].partition(":")[0] == other[1].partition(":")[0]  # of several unusable images, another may come first
    assert len(one[0]) == len(other[0])
    for batch, like in zip(one[0], other[0], strict=True):
        image, exact = batch.pop("image"), like.pop("image")
        assert sorted(batch.pop("skipped")) == sorted(like.pop("skipped"))
        assert batch == like
        assert image.shape == exact.shape
        assert image.dtype == exact.dtype
        if not image.numel():
            continue
        # the decoder is the same on the CPU; resizing differs, bicubic most; some transforms divide by 0.2
        differences = (image - exact).abs() * 255 * 0.2
        assert differences.max() <= 26
        assert differences.mean() <= 1


def mixed(count: int = 26) -> Stream:
    kinds = [*FOR_DEVICE.values(), *FOR_WORKERS.values()]
    samples = [Sample(f"{i:02d}", kinds[i * 7 % len(kinds)], label=i, group=i % 2) for i in range(count)]
    return Stream("mixed", Role.OOD, MemorySource(samples), ("a", "b"))


def fails_on(numbers: set[int], original=jpegs._decoded):
    """A decoder that fails on files by their length."""

    def decoded(files, device):
        if any(len(file) in numbers for file in files):
            raise RuntimeError("nvjpegDecodeBatched failed: 5")
        return original(files, device)

    return decoded
