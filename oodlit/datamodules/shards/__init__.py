"""WebDataset shards: build, read, verify."""

from oodlit.datamodules.shards.manifest import ShardInfo, ShardRecord
from oodlit.datamodules.shards.reader import ShardSource, shard_stream
from oodlit.datamodules.shards.remote import Cache
from oodlit.datamodules.shards.writer import Entry, write_shard

__all__ = ["Cache", "Entry", "ShardInfo", "ShardRecord", "ShardSource", "shard_stream", "write_shard"]
