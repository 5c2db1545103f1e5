"""One order of classes in a run: labels of all streams are brought to it by the names of their classes."""

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from oodlit.datamodules.sets.imagenet_classes import class_names as imagenet_names
from oodlit.datamodules.sets.imagenet_classes import wnid_labels, wnids
from oodlit.datamodules.stream import Sample, Source, Stream, check_class_names, find_samples, pick_samples
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role

IMAGENET = "imagenet"
"""As `class_names`: the 1000 classes of ImageNet-1k in the order of the published classifiers."""


def as_class_names(names: str | Path | Sequence[str] | None) -> tuple[str, ...]:
    """Names of classes from a list, from a file with one name a line, or "imagenet"; () from None.

    Raises:
        InvalidArgumentError: There is no such file, it is empty, or a name occurs twice.

    Example:
        >>> as_class_names(["cat", "dog"]), len(as_class_names("imagenet"))
        (('cat', 'dog'), 1000)
    """
    if names is None:
        return ()
    where = "class_names"
    if names == IMAGENET:
        return wnids()
    if isinstance(names, str | Path):
        where = f"class_names={str(names)!r}"
        try:
            lines = Path(names).read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(
                f"{where}: cannot be read ({error}); a list of names, a file with a name a line, or {IMAGENET!r} is"
                " needed"
            ) from error
        names = [line.strip() for line in lines if line.strip()]
    found = tuple(names)
    if not found or not all(isinstance(name, str) for name in found):
        raise InvalidArgumentError(f"{where}: {len(found)} names; at least one, all of them text, is needed")
    check_class_names(where, Role.OOD, found)
    return found


def align_streams(streams: Sequence[Stream], class_names: tuple[str, ...] = ()) -> tuple[list[Stream], tuple[str, ...]]:
    """The streams with labels in one order of classes, and the names in this order; () = no stream knows names.

    The order is that of `class_names`, else that of the training stream, else that of the ID stream. A stream that
    does not know the names of its labels is left as it is.

    Raises:
        DataError: A stream has a class that the order does not know, names are ambiguous, or the order of the classes
            cannot be known.
    """
    by_role = [stream for role in (Role.TRAIN, Role.ID) for stream in streams if stream.role is role]
    leading = next((stream for stream in by_role if stream.label_names), None)
    names, source = class_names, "class_names"
    if not names and leading is not None:
        names, source = leading.label_names, f"stream {leading.name!r}"
        _check_order(names, source)
    return [_aligned(stream, names, source) for stream in streams], names


def _check_order(names: tuple[str, ...], source: str) -> None:
    """Refuse an order that nothing but the spelling of the names gave."""
    if not _are_indices(names) and all(name.isdecimal() for name in names):
        raise DataError(
            f"{source}: {len(names)} classes are numbers, but not 0, ..., {len(names) - 1} (first {names[0]!r}); which"
            " label each one means is unknown - pass class_names in the order of the classifier"
        )
    keys = _keys(names)
    if keys != imagenet_keys() and len(keys) == len(imagenet_keys()) and set(keys) == set(imagenet_keys()):
        first = next(i for i, key in enumerate(keys) if key != imagenet_keys()[i])
        raise DataError(
            f"{source}: its classes are the 1000 of ImageNet-1k in another order than that of the published classifiers"
            f" (label {first} is {names[first]!r}, not {wnids()[first]!r}); pass class_names={IMAGENET!r} to have the"
            " labels renumbered, or class_names=[...] with this list if the network was trained in this order"
        )


def _aligned(stream: Stream, names: tuple[str, ...], source: str) -> Stream:
    own = stream.label_names
    if not own or not names or own == names:
        return stream
    keys, known = _keys(own), _keys(names)
    if keys == known or _are_labels(own, names):
        return _renamed(stream, stream.source, names)
    index = {key: i for i, key in enumerate(known)}
    if unknown := [name for name, key in zip(own, keys, strict=True) if key not in index]:
        raise DataError(
            f"stream {stream.name!r}: {len(unknown)} of its {len(own)} classes are unknown to {source}:"
            f" {_shown(unknown)} (it has {_shown(names)}); rename the classes, leave these images out, or pass"
            " class_names=[...] in the order of the classifier"
        )
    for what, found in ((f"stream {stream.name!r}", keys), (source, known)):
        if len(set(found)) < len(found):
            twice = max(found, key=found.count)
            raise DataError(
                f"{what}: two classes are called {twice!r}, so that the labels of stream {stream.name!r} cannot be"
                f" brought to the order of {source}; rename one of them"
            )
    return _renamed(stream, AlignedSource(stream.source, [index[key] for key in keys]), names)


def _renamed(stream: Stream, source: Source, names: tuple[str, ...]) -> Stream:
    if stream.role is Role.SHIFT:
        return replace(stream, source=source, label_names=names)
    return replace(stream, source=source, class_names=names, label_names=names)


class AlignedSource:
    """The samples of a source with other labels.

    Args:
        source: The samples.
        labels: New label by old label.

    Example:
        >>> from oodlit.datamodules.sources import MemorySource
        >>> [sample.label for sample in AlignedSource(MemorySource([Sample("a", b"", 1)]), [4, 2]).read(0, 1)]
        [2]
    """

    def __init__(self, source: Source, labels: Sequence[int]) -> None:
        self.source, self.labels = source, tuple(labels)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.source)

    def read(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples start, ..., stop - 1."""
        return map(self._relabelled, self.source.read(start, stop))

    def pick(self, positions: Sequence[int]) -> Iterator[Sample]:
        """Samples at these positions."""
        return map(self._relabelled, pick_samples(self.source, positions))

    def find(self, keys: Collection[str]) -> Iterator[Sample]:
        """The samples of these keys."""
        return map(self._relabelled, find_samples(self.source, keys).values())

    def _relabelled(self, sample: Sample) -> Sample:
        if sample.label < 0:
            return sample
        if sample.label < len(self.labels):
            return replace(sample, label=self.labels[sample.label])
        reason = f"label {sample.label}, but the stream has {len(self.labels)} class names"
        return replace(sample, error=sample.error or reason)


def imagenet_keys() -> list[str]:
    """The names of ImageNet's classes as they are compared."""
    return [_key(name) for name in imagenet_names()]


def _keys(names: Sequence[str]) -> list[str]:
    """Names as they are compared: WordNet ids by the readable name, Unicode in one form."""
    if all(re.fullmatch(r"n\d{8}", name) for name in names) and set(names) <= wnid_labels().keys():
        names = [imagenet_names()[wnid_labels()[name]] for name in names]
    return [_key(name) for name in names]


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name.strip())


def _are_labels(own: Sequence[str], names: Sequence[str]) -> bool:
    """Whether one side has the numbers 0, 1, ... in place of names: folders called after labels."""
    if all(name.isdecimal() for name in (*own, *names)):
        return False
    return (_are_indices(own) and len(own) <= len(names)) or (_are_indices(names) and len(own) == len(names))


def _are_indices(names: Sequence[str]) -> bool:
    return all(name == str(i) for i, name in enumerate(names))


def _shown(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (f", ... {len(names)} in all" if len(names) > 5 else "")
