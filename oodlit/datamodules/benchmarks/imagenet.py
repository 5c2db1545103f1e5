"""ImageNet benchmarks: published sets below one root folder."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import Unpack

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.roles import NAMES_OF_LABELS
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.decode import Decode, decode_image
from oodlit.datamodules.generated.corruptions import corrupted_stream
from oodlit.datamodules.generated.unit_test_source import unit_test_stream
from oodlit.datamodules.loading_options import LoadingOptions
from oodlit.datamodules.published_sets import set_stream
from oodlit.datamodules.sets import describe, descriptions
from oodlit.datamodules.sets.description import DatasetDescription
from oodlit.datamodules.sets.imagenet import IMAGENET_TRAIN, IMAGENET_VAL
from oodlit.datamodules.sets.imagenet_shift import IMAGENET_C
from oodlit.datamodules.sets.ninco import UNIT_TEST_SET
from oodlit.datamodules.shards.locate import Shards
from oodlit.datamodules.shards.reader import shard_stream
from oodlit.datamodules.stream import Stream

_TIMM = {"imagenet_train": "imagenet1k-train-*.tar", "imagenet_val": "imagenet1k-validation-*.tar"}


class MissingSetError(DataError):
    """A data set was not found, or has none of the listed images."""


class ImageNetBenchmark(OODDataModule):
    """ImageNet-1k as ID data, with any of the published test sets.

    Every set has a folder with its name below `root`: shards (built with `oodlit shards build`, or published for timm),
    or images in the official layout. Generated sets need no folder: "unit_tests" use the sizes of ID images, and
    "imagenet_c" is generated from ID images (extra "corruptions").

    Args:
        root: Folder of the sets. It may directly contain timm's shards.
        sets: Names of the test sets, as in `oodlit list datasets`, or of folders with your own shards, whose manifest
            has the role (`oodlit shards build NAME SOURCE --role ...`).
        train: True requires "imagenet_train", False ignores it, None (default) uses it if it exists. Detectors with a
            fit require it.
        locations: Locations of sets that are not below `root`, by name: a folder, a pattern or URL of shards, or a list
            of shards.
        streams: Additional streams.
        complete: If True (default), the number of images of a set must equal the published one.
        per_test: Images per generated unit test.
        unit_test_format: "PNG" (default), "JPEG", or None = that of the ID image. Noise as JPEG is a different test.
        seed: Seed of the generated sets.
        loading: See `OODDataModule`; `decode=functools.partial(decode_image, reduce_to=512)` is the fast path.

    Raises:
        UnknownNameError: There is no such set; the message suggests similar names.
        InvalidArgumentError: A set is named twice, or is ID or training data.
        DataError: A set is missing or incomplete.
        MissingExtraError: "imagenet_c" is generated, and the extra is not installed.
    """

    def __init__(
        self,
        root: str | Path,
        sets: Sequence[str] = ("ninco", "unit_tests"),
        *,
        train: bool | None = None,
        locations: Mapping[str, Shards] | None = None,
        streams: Sequence[Stream] = (),
        complete: bool = True,
        per_test: int = 400,
        unit_test_format: str | None = "PNG",
        seed: int = 0,
        **loading: Unpack[LoadingOptions],
    ) -> None:
        """Find the sets; shards with a manifest are not read."""
        place = Locations(Path(root), dict(locations or {}), complete)
        own = {name for name in sets if name not in descriptions() and place.has_shards(name)}
        chosen = {name: describe(name) for name in sets if name not in own}
        if fixed := [d for d in chosen.values() if d.role in NAMES_OF_LABELS]:
            raise InvalidArgumentError(
                f"sets: expected only test sets, got {fixed[0].name!r}; omit it (imagenet_val is always used, and"
                " imagenet_train with train=True)"
            )
        known = {*own, *chosen, IMAGENET_VAL.name, IMAGENET_TRAIN.name}
        if unknown := sorted(place.given.keys() - known):
            raise InvalidArgumentError(f"locations: {unknown[0]!r} is not one of the sets {', '.join(sorted(known))}")
        found = [val := place.stream(IMAGENET_VAL), *place.training(train)]
        made = Generated(val, per_test, unit_test_format, seed, loading.get("decode", decode_image))
        for name in sets:
            if name in own:
                found.append(shard_stream(place.given.get(name, place.root / name), name=name))
            else:
                found.append(place.found_or_generated(chosen[name], made))
        super().__init__([*found, *streams], **loading)


class Generated(NamedTuple):
    """How sets without images are generated.

    Args:
        val: The ID images.
        per_test: Images per unit test.
        unit_test_format: See `ImageNetBenchmark`.
        seed: Seed of the images.
        decode: Decoder of the ID images.
    """

    val: Stream
    per_test: int = 400
    unit_test_format: str | None = "PNG"
    seed: int = 0
    decode: Decode = decode_image


class Locations:
    """Finds the sets below a folder.

    Args:
        root: The folder.
        given: Locations of sets that are elsewhere, by name.
        complete: Whether sets must be complete.
        any_set: Whether shards of another known data set are accepted, of which a list chooses.
    """

    def __init__(self, root: Path, given: dict[str, Shards], complete: bool, *, any_set: bool = False) -> None:
        self.root, self.given, self.complete, self.any_set = root, given, complete, any_set

    def find(self, name: str) -> Shards | None:
        """Location of a set; None if it does not exist."""
        if name in self.given:
            return self.given[name]
        if (self.root / name).is_dir():
            return self.root / name
        shards = sorted(self.root.glob(_TIMM[name])) if name in _TIMM else []
        return shards or None

    def is_missing(self, name: str) -> bool:
        """Whether a set neither exists nor can be generated."""
        return self.find(name) is None and name not in (UNIT_TEST_SET.name, IMAGENET_C.name)

    def has_shards(self, name: str) -> bool:
        """Whether a custom set has shards."""
        return name in self.given or any((self.root / name).glob("*.tar"))

    def training(self, wanted: bool | None) -> list[Stream]:
        """The training images if they are wanted, or if they exist and `wanted` is None."""
        is_used = self.find(IMAGENET_TRAIN.name) is not None if wanted is None else wanted
        return [self.stream(IMAGENET_TRAIN)] if is_used else []

    def found_or_generated(self, description: DatasetDescription, made: Generated) -> Stream:
        """Stream of a test set; unit tests and corruptions that do not exist are generated from ID images."""
        if description is UNIT_TEST_SET and self.find(description.name) is None:
            how: dict[str, Any] = {"count": made.per_test, "seed": made.seed, "format": made.unit_test_format}
            return unit_test_stream(made.val.source, decode=made.decode, **how)
        if description is IMAGENET_C and self.find(description.name) is None:
            stream = corrupted_stream(made.val.source, seed=made.seed, decode=made.decode)
            return replace(stream, label_names=made.val.class_names)
        return self.stream(description)

    def stream(self, description: DatasetDescription) -> Stream:
        """Stream of a set, which must exist."""
        location = self.find(description.name)
        if location is None:
            folder = self.root / description.name
            there = sorted(path.name for path in self.root.iterdir()) if self.root.is_dir() else []
            shown = ", ".join(there[:10]) + ", ..." * (len(there) > 10) or "nothing"
            raise MissingSetError(
                f"{folder} ({description.title}) does not exist; {str(self.root)!r} contains"
                f" {shown}. Build this set with `oodlit shards build {description.name} SOURCE"
                f" --out {folder}`, or name its folder with locations={{{description.name!r}: FOLDER}}"
            )
        return set_stream(description, location, complete=self.complete, any_set=self.any_set)
