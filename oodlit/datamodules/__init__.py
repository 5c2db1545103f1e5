"""Streams of images for a run: sources, shards, the data module, and the benchmarks.

The names below are loaded on first use, so that worker processes that decode images do not import Lightning.
"""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.datamodules.benchmarks.benchmark import Benchmark as Benchmark
    from oodlit.datamodules.benchmarks.digit_pool import DigitPoolBenchmark as DigitPoolBenchmark
    from oodlit.datamodules.benchmarks.digits import DigitsBenchmark as DigitsBenchmark
    from oodlit.datamodules.benchmarks.imagenet import ImageNetBenchmark as ImageNetBenchmark
    from oodlit.datamodules.benchmarks.photos import PhotosBenchmark as PhotosBenchmark
    from oodlit.datamodules.datamodule import OODDataModule as OODDataModule
    from oodlit.datamodules.decode import decode_image as decode_image
    from oodlit.datamodules.folders import folder_stream as folder_stream
    from oodlit.datamodules.generated.corruptions import CORRUPTIONS as CORRUPTIONS
    from oodlit.datamodules.generated.corruptions import CorruptedSource as CorruptedSource
    from oodlit.datamodules.generated.corruptions import corrupted_stream as corrupted_stream
    from oodlit.datamodules.generated.unit_test_kinds import UNIT_TESTS as UNIT_TESTS
    from oodlit.datamodules.generated.unit_test_source import UnitTestSource as UnitTestSource
    from oodlit.datamodules.generated.unit_test_source import unit_test_stream as unit_test_stream
    from oodlit.datamodules.loader import StreamLoader as StreamLoader
    from oodlit.datamodules.pipelines.shard_pipelines import shard_pipeline as shard_pipeline
    from oodlit.datamodules.pipelines.source import PipelineSource as PipelineSource
    from oodlit.datamodules.pipelines.source import pipeline_stream as pipeline_stream
    from oodlit.datamodules.pool import pooled_stream as pooled_stream
    from oodlit.datamodules.published_sets import build_set as build_set
    from oodlit.datamodules.published_sets import set_stream as set_stream
    from oodlit.datamodules.published_sets import verify_set as verify_set
    from oodlit.datamodules.sets import describe as describe
    from oodlit.datamodules.sets import descriptions as descriptions
    from oodlit.datamodules.sets.description import DatasetDescription as DatasetDescription
    from oodlit.datamodules.severity.pool_streams import PoolSplit as PoolSplit
    from oodlit.datamodules.severity.pool_streams import severity_pool as severity_pool
    from oodlit.datamodules.shards.reader import ShardSource as ShardSource
    from oodlit.datamodules.shards.reader import shard_stream as shard_stream
    from oodlit.datamodules.sources import DatasetSource as DatasetSource
    from oodlit.datamodules.sources import FileSource as FileSource
    from oodlit.datamodules.sources import MemorySource as MemorySource
    from oodlit.datamodules.stream import Sample as Sample
    from oodlit.datamodules.stream import Source as Source
    from oodlit.datamodules.stream import Stream as Stream

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
