"""A pipeline, such as a `webdataset.WebDataset`, as a source of samples."""

import hashlib
import os
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

from PIL import Image
from torch import Tensor

from oodlit.datamodules.shards.members import IMAGE_FIELDS, LABEL_FIELD, META_FIELD
from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role

KEY_FIELD = "__key__"
"""Where webdataset keeps the key of a sample."""


class PipelineSource:
    """Samples of an iterable that cuts itself over processes and workers, in any order.

    Nobody else can tell whether it gives every sample exactly once. A run therefore counts: at its end all processes
    together must have seen as many samples as were announced, each once, or the run fails with the names of the keys.

    Args:
        pipeline: Gives items; iterated anew for every reading, so no generator. It decides by itself which of them
            this process and this worker get, as `webdataset.split_by_node` and `split_by_worker` do.
        count: How many samples all processes and workers get together.
        to_sample: From an item to a `Sample`; `sample_of` by default.

    Attributes:
        seen: Digests of the keys that this process saw in the last reading.

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
        if count < 1:
            raise InvalidArgumentError(f"PipelineSource: count={count!r}; the number of samples, at least 1, is needed")
        if isinstance(pipeline, Iterator) or not hasattr(pipeline, "__iter__"):
            raise InvalidArgumentError(
                f"PipelineSource: a {type(pipeline).__name__} cannot be read more than once; give a"
                " webdataset.WebDataset, an IterableDataset, or another object whose __iter__ starts anew"
            )
        self.pipeline, self.count, self.to_sample = pipeline, count, to_sample or sample_of
        self.seen = array("Q")

    def __len__(self) -> int:
        """The number of samples that was announced."""
        return self.count

    @property
    def content(self) -> str:
        """What tells this pipeline from another: its own `content`, or a digest of the names of webdataset's shards.

        Empty where neither is known. The folder of the shards does not count: data are copied to the machine of a job.
        """
        if isinstance(own := getattr(self.pipeline, "content", None), str):
            return own
        stages = [stage.urls for stage in getattr(self.pipeline, "pipeline", ()) if hasattr(stage, "urls")]
        names = [str(url).rsplit("/", 1)[-1] for urls in stages for url in ([urls] if isinstance(urls, str) else urls)]
        if not names:
            return ""
        return hashlib.blake2b("\n".join(names).encode(errors="surrogatepass"), digest_size=12).hexdigest()

    def share(self) -> Iterator[Sample]:
        """The samples that the pipeline gives to this process and worker."""
        return map(self.to_sample, self.pipeline)

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples start, ..., stop - 1 as a single process would get them; those before are read as well."""
        samples, end = islice(self.share(), max(start, 0), max(stop, 0)), object()
        while True:
            with _alone():  # not longer than the pipeline is at work: others read the environment, too
                sample = next(samples, end)
            if not isinstance(sample, Sample):
                return
            yield sample

    def find(self, keys: Collection[str]) -> Iterator[Sample]:
        """The samples of these keys."""
        return (sample for sample in self.read(0, self.count) if sample.key in keys)

    def __getstate__(self) -> dict[str, Any]:
        """Workers need no record of what was seen."""
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
    """A stream of a pipeline; see `PipelineSource` for its arguments and `Stream` for the others.

    Example:
        >>> items = [{"__key__": "a", "png": b"...", "json": {"group": 0}}]
        >>> len(pipeline_stream(items, name="far", role=Role.OOD, count=1, class_names=("cat",)))
        1
    """
    return Stream(name, Role(role), PipelineSource(pipeline, count, to_sample=to_sample), tuple(class_names))


def sample_of(item: Any) -> Sample:
    """The sample of an item: a dictionary as webdataset gives it, or a tuple (key, image, label, group).

    Of a dictionary, the key is `__key__`, the image the only field of an image (`jpg`, `png`, ...; bytes, a PIL image
    or a tensor), the label `cls`, the group `json["group"]`. Label and group may be missing.

    Raises:
        DataError: There is no key, or not one image.

    Example:
        >>> sample_of(("a", b"...", 3)).label, sample_of({"__key__": "b", "jpg": b"..."}).label
        (3, -1)
    """
    if isinstance(item, Sample):
        return item
    if isinstance(item, tuple | list) and 2 <= len(item) <= 4 and isinstance(item[0], str):
        label, group = [*map(_number, item[2:]), -1, -1][:2]
        return Sample(item[0], _image(item[1], item[0]), label, group)
    if not isinstance(item, Mapping) or not isinstance(item.get(KEY_FIELD), str):
        raise DataError(
            f"pipeline: an item is a {type(item).__name__}; a dictionary with {KEY_FIELD!r} and an image, or a tuple"
            " (key, image, label, group) is needed - or pass to_sample, which makes a Sample of it"
        )
    key = item[KEY_FIELD]
    images = [name for name in item if str(name).lower() in IMAGE_FIELDS]
    if len(images) != 1:
        raise DataError(f"pipeline: {key!r} has {len(images)} images ({sorted(map(str, item))}); one is needed")
    meta = item.get(META_FIELD)
    group = meta.get("group", -1) if isinstance(meta, Mapping) else -1
    origin = str(item.get("__url__", ""))
    return Sample(key, _image(item[images[0]], key), _number(item.get(LABEL_FIELD, -1)), _number(group), origin=origin)


def _image(value: Any, key: str) -> bytes | Image.Image | Tensor:
    if isinstance(value, bytes | Image.Image | Tensor):
        return value
    raise DataError(f"pipeline: the image of {key!r} is a {type(value).__name__}; bytes, PIL image or tensor is needed")


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"pipeline: label or group {value!r}; a class index is needed") from error


@contextmanager
def _alone() -> Iterator[None]:
    """Let webdataset believe that there is one process and one worker: all samples, in one order."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "WORKER": "0", "NUM_WORKERS": "1"}
    before = {name: os.environ.get(name) for name in alone}
    os.environ.update(alone)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
