"""Describe the streams of a run for the results."""

from collections.abc import Sequence

from oodlit.base.roles import Role
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.thinning import whole_size
from oodlit.results import DatasetInfo


def train_name(streams: Sequence[Stream]) -> str:
    """Name of the training images in results, which join all training streams."""
    return "+".join(stream.name for stream in streams if stream.role is Role.TRAIN)


def dataset_infos(streams: Sequence[Stream], num_classes: int) -> list[DatasetInfo]:
    """All streams of a run, training streams as one.

    Args:
        streams: The streams; exactly one has the role ID.
        num_classes: Logits of the network; 0 without classifier.
    """
    train = [stream for stream in streams if stream.role is Role.TRAIN]
    others = (stream for stream in streams if stream.role is not Role.TRAIN)
    id_classes = num_classes or len(next(stream.class_names for stream in streams if stream.role is Role.ID))
    joined = (
        [DatasetInfo(train_name(train), Role.TRAIN, train[0].class_names, sum(map(whole_size, train)))] if train else []
    )
    return [*joined, *(_info(stream, id_classes) for stream in others)]


def _info(stream: Stream, id_classes: int) -> DatasetInfo:
    info = (stream.name, stream.role, stream.class_names, whole_size(stream))
    return DatasetInfo(*info, id_classes, str(stream.split)) if stream.role is Role.POOL else DatasetInfo(*info)
