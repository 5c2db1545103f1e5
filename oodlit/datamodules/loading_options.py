"""How images are loaded: the keyword arguments that benchmarks pass on to `OODDataModule`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from oodlit.datamodules.batches import OnError, Transform
from oodlit.datamodules.decode import Decode


class LoadingOptions(TypedDict, total=False):
    """Keyword arguments of `OODDataModule` that every benchmark accepts as well."""

    transform: Transform | None
    batch_size: int
    num_workers: int
    on_error: OnError
    decode: Decode
    multiprocessing_context: str | None
    prefetch_factor: int | None
    class_names: str | Path | Sequence[str] | None
    max_images: int | None
    decode_on_device: bool
