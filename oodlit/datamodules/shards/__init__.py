"""WebDataset shards: build, read, verify."""

from oodlit.datamodules.shards.build import build_shards
from oodlit.datamodules.shards.files import File, Files, open_files
from oodlit.datamodules.shards.listing import Listing, Place, class_listing, is_image, listed_listing, map_files
from oodlit.datamodules.shards.manifest import ShardInfo, ShardRecord, read_info
from oodlit.datamodules.shards.progress import progress_bar
from oodlit.datamodules.shards.reader import ShardSource, shard_stream
from oodlit.datamodules.shards.remote import Cache
from oodlit.datamodules.shards.verify import (
    Duplicate,
    Problem,
    Verification,
    find_duplicates,
    shard_info,
    verify_shards,
)
from oodlit.datamodules.shards.writer import Entry, write_shard

__all__ = [
    "Cache",
    "Duplicate",
    "Entry",
    "File",
    "Files",
    "Listing",
    "Place",
    "Problem",
    "ShardInfo",
    "ShardRecord",
    "ShardSource",
    "Verification",
    "build_shards",
    "class_listing",
    "find_duplicates",
    "is_image",
    "listed_listing",
    "map_files",
    "open_files",
    "progress_bar",
    "read_info",
    "shard_info",
    "shard_stream",
    "verify_shards",
    "write_shard",
]
