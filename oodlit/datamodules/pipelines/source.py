"""Use a pipeline, such as a `webdataset.WebDataset`, as a source of samples."""

import hashlib
import os
import reprlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from numbers import Integral
from typing import Any

from PIL import Image
from torch import Tensor

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.datamodules.shards.members import IMAGE_FIELDS, LABEL_FIELD, META_FIELD
from oodlit.datamodules.stream import Sample, Stream

KEY_FIELD = "__key__"
"""Name of the key in webdataset's samples."""


class PipelineSource:
    """Samples of an iterable that distributes itself over processes and workers, in any order.

    Because only the pipeline controls which samples it yields, a run checks at its end that all processes together
    have seen the expected number of samples, each once. Otherwise it fails and names the keys.

    Args:
        pipeline: Yields items. It is iterated again for every reading, so it cannot be a generator. It chooses the
            items of this process and worker itself, as `webdataset.split_by_node` and `split_by_worker` do.
        count: Total number of samples of all processes and workers.
        to_sample: Converts an item to a `Sample`; `sample_of` by default.

    Attributes:
        seen: Hashes of the keys that this process saw in the last reading.

    Raises:
        InvalidArgumentError: `count` is below 1, or the pipeline cannot be iterated more than once.

    Example:
        >>> items = [{"__key__": "a", "jpg": b"...", "cls": b"3"}, {"__key__": "b", "jpg": b"...", "cls": b"5"}]
        >>> [(sample.key, sample.label) for sample in PipelineSource(items, 2).read(0, 2)]
        [('a', 3), ('b', 5)]
    """

    def __init__(
        self, pipeline: Iterable[Any], count: int, *, to_sample: Callable[[Any], Sample] | None = None
    ) -> None:
        given: object = count  # NumPy's integers are integers, too
        if isinstance(given, bool) or not isinstance(given, Integral) or given < 1:
            raise InvalidArgumentError(f"PipelineSource: expected count to be an integer >= 1, got {count!r}")
        if isinstance(pipeline, Iterator) or not hasattr(pipeline, "__iter__"):
            raise InvalidArgumentError(
                "PipelineSource: expected an object that can be iterated repeatedly, got"
                f" {type(pipeline).__name__}; pass a webdataset.WebDataset, an IterableDataset, or another object"
                " whose __iter__ starts over"
            )
        self.pipeline, self.count, self.to_sample = pipeline, count, to_sample or sample_of
        self.seen = array("Q")

    def __len__(self) -> int:
        """Expected number of samples."""
        return self.count

    @property
    def content(self) -> str:
        """Text that identifies the pipeline: its `content`, or a digest of the names of webdataset's shards.

        Empty if neither is known. The folder of the shards is ignored, because jobs often copy data to their machine.
        """
        if isinstance(own := getattr(self.pipeline, "content", None), str):
            return own
        stages = [stage.urls for stage in getattr(self.pipeline, "pipeline", ()) if hasattr(stage, "urls")]
        names = [str(url).rsplit("/", 1)[-1] for urls in stages for url in ([urls] if isinstance(urls, str) else urls)]
        if not names:
            return ""
        return hashlib.blake2b("\n".join(names).encode(errors="surrogatepass"), digest_size=12).hexdigest()

    def part(self) -> Iterator[Sample]:
        """The samples of this process and worker."""
        return map(self.to_sample, self.pipeline)

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples start, ..., stop - 1 in the order of a single process; all earlier samples are read as well."""
        samples, end = islice(self.part(), max(start, 0), max(stop, 0)), object()
        while True:
            with _single_process():  # only while the pipeline works: other code reads the environment, too
                sample = next(samples, end)
            if not isinstance(sample, Sample):
                return
            yield sample

    def find(self, keys: Collection[str]) -> Iterator[Sample]:
        """The samples of these keys."""
        return (sample for sample in self.read(0, self.count) if sample.key in keys)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude `seen`, which workers do not need."""
        return {**self.__dict__, "seen": array("Q")}


def pipeline_stream(
    pipeline: Iterable[Any],
    *,
    name: str,
    role: Role,
    count: int,
    class_names: tuple[str, ...] = (),
    to_sample: Callable[[Any], Sample] | None = None,
) -> Stream:
    """A stream from a pipeline; for the arguments see `PipelineSource` and `Stream`.

    Example:
        >>> items = [{"__key__": "a", "png": b"...", "json": {"group": 0}}]
        >>> len(pipeline_stream(items, name="far", role=Role.OOD, count=1, class_names=("cat",)))
        1
    """
    return Stream(name, Role(role), PipelineSource(pipeline, count, to_sample=to_sample), tuple(class_names))


def sample_of(item: Any) -> Sample:
    """Convert an item to a sample: a dictionary from webdataset, or a tuple (key, image, label, group).

    In a dictionary, the key is `__key__`, the image is the only image field (`jpg`, `png`, ...; bytes, a PIL image or a
    tensor), the label is `cls`, and the group is `json["group"]`. Label and group are optional.

    Raises:
        DataError: There is no key, or not exactly one image.

    Example:
        >>> sample_of(("a", b"...", 3)).label, sample_of({"__key__": "b", "jpg": b"..."}).label
        (3, -1)
    """
    if isinstance(item, Sample):
        return item
    if isinstance(item, tuple | list) and 2 <= len(item) <= 4 and isinstance(item[0], str):
        label, group = [*(_number(value, item[0]) for value in item[2:]), -1, -1][:2]
        return Sample(item[0], _image(item[1], item[0]), label, group)
    if not isinstance(item, Mapping) or not isinstance(item.get(KEY_FIELD), str):
        raise DataError(
            f"pipeline: expected a dictionary with {KEY_FIELD!r} (of type str) and an image, or a tuple (key, image),"
            " (key, image, label) or (key, image, label, group) with a key of type str; got"
            f" {type(item).__name__} {reprlib.repr(item)}. Convert other items with PipelineSource(..., to_sample=...)"
        )
    key = item[KEY_FIELD]
    images = [name for name in item if str(name).lower() in IMAGE_FIELDS]
    if len(images) != 1:
        raise DataError(
            f"pipeline: expected one image in item {key!r}, got {len(images)}; its fields: {', '.join(map(str, item))}"
        )
    meta = item.get(META_FIELD)
    group = meta.get("group", -1) if isinstance(meta, Mapping) else -1
    label, group = (_number(value, key) for value in (item.get(LABEL_FIELD, -1), group))
    return Sample(key, _image(item[images[0]], key), label, group, origin=str(item.get("__url__", "")))


def _image(value: Any, key: str) -> bytes | Image.Image | Tensor:
    if isinstance(value, bytes | Image.Image | Tensor):
        return value
    raise DataError(f"pipeline: expected image {key!r} as bytes, PIL image or tensor, got {type(value).__name__}")


def _number(value: Any, key: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"pipeline: expected label and group of {key!r} to be integers, got {value!r}") from error


@contextmanager
def _single_process() -> Iterator[None]:
    """Make webdataset see one process and one worker, so that it yields all samples in one order."""
    single = {"RANK": "0", "WORLD_SIZE": "1", "WORKER": "0", "NUM_WORKERS": "1"}
    before = {name: os.environ[name] for name in single if name in os.environ}
    os.environ.update(single)
    try:
        yield
    finally:
        for name in single:
            os.environ.pop(name, None)
        os.environ.update(before)
