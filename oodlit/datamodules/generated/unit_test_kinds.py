"""The unit tests by name, in the order of results, and the generation of single images."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.datamodules.generated import unit_test_images as images
from oodlit.datamodules.keys import key_digest


@dataclass(frozen=True)
class UnitTest:
    """One kind of synthetic image.

    Args:
        name: As in the published set; also the name of the OOD class in results.
        generator: Pure function of (width, height, rng), or of (image, rng) if `from_image`.
        from_image: Whether it permutes the pixels of an ID image.
        smooths: Whether it filters, and accepts `scale`.
    """

    name: str
    generator: Callable[..., Any]
    from_image: bool = False
    smooths: bool = False


UNIT_TESTS: Mapping[str, UnitTest] = {
    test.name: test
    for test in (
        UnitTest("uni", images.uni),
        UnitTest("Gaussian", images.gaussian),
        UnitTest("Rademacher", images.rademacher),
        UnitTest("pixel_perm", images.pixel_perm, from_image=True),
        UnitTest("white", images.white),
        UnitTest("black", images.black),
        UnitTest("grey", images.grey),
        UnitTest("monochrome", images.monochrome),
        UnitTest("tricolour", images.tricolour),
        UnitTest("tricolour_primary", images.tricolour_primary),
        UnitTest("horizontal_stripes", images.horizontal_stripes),
        UnitTest("vertical_stripes", images.vertical_stripes),
        UnitTest("low_freq", images.low_freq, smooths=True),
        UnitTest("low_freq_channelfullscale", images.low_freq_channelfullscale, smooths=True),
        UnitTest("low_freq_colorrange", images.low_freq_colorrange, smooths=True),
        UnitTest("low_freq_pixel_perm", images.low_freq_pixel_perm, from_image=True, smooths=True),
        UnitTest("blobs", images.blobs, smooths=True),
    )
}
"""All 17, in the published order."""

FORMATS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "PNG": ("png", {"compress_level": 1}),
    "JPEG": ("jpg", {"quality": 95, "subsampling": 0}),
}
"""File formats: extension and Pillow's options. Noise as JPEG is a different test than noise as PNG."""


def draw(
    name: str,
    width: int,
    height: int,
    *,
    index: int,
    seed: int = 0,
    image: Image.Image | None = None,
    scale: float = 1.0,
) -> UInt8[np.ndarray, "rows columns 3"]:
    """Generate one image of a unit test; the result depends only on the arguments.

    Args:
        name: One of `UNIT_TESTS`.
        width: In pixels, >= 1.
        height: In pixels, >= 1.
        index: Number of the image in the test, >= 0.
        seed: Seed of the set.
        image: The ID image whose pixels are permuted; its size overrides width and height. Only for tests `from_image`.
        scale: Factor of the sigmas of the smoothing tests; 1 (default) as published.

    Returns:
        8-bit RGB pixels of shape (height, width, 3): values in [0, 1] times 255, rounded to the nearest.

    Raises:
        UnknownNameError: There is no such test.
        InvalidArgumentError: A size, index or scale is out of range, or a required ID image is missing.

    Example:
        >>> draw("tricolour_primary", 3, 1, index=0).shape
        (1, 3, 3)
    """
    UnknownNameError.check("unit test", name, UNIT_TESTS)
    if width < 1 or height < 1 or index < 0 or not scale > 0:
        raise InvalidArgumentError(
            f"unit test {name!r}: expected width and height >= 1, index >= 0 and scale > 0; got width={width},"
            f" height={height}, index={index}, scale={scale}"
        )
    test = UNIT_TESTS[name]
    rng = np.random.Generator(np.random.Philox(key=key_digest(f"{name}/{index}/{seed}", size=16)))
    options = {"scale": scale} if test.smooths else {}
    if not test.from_image:
        values = test.generator(width, height, rng, **options)
    elif image is None:
        raise InvalidArgumentError(f"unit test {name!r} permutes the pixels of an ID image; pass it as image=...")
    else:
        values = test.generator(np.asarray(image.convert("RGB")), rng, **options)
    return np.asarray(np.rint(255.0 * values), np.uint8)


def encode(pixels: UInt8[np.ndarray, "height width 3"], format: str = "PNG") -> bytes:
    """Encode pixels as PNG, or as JPEG with quality 95 and full color resolution.

    Raises:
        UnknownNameError: The format is not one of `FORMATS`.

    Example:
        >>> encode(np.zeros((1, 1, 3), np.uint8))[1:4]
        b'PNG'
    """
    UnknownNameError.check("format of unit tests", format, FORMATS)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format, **FORMATS[format][1])
    return file.getvalue()
