"""ImageNet-C on the fly: 19 corruptions of ID images, each determined by its key and seed."""

import importlib
import io
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from types import ModuleType

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from oodlit.base.errors import DataError, InvalidArgumentError, MissingExtraError, UnknownNameError
from oodlit.base.known_classes.imagenet import COMMON_CORRUPTIONS
from oodlit.base.roles import Role
from oodlit.datamodules.decode import Decode, decode_image
from oodlit.datamodules.generated.id_images import decode_sample
from oodlit.datamodules.keys import escape_key, key_digest, unescape_key
from oodlit.datamodules.shards.writer import Entry
from oodlit.datamodules.stream import Sample, Source, Stream, locate_range, pick_samples
from oodlit.datamodules.subsets import SampleFacts, facts_of

CORRUPTIONS = (*COMMON_CORRUPTIONS, "speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The 15 kinds of ImageNet-C in the paper's order, then the four extra ones."""
_SEEDED = ("glass_blur", "impulse_noise")  # the others use numpy's global generator
_GENERATOR = threading.Lock()  # protects numpy's global generator, which all threads share


def corrupt(
    image: Image.Image, kind: str, severity: int, *, key: str = "", seed: int = 0
) -> UInt8[np.ndarray, "height width 3"]:
    """Corrupt one image; the result depends only on the arguments. numpy's global generator is unchanged.

    Args:
        image: RGB, both sides at least 32 pixels.
        kind: One of `CORRUPTIONS`.
        severity: 1 (weak) to 5 (strong).
        key: Identity of the image; every image gets different noise.
        seed: Seed of the noise.

    Raises:
        MissingExtraError: The extra "corruptions" is not installed.
        UnknownNameError: There is no such corruption.
        InvalidArgumentError: The severity is not 1..5, or the image is too small.
    """
    _check(kind, severity)
    if min(image.size) < 32:
        raise InvalidArgumentError(
            f"corruption {kind!r}: expected images of at least 32 x 32 pixels, got {image.width} x {image.height}"
        )
    library = _library()
    number = key_digest(f"{kind}/{severity}/{seed}/{key}", size=4)
    options = {"seed": number} if kind in _SEEDED else {}
    pixels = np.asarray(image.convert("RGB"))
    with _GENERATOR:
        state = np.random.get_state()  # the library uses it
        try:
            np.random.seed(number)
            return np.asarray(library.corrupt(pixels, severity=severity, corruption_name=kind, **options), np.uint8)
        finally:
            np.random.set_state(state)


class CorruptedSource:
    """ID images under corruptions, ordered by group: all images under the first kind and severity, ...

    As in ImageNet-C, an image is resized so that its shorter side is 256 pixels, cropped to the central 224 x 224,
    corrupted, and stored as JPEG with quality 85. Labels are those of the images.

    Args:
        images: The ID images.
        kinds: Corruptions; the 15 of the paper by default.
        severities: Values from 1 to 5; all by default.
        seed: See `corrupt`.
        quality: JPEG quality; None = PNG.
        decode: See `StreamLoader`.

    Raises:
        MissingExtraError: The extra "corruptions" is not installed.
        UnknownNameError: There is no such corruption.
        InvalidArgumentError: A kind or severity is missing, repeated or out of range.
    """

    def __init__(
        self,
        images: Source,
        *,
        kinds: Sequence[str] = COMMON_CORRUPTIONS,
        severities: Sequence[int] = (1, 2, 3, 4, 5),
        seed: int = 0,
        quality: int | None = 85,
        decode: Decode = decode_image,
    ) -> None:
        self.images, self.seed, self.quality, self.decode = images, seed, quality, decode
        self.settings = [(kind, severity) for kind in kinds for severity in severities]
        if not self.settings or len(set(self.settings)) < len(self.settings):
            raise InvalidArgumentError(
                "CorruptedSource: expected kinds and severities to be non-empty and without repetition, got"
                f" {kinds=} and {severities=}"
            )
        for kind, severity in self.settings:
            _check(kind, severity)
        _library()
        self.group_names = tuple(f"{kind}/{severity}" for kind, severity in self.settings)

    def __len__(self) -> int:
        """Number of images under all settings."""
        return len(self.images) * len(self.settings)

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """Images start, ..., stop - 1."""
        count = len(self.images)
        ends = range(count, len(self) + 1, count) if count else ()
        for group, positions in locate_range(ends, start, stop):
            for sample in self.images.read(positions.start, positions.stop):
                yield self._sample(sample, group)

    def pick(self, positions: Sequence[int]) -> Iterator[Sample]:
        """Images at these ascending positions."""
        count = len(self.images)
        for group, members in groupby(positions, key=lambda position: position // count):
            for sample in pick_samples(self.images, [position - group * count for position in members]):
                yield self._sample(sample, group)

    def facts(self) -> Iterator[SampleFacts]:
        """Path, label and group of every image; nothing is generated."""
        known = list(facts_of(self.images))
        for group, name in enumerate(self.group_names):
            for path, label, _ in known:
                yield SampleFacts(f"{name}/{path}", label, group)

    def path(self, sample: Sample, group: int) -> str:
        """Path of a corrupted image as in ImageNet-C: <kind>/<severity>/<path of the ID image>."""
        kind, severity = self.settings[group]
        return f"{kind}/{severity}/{unescape_key(sample.key)}"

    def file(self, sample: Sample, group: int) -> bytes:
        """The corrupted image file of an ID image.

        Raises:
            DataError: The ID image is unreadable.
        """
        kind, severity = self.settings[group]
        image = prepare(decode_sample(sample, self.decode))
        file = io.BytesIO()
        pixels = Image.fromarray(corrupt(image, kind, severity, key=sample.key, seed=self.seed))
        if self.quality is None:
            pixels.save(file, "PNG", compress_level=1)
        else:
            pixels.save(file, "JPEG", quality=self.quality, optimize=True)
        return file.getvalue()

    def _sample(self, sample: Sample, group: int) -> Sample:
        key = escape_key(self.path(sample, group))
        origin = f"{sample.origin} under {self.group_names[group]}"
        try:
            return Sample(key, self.file(sample, group), sample.label, group, origin=origin)
        except DataError as error:
            return Sample(key, b"", sample.label, group, error=str(error), origin=origin)


@dataclass(frozen=True)
class CorruptedListing:
    """The images of a source as entries for a shard, with the same keys; generated when they are written."""

    source: CorruptedSource

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the groups."""
        return self.source.group_names

    def __len__(self) -> int:
        """Number of images under all settings."""
        return len(self.source)

    def __iter__(self) -> Iterator[Entry]:
        """The entries in the order of the source."""
        images = self.source.images
        for group in range(len(self.class_names)):
            for sample in images.read(0, len(images)):
                path, draw = self.source.path(sample, group), partial(self.source.file, sample, group)
                yield Entry(path, draw, sample.label, group, in_order=True)  # keeps one image at a time


def corrupted_stream(
    images: Source,
    *,
    name: str = "imagenet_c",
    kinds: Sequence[str] = COMMON_CORRUPTIONS,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    seed: int = 0,
    quality: int | None = 85,
    decode: Decode = decode_image,
) -> Stream:
    """ImageNet-C from ID images, generated when they are read; see `CorruptedSource`."""
    source = CorruptedSource(images, kinds=kinds, severities=severities, seed=seed, quality=quality, decode=decode)
    return Stream(name, Role.SHIFT, source, source.group_names, prepared=True)


def prepare(image: Image.Image) -> Image.Image:
    """Resize the shorter side to 256 pixels (bilinear) and crop the central 224 x 224, as for ImageNet-C.

    Example:
        >>> prepare(Image.new("RGB", (500, 375))).size
        (224, 224)
    """
    scale = 256 / min(image.size)
    width, height = (max(256, round(side * scale)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    return image.crop((left, top, left + 224, top + 224))


def _check(kind: str, severity: int) -> None:
    UnknownNameError.check("corruption", kind, CORRUPTIONS)
    if severity not in (1, 2, 3, 4, 5):
        raise InvalidArgumentError(f"corruption {kind!r}: expected severity 1, 2, 3, 4 or 5, got {severity}")


def _library() -> ModuleType:
    try:
        return importlib.import_module("imagecorruptions")
    except ImportError as error:
        raise MissingExtraError.of("ImageNet-C on the fly", "corruptions") from error
