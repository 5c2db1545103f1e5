"""WebDataset shards: build, read, verify."""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.datamodules.shards.archives import File as File
    from oodlit.datamodules.shards.archives import Files as Files
    from oodlit.datamodules.shards.archives import open_files as open_files
    from oodlit.datamodules.shards.build import build_shards as build_shards
    from oodlit.datamodules.shards.listing import Assignment as Assignment
    from oodlit.datamodules.shards.listing import Listing as Listing
    from oodlit.datamodules.shards.listing import class_listing as class_listing
    from oodlit.datamodules.shards.listing import is_image as is_image
    from oodlit.datamodules.shards.listing import listed_listing as listed_listing
    from oodlit.datamodules.shards.listing import map_files as map_files
    from oodlit.datamodules.shards.manifest import ShardInfo as ShardInfo
    from oodlit.datamodules.shards.manifest import ShardRecord as ShardRecord
    from oodlit.datamodules.shards.manifest import read_info as read_info
    from oodlit.datamodules.shards.reader import ShardSource as ShardSource
    from oodlit.datamodules.shards.reader import shard_stream as shard_stream
    from oodlit.datamodules.shards.remote import Cache as Cache
    from oodlit.datamodules.shards.verify import Duplicate as Duplicate
    from oodlit.datamodules.shards.verify import ShardProblem as ShardProblem
    from oodlit.datamodules.shards.verify import ShardReport as ShardReport
    from oodlit.datamodules.shards.verify import find_duplicates as find_duplicates
    from oodlit.datamodules.shards.verify import shard_info as shard_info
    from oodlit.datamodules.shards.verify import verify_shards as verify_shards
    from oodlit.datamodules.shards.writer import Entry as Entry
    from oodlit.datamodules.shards.writer import write_shard as write_shard

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
