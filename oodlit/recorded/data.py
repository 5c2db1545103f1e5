"""The data of a run that reads recorded outputs instead of images."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.datamodules.batches import Batch, StreamBatches, reader_range
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.stream import Stream
from oodlit.recorded.rows import RowSource


class RecordedData(OODDataModule):
    """Streams of recorded outputs; they are read in slices, without worker processes.

    Args:
        streams: Streams whose sources are `RowSource`s.
        pictures: Source of the images of these keys, for the page; None (default) = no source.
        others: As for `OODDataModule`.

    Raises:
        InvalidArgumentError: The sets have different numbers of features or classes.
    """

    def __init__(
        self, streams: Sequence[Stream], *, pictures: OODDataModule | None = None, batch_size: int = 4096, **others: Any
    ) -> None:
        """Check that all sets come from one backbone."""
        super().__init__(streams, batch_size=batch_size, **others)
        self.pictures = pictures
        shapes = {stream.name: _shape(stream) for stream in streams}
        like = next(iter(shapes))
        for name, shape in shapes.items():
            if shape != shapes[like]:
                raise InvalidArgumentError(
                    f"{name!r} has {shape[0]} features and {shape[1]} logits per image (0 = not recorded), but"
                    f" {like!r} has {shapes[like][0]} and {shapes[like][1]}; all sets must come from one backbone"
                )
        self.width, self.num_classes = shapes[like]

    def _loader(self, stream: Stream, rank: int, world_size: int) -> StreamLoader:
        if not isinstance(stream.source, RowSource):  # thinned, or with its labels in another order
            return super()._loader(stream, rank, world_size)
        plan, size = self._plan, self.batch_size
        start = plan.done.get(stream.name, 0)
        return RowLoader(stream, batch_size=size, rank=rank, world_size=world_size, start=start, on_request=plan.asked)

    def read_images(self, keys: Iterable[str]) -> dict[str, Image.Image]:
        """Read images by key; empty without a source of images."""
        if self.pictures is None:
            return {}
        stored = {key: self._stored_as(key) for key in keys}
        found = self.pictures.read_images(stored.values())
        return {key: found[name] for key, name in stored.items() if name in found}

    def _stored_as(self, key: str) -> str:
        """Key of the image in the source of images, where images of dropped classes belong to the ID stream."""
        name, _, inner = key.partition("/")
        inside = next(stream for stream in self.streams if stream.role is Role.ID)
        is_dropped = name == self.dropped_as and self.pictures is not None and self.pictures.dropped_as != name
        return inside.full_key(inner) if is_dropped else key


@dataclass(eq=False)
class RowBatches(StreamBatches):
    """Batches made of slices of rows."""

    def _read(self, positions: range) -> Iterator[Batch]:
        source = self.stream.source
        assert isinstance(source, RowSource)
        for start in range(positions.start, positions.stop, self.batch_size):
            stop = min(start + self.batch_size, positions.stop)
            rows = source.rows(start, stop)
            if len(rows) != stop - start:
                raise DataError(
                    f"data set {self.stream.name!r}: reading rows {start} to {stop - 1} returned {len(rows)} rows;"
                    " record this data set again"
                )
            batch = Batch(
                image=rows.joined,
                label=rows.labels.numpy(),  # type: ignore[typeddict-item]  # as StreamBatches returns them
                group=rows.groups.numpy(),  # type: ignore[typeddict-item]
                key=[self.stream.full_key(key) for key in rows.keys],
                skipped=[],
                seconds={},
            )
            self._check(batch)
            yield batch

    def _check(self, batch: Batch) -> None:
        """Reject labels and groups that the stream cannot have; recorded outputs have no bad samples to skip."""
        by_label = self.stream.role in NAMES_OF_LABELS
        names = len(self.stream.class_names)
        index = batch["label"] if by_label else batch["group"]
        least = 0 if self.stream.role is Role.TRAIN or (names and not by_label) else -1
        bad = (index < least) | ((index >= names) if names else False)
        if bad.any():
            place = int(bad.argmax())
            what = "label" if by_label else "group"
            allowed = f"in {least}..{names - 1}" if names else f"at least {least}"
            raise DataError(
                f"{batch['key'][place]!r}: expected the {what} of this image to be {allowed}, got {int(index[place])}"
            )


class RowLoader(StreamLoader):
    """Batches of slices of rows, for this process's part of the stream."""

    batches_class = RowBatches

    def __iter__(self) -> Iterator[Batch]:
        """Read the part of this process once. The stream's first batch lists the skipped images."""
        share = reader_range(len(self.stream), self.rank, self.world_size)
        is_first = share.start == 0 and len(share) > 0 and self._batches.start == 0
        skipped = list(getattr(self.stream.source, "skipped", ())) if is_first else []
        for batch in super().__iter__():
            batch["skipped"], skipped = skipped, []
            yield batch


def _shape(stream: Stream) -> tuple[int, int]:
    source = stream.source
    if not isinstance(source, RowSource):
        got = type(source).__name__
        raise InvalidArgumentError(f"data set {stream.name!r}: expected recorded features or logits, got {got}")
    return source.width, source.num_classes
