"""What a stream holds, as a short text: two that differ hold other images, as far as that is known without reading."""

import hashlib
from collections.abc import Iterable
from functools import singledispatch

from oodlit.datamodules.classes import AlignedSource
from oodlit.datamodules.generated.corruptions import CorruptedSource
from oodlit.datamodules.generated.unit_test_source import UnitTestSource
from oodlit.datamodules.pool import PooledSource
from oodlit.datamodules.shards.reader import ShardSource
from oodlit.datamodules.sources import DatasetSource, FileSource, MemorySource
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.thinning import ThinnedSource


def identity(stream: Stream) -> dict[str, str | int]:
    """Facts that tell a stream from another: role, number of images, names, and a digest of what its source says.

    Of shards that is their manifest, of files and of samples in memory their keys, labels and groups. The bytes of
    images are not read; a source of somebody else's class is told by its class, its length, and its attribute `content`
    (text) where it has one.

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
    """The parts of a pool: two lists may have one name."""
    parts = getattr(stream.split, "parts", None)
    return str(stream.split) + (f" {_digest(sorted(parts.items()))}" if parts else "")


@singledispatch
def _content(source: object) -> str:
    kind, content = f"{type(source).__module__}.{type(source).__qualname__}", getattr(source, "content", None)
    return f"{kind} {content}" if isinstance(content, str) and content else kind


@_content.register
def _(source: ShardSource) -> str:
    return _digest((r.file, r.samples, r.size, r.sha256, r.listing) for r in source.info.shards)


@_content.register
def _(source: FileSource) -> str:
    return _digest([source.keys, source.labels, source.groups])


@_content.register
def _(source: MemorySource) -> str:
    return _digest((s.key, s.label, s.group, s.error) for s in source.samples)


@_content.register
def _(source: DatasetSource) -> str:
    kind = f"{type(source.dataset).__module__}.{type(source.dataset).__qualname__}"
    return _digest([kind, source.keys, source.groups, source.labelled])


@_content.register
def _(source: ThinnedSource) -> str:
    return _digest([_content(source.source), source.positions])


@_content.register
def _(source: AlignedSource) -> str:
    return _digest([_content(source.source), source.labels])


@_content.register
def _(source: PooledSource) -> str:
    return _digest([(stream.name, *identity(stream).items()) for stream in source.streams] + [source.repeated])


@_content.register
def _(source: CorruptedSource) -> str:
    return _digest([_content(source.images), source.settings, source.seed, source.quality])


@_content.register
def _(source: UnitTestSource) -> str:
    images = "" if source.images is None else _content(source.images)
    return _digest([source.templates, images, source.tests, source.seed, source.scale])


def _digest(parts: Iterable[object]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(repr(part).encode(errors="surrogatepass") + b"\n")
    return digest.hexdigest()
