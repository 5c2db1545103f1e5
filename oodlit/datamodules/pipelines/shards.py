"""Our shards as a pipeline of webdataset, for training on the same files."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.pipelines.source import KEY_FIELD, sample_of
from oodlit.datamodules.shards.reader import ShardSource


def shard_pipeline(
    shards: str | Path | Sequence[str | Path],
    transform: Callable[[Image.Image], Any] | None = None,
    *,
    split: str | None = None,
    shuffle: int = 0,
    seed: int = 0,
) -> Any:
    """A `webdataset.WebDataset` of (image, label) over shards, cut over processes and workers by whole shards.

    It is for training and fine-tuning: order is random, ranks may get different numbers of samples, and the length is
    that of the whole set. Evaluations read shards with `shard_stream`, which gives every sample exactly once.

    Args:
        shards: As for `shard_stream`.
        transform: From an RGB image to what the network takes; None (default) = the image.
        split: Split of the manifest; may be left out if there is one only.
        shuffle: Samples among which the next one is drawn, and shards likewise; 0 (default) = the order of the files.
        seed: Of the order.

    Returns:
        The pipeline, to be given to a `DataLoader`, or to be extended by webdataset's own methods.

    Raises:
        DataError: See `shard_stream`.
    """
    wds = importlib.import_module("webdataset")  # takes a second, and nobody else needs it
    source = ShardSource(shards, split=split)
    folder = f"{str(source.folder).rstrip('/')}/" if source.folder else ""
    urls = [folder + record.file for record in source.info.shards]
    pipeline = wds.WebDataset(
        urls,
        shardshuffle=len(urls) if shuffle else False,
        nodesplitter=wds.split_by_node,
        seed=seed,
        empty_check=False,  # a worker without a shard is no fault
        select_files=_is_read,
    )
    if shuffle:
        pipeline = pipeline.shuffle(shuffle, seed=seed)
    return pipeline.map(_Pair(transform)).with_length(len(source), silent=True)


class _Pair:
    """From a sample of webdataset to (image, label); a class, so that worker processes can get it."""

    def __init__(self, transform: Callable[[Image.Image], Any] | None) -> None:
        self.transform = transform

    def __call__(self, item: dict[str, Any]) -> tuple[Any, int]:
        sample = sample_of({name: value for name, value in item.items() if name == KEY_FIELD or "." not in name})
        assert isinstance(sample.image, bytes)  # as shards hold it
        image = decode_image(sample.image)
        return image if self.transform is None else self.transform(image), sample.label


def _is_read(name: str) -> bool:
    """Whether a member of a shard is an image or a label."""
    return not name.endswith(".json")
