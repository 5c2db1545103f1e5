"""Identify the content of streams from names and sampled images."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from torch import Tensor

from oodlit.base.code_identity import code_digest
from oodlit.base.secrets import mask_text
from oodlit.base.text.warn import warn
from oodlit.base.value_description import describe, hash_of
from oodlit.datamodules.classes import AlignedSource
from oodlit.datamodules.decode import Decode, decode_image
from oodlit.datamodules.generated.corruptions import CorruptedSource
from oodlit.datamodules.generated.unit_test_source import UnitTestSource
from oodlit.datamodules.pool import PooledSource
from oodlit.datamodules.shards.reader import ShardSource
from oodlit.datamodules.sources import DatasetSource, FileSource, IndexedSource, MemorySource
from oodlit.datamodules.stream import Sample, Source, Stream
from oodlit.datamodules.subsets import SubsetSource
from oodlit.datamodules.thinning import ThinnedSource


def identity(stream: Stream) -> dict[str, str | int]:
    """Facts that identify a stream: role, number of images, names, and digests of its source and of sampled images.

    "content" covers the manifest of shards, and the keys, labels and groups of files and of samples in memory. "sample"
    covers the sizes of all files and the content of images that are spread over the source; shards are not read again,
    since their manifest has checksums. It is empty where there is nothing to read. A custom source is identified by its
    class, its length, and its attribute `content` (text) if it has one, or else its first, middle and last image.

    Example:
        >>> from oodlit.datamodules.stream import Sample
        >>> from oodlit.roles import Role
        >>> one, other = (Stream("a", Role.OOD, MemorySource([Sample(key, b"")])) for key in ("x", "y"))
        >>> identity(one) == identity(other), identity(one) == identity(one)
        (False, True)
    """
    return {
        "role": str(stream.role),
        "images": len(stream),
        "classes": _digest(stream.class_names),
        "labels": _digest(stream.label_names),
        "prepared": stream.prepared,
        "split": _split(stream),
        "content": _content(stream.source),
        "sample": _sample(stream.source),
    }


def other_fact(known: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the fact in which a stream differs from a known one; empty if they are the same.

    Facts that one of them is missing, as in records of earlier versions, are not compared.
    """
    return next(
        (fact for fact, value in facts.items() if "" not in (was := known.get(fact, ""), value) and was != value), ""
    )


class ChangedFilesWarning(UserWarning):
    """Warning that an earlier fit or run is reused, although some files of its data were modified later."""


def warn_of_changed_files(streams: Iterable[Stream], since: float, hint: str) -> None:
    """Warn if some files of a stream, but not all, were modified after a time, since `identity` reads only a sample.

    There is no warning if all files are new: then the folder is a copy.

    Args:
        streams: Streams whose images are the same according to `identity`.
        since: When the earlier work was written, in seconds since the epoch.
        hint: What to do if the files are other images; ends the message.
    """
    for stream in streams:
        paths = list(_paths(stream.source))
        changed = [path for path in paths if _changed_at(path) > since]
        if 0 < len(changed) < len(paths):
            warn(
                f"data set {stream.name!r}: {len(changed):,} of {len(paths):,} files (first: {changed[0]}) were"
                " modified after the earlier run or recording. Only the contents of a sample of files were compared;"
                f" {hint}",
                ChangedFilesWarning,
            )


def _paths(source: object) -> Iterator[str]:
    for kind, inner in _INNER.items():
        if isinstance(source, kind):
            for one in inner(source):
                yield from _paths(one)
    if isinstance(source, IndexedSource):
        yield from map(str, getattr(source, "paths", ()))
    if isinstance(source, DatasetSource):  # as torchvision's folders of images list their files
        items = getattr(source.dataset, "samples", None)
        yield from (item[0] for item in items or () if isinstance(item, tuple) and isinstance(item[0], str))


def _changed_at(path: str) -> float:
    """When a file was written or put in its place."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a million paths
    except OSError:
        return 0.0
    return max(found.st_mtime, found.st_ctime)


def workers_decoder(decode: Decode) -> str:
    """Name what decodes the images in the workers."""
    return f"workers {decoder_of(decode)}".rstrip()


def decoder_of(decode: Decode) -> str:
    """Identify a decoder that may return other pixels than `decode_image`; empty for `decode_image`.

    An object is identified by its attributes, too, and a function by the values that it holds from outside. Secrets
    among the arguments are masked, because records keep this text; a hash of all arguments follows them.

    Example:
        >>> decoder_of(partial(decode_image, max_pixels=10**9)), decoder_of(partial(decode_image, reduce_to=8))
        ('', 'decode_image(reduce_to=8)')
    """
    function, options = (decode.func, decode.keywords) if isinstance(decode, partial) else (decode, {})
    positions = decode.args if isinstance(decode, partial) else ()
    options = {name: value for name, value in options.items() if name != "max_pixels" or function is not decode_image}
    if function is decode_image and not options:
        return ""
    given = ", ".join(
        [*map(_described, positions), *(f"{name}={_described(v)}" for name, v in sorted(options.items()))]
    )
    name = getattr(function, "__qualname__", type(function).__qualname__)
    is_plain = function is decode_image or (isinstance(function, FunctionType) and not function.__closure__)
    masked = mask_text(given)
    hidden = hash_of(given) if masked != given else ""
    state = "" if is_plain else _state(function)
    return " ".join(filter(None, [f"{name}({masked})", hidden, state, code_digest([function])]))


def _state(value: object) -> str:
    return hash_of(describe(value))


def _split(stream: Stream) -> str:
    """Describe the parts of a pool, with a hash of its list: two lists may have the same name."""
    parts = getattr(stream.split, "parts", None)
    return str(stream.split) + (f" {_digest(sorted(parts.items()))}" if parts else "")


def _content(source: object) -> str:
    for kind, parts in _PARTS.items():
        if isinstance(source, kind):
            return _digest(parts(source))
    content = getattr(source, "content", None)
    return f"{_class_of(source)} {content}" if isinstance(content, str) and content else _class_of(source)


def _class_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


_PARTS: dict[type, Callable[[Any], Iterable[object]]] = {
    ShardSource: lambda s: ((r.file, r.samples, r.size, r.sha256, r.listing) for r in s.info.shards),
    FileSource: lambda s: [s.keys, s.labels, s.groups],
    MemorySource: lambda s: ((sample.key, sample.label, sample.group, sample.error) for sample in s.samples),
    DatasetSource: lambda s: [_class_of(s.dataset), s.keys, s.groups, s.labelled],
    ThinnedSource: lambda s: [_content(s.source), s.positions],
    SubsetSource: lambda s: [_content(s.source), s.positions, s.labels, s.groups, s.group_by_label],
    AlignedSource: lambda s: [_content(s.source), s.labels],
    PooledSource: lambda s: [*((one.name, *identity(one).items()) for one in s.streams), s.repeated],
    CorruptedSource: lambda s: [_content(s.images), s.settings, s.seed, s.quality],
    UnitTestSource: lambda s: [s.templates, "" if s.images is None else _content(s.images), s.tests, s.seed, s.scale],
}
"""Facts that identify a source, by its class."""


def _sample(source: object) -> str:
    """Hash some images; empty if the source is identified in another way, or if two readings differ."""
    for kind, inner in _INNER.items():
        if isinstance(source, kind):
            return _digest(found) if any(found := [_sample(one) for one in inner(source)]) else ""
    named = bool(getattr(source, "content", "")) and not isinstance(source, IndexedSource)
    if isinstance(source, ShardSource) or not isinstance(source, Source) or named:
        return ""
    settings, images = _settings(source), _images(source)
    known = settings if settings == _settings(source) else []  # an object may count its calls
    if images:
        return _digest([images, *known]) if known else images
    return _digest(known) if known else ""


def _images(source: Source) -> str:
    """Hash the sampled images; empty if two readings differ, or if an image cannot be read."""
    try:
        digest, again = (_digest(_read(source)) for _ in range(2))
    except Exception:  # custom sources raise anything; the run reaches the sample later, and names it
        return ""
    return digest if digest == again else ""


_INNER: dict[type, Callable[[Any], list[object]]] = {
    SubsetSource: lambda s: [s.source],
    AlignedSource: lambda s: [s.source],
    PooledSource: lambda s: [one.source for one in s.streams],
    CorruptedSource: lambda s: [s.images, decoder_of(s.decode)],
    UnitTestSource: lambda s: [s.images, decoder_of(s.decode)],
}
"""The sources that a source reads from, by its class."""


def _read(source: Source) -> Iterator[object]:
    """Yield facts that identify the samples of a source."""
    most = 1024 if isinstance(source, MemorySource) else 32 if isinstance(source, IndexedSource) else 3
    for place in sorted({round(part * (len(source) - 1)) for part in np.linspace(0, 1, most).tolist()} - {-1}):
        yield from map(_seen, source.read(place, place + 1))
    if isinstance(source, FileSource):
        yield from map(_size, source.paths)


def _settings(source: Source) -> list[object]:
    return list(_dataset(source.dataset)) if isinstance(source, DatasetSource) else []


def _seen(sample: Sample) -> tuple[object, ...]:
    image = sample.image
    if isinstance(image, Tensor):
        image = repr((image.shape, image.dtype)).encode() + image.detach().double().cpu().numpy().tobytes()
    elif not isinstance(image, bytes):
        image = repr((image.mode, image.size)).encode() + image.tobytes()
    return sample.key, sample.label, sample.group, hashlib.blake2b(image, digest_size=12).hexdigest()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - a million paths
    except OSError:  # the run lists it as unreadable, or stops there
        return -1


def _dataset(dataset: Any) -> Iterator[object]:
    """Return the settings and labels of a map-style data set, and of the data sets that it wraps."""
    seen: set[int] = set()
    while dataset is not None and id(dataset) not in seen:
        seen.add(id(dataset))
        for name in ("content", "indices", "targets", "labels"):
            yield _values(getattr(dataset, name, ()))
        for name in ("transform", "target_transform", "transforms"):
            yield _described(getattr(dataset, name, None))
        dataset = getattr(dataset, "dataset", None)


def _values(values: Any) -> object:
    """Numbers or names as lists; a description of anything else."""
    if callable(values):  # a method
        return ""
    values = values.detach().cpu() if isinstance(values, Tensor) else values
    try:
        array = np.asarray(values)
    except ValueError:  # several labels per image
        return describe(values)
    return describe(values) if array.dtype.kind == "O" else array.tolist()


def _described(value: object) -> str:
    """A text about a setting, with the code and state of custom classes and functions, without addresses in memory."""
    text = repr(value)
    has_state = " at 0x" in text and not isinstance(value, MethodType)  # a method belongs to any object, often large
    parts = [re.sub(r" at 0x[0-9a-f]+", "", text), _state(value) if has_state else "", code_digest([value])]
    return " ".join(filter(None, parts))


def _digest(parts: Iterable[object]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(repr(part).encode(errors="surrogatepass") + b"\n")
    return digest.hexdigest()
