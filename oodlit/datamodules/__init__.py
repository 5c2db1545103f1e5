"""Streams of images for a run: sources, shards, the data module, and the benchmarks.

The names below are loaded on first use: worker processes that decode images need not load Lightning.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oodlit.datamodules.benchmark import ImageNetBenchmark
    from oodlit.datamodules.corruption_error import mean_corruption_error
    from oodlit.datamodules.corruptions import CorruptedSource, corrupted_stream
    from oodlit.datamodules.datamodule import OODDataModule
    from oodlit.datamodules.decode import decode_image
    from oodlit.datamodules.description import DatasetDescription
    from oodlit.datamodules.digits import DigitsBenchmark
    from oodlit.datamodules.loader import StreamLoader
    from oodlit.datamodules.photos import PhotosBenchmark
    from oodlit.datamodules.pool import pooled_stream
    from oodlit.datamodules.protocols import subset_predictions
    from oodlit.datamodules.published import build_set, set_stream, verify_set
    from oodlit.datamodules.sets import describe, descriptions
    from oodlit.datamodules.sets.imagenet_shift import CORRUPTIONS
    from oodlit.datamodules.shards import ShardSource, shard_stream
    from oodlit.datamodules.sources import DatasetSource, FileSource, MemorySource
    from oodlit.datamodules.stream import Sample, Source, Stream
    from oodlit.datamodules.unit_tests import UNIT_TESTS, UnitTestSource, unit_test_stream

__all__ = [
    "CORRUPTIONS",
    "UNIT_TESTS",
    "CorruptedSource",
    "DatasetDescription",
    "DatasetSource",
    "DigitsBenchmark",
    "FileSource",
    "ImageNetBenchmark",
    "MemorySource",
    "OODDataModule",
    "PhotosBenchmark",
    "Sample",
    "ShardSource",
    "Source",
    "Stream",
    "StreamLoader",
    "UnitTestSource",
    "build_set",
    "corrupted_stream",
    "decode_image",
    "describe",
    "descriptions",
    "mean_corruption_error",
    "pooled_stream",
    "set_stream",
    "shard_stream",
    "subset_predictions",
    "unit_test_stream",
    "verify_set",
]

_HOME = {
    "CORRUPTIONS": "sets.imagenet_shift",
    "CorruptedSource": "corruptions",
    "DatasetDescription": "description",
    "DatasetSource": "sources",
    "DigitsBenchmark": "digits",
    "FileSource": "sources",
    "ImageNetBenchmark": "benchmark",
    "MemorySource": "sources",
    "OODDataModule": "datamodule",
    "PhotosBenchmark": "photos",
    "Sample": "stream",
    "ShardSource": "shards",
    "Source": "stream",
    "Stream": "stream",
    "StreamLoader": "loader",
    "UNIT_TESTS": "unit_tests",
    "UnitTestSource": "unit_tests",
    "build_set": "published",
    "corrupted_stream": "corruptions",
    "decode_image": "decode",
    "mean_corruption_error": "corruption_error",
    "pooled_stream": "pool",
    "subset_predictions": "protocols",
    "describe": "sets",
    "descriptions": "sets",
    "set_stream": "published",
    "shard_stream": "shards",
    "unit_test_stream": "unit_tests",
    "verify_set": "published",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
