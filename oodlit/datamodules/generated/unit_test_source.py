"""Unit tests as a source: generated when they are read, at the sizes of ID images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Int64
from PIL import Image

from oodlit.base.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.base.roles import Role
from oodlit.datamodules.decode import Decode, decode_image, image_size, max_pixels_of
from oodlit.datamodules.generated.id_images import decode_sample
from oodlit.datamodules.generated.unit_test_kinds import FORMATS, UNIT_TESTS, draw, encode
from oodlit.datamodules.keys import escape_key
from oodlit.datamodules.shards.writer import Entry
from oodlit.datamodules.sources import IndexedSource, MemorySource
from oodlit.datamodules.stream import Sample, Source, Stream, pick_samples
from oodlit.datamodules.subsets import SampleFacts

_RUN = 4


@dataclass(frozen=True)
class Template:
    """Size and format of one image per unit test.

    Args:
        width: In pixels, >= 1.
        height: In pixels, >= 1.
        format: "PNG" (default) or "JPEG".
        position: Position in the ID source of the image whose pixels are permuted; -1 = none.
    """

    width: int
    height: int
    format: str = "PNG"
    position: int = -1


class UnitTestSource(IndexedSource):
    """Images of the unit tests, test by test; image i of a test has the size and format of template i.

    Images are encoded and decoded as in shards, so that both have the same keys and pixels.

    Args:
        templates: One per image of each test.
        images: ID images for the tests that permute pixels.
        tests: Names of the tests, in the order of the groups. Default: all 17.
        seed: See `draw`.
        scale: See `draw`.
        decode: Decoder of the ID images; see `StreamLoader`.

    Raises:
        InvalidArgumentError: There is no template, or a test requires ID images and none are given.
        UnknownNameError: There is no such test or format.

    Example:
        >>> source = UnitTestSource([Template(5, 4)], tests=["black", "blobs"])
        >>> [sample.key for sample in source.read(0, 2)]
        ['black/0000%2Epng', 'blobs/0000%2Epng']
    """

    def __init__(
        self,
        templates: Sequence[Template],
        *,
        images: Source | None = None,
        tests: Sequence[str] = tuple(UNIT_TESTS),
        seed: int = 0,
        scale: float = 1.0,
        decode: Decode = decode_image,
    ) -> None:
        self.templates, self.images, self.tests = tuple(templates), images, tuple(tests)
        self.seed, self.scale, self.decode = seed, scale, decode
        if not self.templates or not self.tests or len(set(self.tests)) < len(self.tests):
            raise InvalidArgumentError(
                "UnitTestSource: expected at least one template and at least one test, with no test listed twice;"
                f" got {len(self.templates)} templates and tests={self.tests}"
            )
        for test in self.tests:
            UnknownNameError.check("unit test", test, UNIT_TESTS)
        for template in self.templates:
            UnknownNameError.check("format of unit tests", template.format, FORMATS)
        permuting = [test for test in self.tests if UNIT_TESTS[test].from_image]
        if permuting and (images is None or any(template.position < 0 for template in self.templates)):
            raise InvalidArgumentError(
                f"UnitTestSource: unit test {permuting[0]!r} permutes the pixels of ID images; pass images=... and"
                " templates with positions (see unit_test_source), or remove the test from tests=..."
            )

    def __len__(self) -> int:
        """Number of images of all tests."""
        return len(self.tests) * len(self.templates)

    def path(self, position: int) -> str:
        """File name of an image; its key is the escaped form."""
        test, index = divmod(position, len(self.templates))
        return f"{self.tests[test]}/{index:04d}.{FORMATS[self.templates[index].format][0]}"

    def key(self, index: int) -> str:
        """Key of one image."""
        return escape_key(self.path(index))

    def sample(self, index: int) -> Sample:
        """One image."""
        origin, group = f"unit test {self.path(index)}", index // len(self.templates)
        try:
            return Sample(self.key(index), self.file(index), group=group, origin=origin)
        except DataError as error:
            return Sample(self.key(index), b"", group=group, error=str(error), origin=origin)

    def facts(self) -> Iterator[SampleFacts]:
        """Path and test of every image; nothing is generated."""
        for position in range(len(self)):
            yield SampleFacts(self.path(position), -1, position // len(self.templates))

    def file(self, position: int) -> bytes:
        """The image file at a position.

        Raises:
            DataError: The ID image to permute cannot be read.
        """
        test, index = divmod(position, len(self.templates))
        name, template = self.tests[test], self.templates[index]
        image = self._id_image(template.position) if UNIT_TESTS[name].from_image else None
        pixels = draw(name, template.width, template.height, index=index, seed=self.seed, image=image, scale=self.scale)
        return encode(pixels, template.format)

    def _id_image(self, position: int) -> Image.Image:
        assert self.images is not None  # checked in __init__
        return decode_sample(next(iter(self.images.read(position, position + 1))), self.decode)


@dataclass(frozen=True)
class UnitTestListing:
    """The images of a source as entries for a shard, with the same keys; generated when they are read."""

    source: UnitTestSource

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the tests, by group."""
        return self.source.tests

    def __len__(self) -> int:
        """Number of images."""
        return len(self.source)

    def __iter__(self) -> Iterator[Entry]:
        """The entries in the order of the stream."""
        for position in range(len(self.source)):
            group = position // len(self.source.templates)
            yield Entry(self.source.path(position), partial(self.source.file, position), group=group)


def unit_test_source(
    images: Source,
    count: int = 400,
    *,
    seed: int = 0,
    format: str | None = "PNG",
    scale: float = 1.0,
    tests: Sequence[str] = tuple(UNIT_TESTS),
    decode: Decode = decode_image,
) -> UnitTestSource:
    """Unit tests at the sizes of randomly chosen ID images.

    The chosen images are kept in memory (400 ImageNet files: 45 MB), so that generating reads no shard. They are chosen
    in runs of four neighbors, because seeking within a shard costs more than reading.

    Args:
        images: The ID images. If there are fewer than `count`, images are used several times.
        count: Images per test, >= 1; 400 (default) as published.
        seed: Seed of the choice and of the images; see `draw`.
        format: Format of all files, "PNG" by default. None = "JPEG" if the ID image is one, else "PNG".
        scale: See `draw`.
        tests: Names of the tests; default: all 17.
        decode: See `StreamLoader`; its pixel limit also applies here.

    Raises:
        InvalidArgumentError: `count` is below 1, the source is empty, or it yields tensors.
        DataError: A chosen image cannot be read.
    """
    if count < 1:
        raise InvalidArgumentError(f"unit tests: expected at least 1 image per test, got count={count}")
    if not len(images):
        raise InvalidArgumentError("unit tests: expected at least one ID image, got none")
    rng = np.random.default_rng(seed)
    rounds = [_runs(len(images), rng) for _ in range(-(-count // len(images)))]
    distinct, index = np.unique(np.concatenate(rounds)[:count], return_inverse=True)
    held = MemorySource(list(pick_samples(images, distinct.tolist())))
    sizes = [_template(sample, format, i, decode) for i, sample in enumerate(held.samples)]
    return UnitTestSource([sizes[i] for i in index], images=held, tests=tests, seed=seed, scale=scale, decode=decode)


def unit_test_stream(
    images: Source,
    *,
    name: str = "unit_tests",
    count: int = 400,
    seed: int = 0,
    format: str | None = "PNG",
    decode: Decode = decode_image,
) -> Stream:
    """All 17 unit tests at the sizes of `images`, generated when they are read; see `unit_test_source`."""
    source = unit_test_source(images, count, seed=seed, format=format, decode=decode)
    return Stream(name, Role.UNIT_TEST, source, tuple(UNIT_TESTS))


def _runs(length: int, rng: np.random.Generator) -> Int64[np.ndarray, " length"]:
    """Return all positions: neighbors stay together in short runs, and the runs are in random order."""
    starts = _RUN * rng.permutation(-(-length // _RUN))
    positions = (starts[:, None] + np.arange(_RUN)).ravel()
    return np.asarray(positions[positions < length], np.int64)


def _template(sample: Sample, format: str | None, position: int, decode: Decode) -> Template:
    if isinstance(sample.image, bytes) and sample.error is None:
        try:
            width, height, own = image_size(sample.image, max_pixels=max_pixels_of(decode))
        except DataError as error:
            raise DataError(f"{sample.origin}, key {sample.key!r}: {error}") from error
    else:
        image = decode_sample(sample, decode)
        width, height, own = image.width, image.height, "PNG"
    return Template(width, height, format or ("JPEG" if own in ("JPEG", "MPO") else "PNG"), position)
