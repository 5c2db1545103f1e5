"""How images are loaded: the keyword arguments that benchmarks pass on to `OODDataModule`."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.known_classes.class_choice import ClassChoice
from oodlit.datamodules.batches import OnError, Transform
from oodlit.datamodules.decode import Decode


def check_loading(batch_size: object, num_workers: object) -> None:
    """Check sizes of batches and numbers of workers before anything is read.

    Raises:
        InvalidArgumentError: One of them is not an integer, or too small.
    """
    for name, value, least in (("batch_size", batch_size, 1), ("num_workers", num_workers, 0)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise InvalidArgumentError(f"expected {name} to be an integer >= {least}, got {value!r}")


class ReadingOptions(TypedDict, total=False):
    """Keyword arguments of `OODDataModule` that every benchmark accepts, including benchmarks of object detectors."""

    batch_size: int
    num_workers: int
    on_error: OnError
    multiprocessing_context: str | None
    prefetch_factor: int | None
    max_images: int | None


class LoadingOptions(ReadingOptions, total=False):
    """Keyword arguments of `OODDataModule` that every benchmark of classifiers accepts as well."""

    transform: Transform | None
    decode: Decode
    class_names: str | Path | Sequence[str] | None
    decode_on_device: bool
    class_subset: ClassChoice
    dropped_as: str | None
    evaluation: Mapping[str, Any] | None
