"""Batches of a pipeline."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from oodlit.datamodules.batches import Batch, StreamBatches
from oodlit.datamodules.failures import describe_error
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.pipelines.source import PipelineSource
from oodlit.datamodules.stream import Sample
from oodlit.errors import DataError, OodlitError, PreprocessingError


@dataclass(eq=False)
class PipelineBatches(StreamBatches):
    """Batches of what a pipeline gives to one worker."""

    def _read(self, positions: range) -> Iterator[Batch]:
        rows, count = self._rows(self.batch_size), 0
        for sample in self._measured(self._share()):
            count += 1
            if count > len(self.stream):
                raise DataError(
                    f"stream {self.stream.name!r}: a single worker got more than the {len(self.stream)} samples that"
                    " were announced; does the pipeline repeat or resample? Give it one epoch, or the right count"
                )
            self._add(rows, sample)
            if count % self.batch_size == 0:
                yield self._batch(rows)
                rows = self._rows(self.batch_size)
        if count % self.batch_size:
            yield self._batch(rows)

    def _share(self) -> Iterator[Sample]:
        source = self.stream.source
        assert isinstance(source, PipelineSource)
        try:
            yield from source.share()
        except OodlitError as error:
            raise type(error)(f"stream {self.stream.name!r}: {error}") from error
        except Exception as error:
            raise PreprocessingError(
                f"stream {self.stream.name!r}: the pipeline failed: {describe_error(error)}"
            ) from error


class PipelineLoader(StreamLoader):
    """Batches of what a pipeline gives to this process; how many there are is known at the end only."""

    batches_class = PipelineBatches

    def __len__(self) -> int:
        """Unknown.

        Raises:
            TypeError: Always, as from an iterable without a length.
        """
        raise TypeError("a pipeline does not tell how many of its samples this process gets")

    def __iter__(self) -> Iterator[Batch]:
        """Read the share of this process once, and keep count."""
        source = self.stream.source
        assert isinstance(source, PipelineSource)
        source.seen = array("Q")
        yield from self._counted(source.seen)
