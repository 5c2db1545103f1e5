"""Streams of images for a run: sources, shards, the data module, and the benchmarks.

The names below are loaded on first use: worker processes that decode images need not load Lightning.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oodlit.datamodules.datamodule import OODDataModule
    from oodlit.datamodules.loader import StreamLoader
    from oodlit.datamodules.shards import ShardSource, shard_stream
    from oodlit.datamodules.sources import DatasetSource, FileSource, MemorySource
    from oodlit.datamodules.stream import Sample, Source, Stream

__all__ = [
    "DatasetSource",
    "FileSource",
    "MemorySource",
    "OODDataModule",
    "Sample",
    "ShardSource",
    "Source",
    "Stream",
    "StreamLoader",
    "shard_stream",
]

_HOME = {
    "DatasetSource": "sources",
    "FileSource": "sources",
    "MemorySource": "sources",
    "OODDataModule": "datamodule",
    "Sample": "stream",
    "ShardSource": "shards",
    "Source": "stream",
    "Stream": "stream",
    "StreamLoader": "loader",
    "shard_stream": "shards",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
