"""Load a pipeline in batches."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from oodlit.base.errors import DataError, OodlitError, PreprocessingError
from oodlit.datamodules.batches import Batch, StreamBatches
from oodlit.datamodules.failures import describe_error
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.pipelines.source import PipelineSource
from oodlit.datamodules.stream import Sample


@dataclass(eq=False)
class PipelineBatches(StreamBatches):
    """Batches of one worker's part of a pipeline."""

    def _read(self, positions: range) -> Iterator[Batch]:
        return self._batched(self._limited(), len(self.stream))

    def _limited(self) -> Iterator[Sample]:
        for count, sample in enumerate(self._part(), 1):
            if count > len(self.stream):
                raise DataError(
                    f"data set {self.stream.name!r}: expected {len(self.stream)} samples in total, but one worker"
                    " returned more. If the pipeline repeats or resamples, limit it to one epoch; otherwise"
                    " correct count=... of PipelineSource or pipeline_stream"
                )
            yield sample

    def _part(self) -> Iterator[Sample]:
        source = self.stream.source
        assert isinstance(source, PipelineSource)
        try:
            yield from source.part()
        except OodlitError as error:
            raise type(error)(f"data set {self.stream.name!r}: {error}") from error
        except Exception as error:
            raise PreprocessingError(
                f"data set {self.stream.name!r}: the pipeline failed ({describe_error(error)})"
            ) from error


class PipelineLoader(StreamLoader):
    """Batches of this process's part of a pipeline. The number of batches is known only at the end."""

    batches_class = PipelineBatches

    def __len__(self) -> int:
        """Raise `TypeError`: the number of batches is unknown.

        Raises:
            TypeError: Always, as from an iterable without a length.
        """
        raise TypeError("the batches of a pipeline have no len(); their number is known only after reading")

    def __iter__(self) -> Iterator[Batch]:
        """Read the part of this process once, and count its samples."""
        source = self.stream.source
        assert isinstance(source, PipelineSource)
        source.seen = array("Q")
        yield from self._counted(source.seen)
