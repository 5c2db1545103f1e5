"""Read shards with a webdataset pipeline, for training on the same files."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from PIL import Image

from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.pipelines.source import KEY_FIELD, sample_of
from oodlit.datamodules.shards.locate import Shards
from oodlit.datamodules.shards.reader import ShardSource


def shard_pipeline(
    shards: Shards,
    transform: Callable[[Image.Image], Any] | None = None,
    *,
    split: str | None = None,
    shuffle: int = 0,
    seed: int = 0,
) -> Any:
    """A `webdataset.WebDataset` of (image, label), with whole shards distributed over processes and workers.

    For training and fine-tuning: the order is random, ranks may get different numbers of samples, and the length is
    that of the whole set. Evaluations read shards with `shard_stream`, which reads every sample exactly once.

    Args:
        shards: As for `shard_stream`.
        transform: From an RGB image to the network's input; None (default) = the image itself.
        split: Split of the manifest; optional if there is only one.
        shuffle: Size of the shuffle buffer; shards are then shuffled as well. 0 (default) = the order of the files.
        seed: Seed of the order.

    Returns:
        The pipeline, for a `DataLoader` or for further methods of webdataset.

    Raises:
        DataError: See `shard_stream`.
    """
    wds = importlib.import_module("webdataset")  # the import takes a second
    source = ShardSource(shards, split=split)
    folder = f"{str(source.folder).rstrip('/')}/" if source.folder else ""
    urls = [folder + record.file for record in source.info.shards]
    pipeline = wds.WebDataset(
        urls,
        shardshuffle=len(urls) if shuffle else False,
        nodesplitter=wds.split_by_node,
        seed=seed,
        empty_check=False,  # a worker may have no shard
        select_files=_is_read,
    )
    if shuffle:
        pipeline = pipeline.shuffle(shuffle, seed=seed)
    return pipeline.map(partial(_pair, transform=transform)).with_length(len(source), silent=True)


def _pair(item: dict[str, Any], transform: Callable[[Image.Image], Any] | None) -> tuple[Any, int]:
    """Convert a webdataset sample to (image, label)."""
    sample = sample_of({name: value for name, value in item.items() if name == KEY_FIELD or "." not in name})
    assert isinstance(sample.image, bytes)  # as shards hold it
    image = decode_image(sample.image)
    return image if transform is None else transform(image), sample.label


def _is_read(name: str) -> bool:
    """Whether a member of a shard is an image or a label."""
    return not name.endswith(".json")
