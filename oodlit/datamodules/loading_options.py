"""How images are loaded: the keyword arguments that benchmarks pass on to `OODDataModule`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from oodlit.datamodules.batches import OnError, Transform
from oodlit.datamodules.decode import Decode


class ReadingOptions(TypedDict, total=False):
    """Keyword arguments of `OODDataModule` that every benchmark accepts as well, also those of object detectors."""

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
