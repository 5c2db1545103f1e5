"""Identify the content of streams without reading their images."""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from oodlit.datamodules.classes import AlignedSource
from oodlit.datamodules.generated.corruptions import CorruptedSource
from oodlit.datamodules.generated.unit_test_source import UnitTestSource
from oodlit.datamodules.pool import PooledSource
from oodlit.datamodules.shards.reader import ShardSource
from oodlit.datamodules.sources import DatasetSource, FileSource, MemorySource
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.thinning import ThinnedSource


def identity(stream: Stream) -> dict[str, str | int]:
    """Facts that identify a stream: role, number of images, names, and a digest of its source.

    The digest covers the manifest of shards, and the keys, labels and groups of files and of samples in memory. Image
    bytes are not read. A custom source is identified by its class, its length, and its attribute `content` (text) if it
    has one.

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
    }


def _split(stream: Stream) -> str:
    """The parts of a pool, with a digest: two lists may have the same name."""
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
    AlignedSource: lambda s: [_content(s.source), s.labels],
    PooledSource: lambda s: [*((one.name, *identity(one).items()) for one in s.streams), s.repeated],
    CorruptedSource: lambda s: [_content(s.images), s.settings, s.seed, s.quality],
    UnitTestSource: lambda s: [s.templates, "" if s.images is None else _content(s.images), s.tests, s.seed, s.scale],
}
"""What identifies a source, by its class."""


def _digest(parts: Iterable[object]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(repr(part).encode(errors="surrogatepass") + b"\n")
    return digest.hexdigest()
