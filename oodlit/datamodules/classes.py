"""One order of classes for a run: labels of all streams are mapped to it by class name."""

import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.json_files import loads
from oodlit.base.known_classes.imagenet import class_names as imagenet_names
from oodlit.base.known_classes.imagenet import wnid_labels, wnids
from oodlit.base.roles import Role
from oodlit.base.yaml_files import load_yaml
from oodlit.datamodules.keys import repeated
from oodlit.datamodules.stream import Sample, Source, Stream, check_class_names, find_samples, pick_samples
from oodlit.datamodules.subsets import SampleFacts, facts_of

IMAGENET = "imagenet"
"""Value of `class_names` for the 1,000 classes of ImageNet-1k in the order of the published classifiers."""


def as_class_names(names: str | Path | Sequence[str] | None) -> tuple[str, ...]:
    """Read class names from a list, a file, or "imagenet"; () for None.

    A file has one name per line. A `.json` or `.yaml` file is a list of names, or a mapping from indices to names, such
    as `id2label` of a network's config, which is read in the order of the indices.

    Raises:
        InvalidArgumentError: The file does not exist or has another format, there are no names, or a name occurs twice.

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
            names = _names_in(Path(names).read_text("utf-8-sig"), Path(names).suffix.lower())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise InvalidArgumentError(
                f"{where}: cannot read the file ({error}); pass a list, a file with one name per line, or {IMAGENET!r}"
            ) from error
    found: tuple[Any, ...] = tuple(names)
    if not found:
        raise InvalidArgumentError(f"{where}: expected at least one name, got none")
    if other := [name for name in found if not isinstance(name, str)]:
        raise InvalidArgumentError(f"{where}: expected names of type str, got {other[0]!r}")
    check_class_names(where, Role.OOD, found)
    return found


def _names_in(text: str, suffix: str) -> list[str]:
    """Class names in the text of a file.

    Raises:
        ValueError: The format is another one.
        yaml.YAMLError: The text is not valid YAML.
    """
    if suffix in (".csv", ".tsv"):
        raise ValueError(f"expected one name per line in a .txt file, or a .json or .yaml file; got {suffix}")
    if suffix not in (".json", ".yaml", ".yml"):
        if text.lstrip()[:1] in ("[", "{"):
            raise ValueError("expected one name per line, got JSON; rename the file to .json")
        return [line.strip() for line in text.splitlines() if line.strip()]
    found = loads(text) if suffix == ".json" else load_yaml(text)
    if isinstance(found, dict) and sorted(map(str, found)) == sorted(map(str, range(len(found)))):
        by_text = {str(index): name for index, name in found.items()}
        found = [by_text[str(index)] for index in range(len(found))]
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ValueError("expected a list of names, or a mapping from the indices 0, 1, ... to names")
    return found


def align_streams(streams: Sequence[Stream], class_names: tuple[str, ...] = ()) -> tuple[list[Stream], tuple[str, ...]]:
    """Map the labels of all streams to one order of classes.

    The order is that of `class_names`, else of the training stream, else of the ID stream. Streams without label names
    stay as they are.

    Returns:
        The streams, and the names in this order; () if no stream has names.

    Raises:
        DataError: A stream has an unknown class, names are ambiguous, or the order cannot be determined.
    """
    by_role = [stream for role in (Role.TRAIN, Role.ID) for stream in streams if stream.role is role]
    leading = next((stream for stream in by_role if stream.label_names), None)
    names, source = class_names, "class_names"
    if not names and leading is not None:
        names, source = leading.label_names, f"data set {leading.name!r}"
        _check_order(names, source)
    return [_aligned(stream, names, source) for stream in streams], names


def _check_order(names: tuple[str, ...], source: str) -> None:
    """Refuse class names in an order that comes only from sorting them."""
    if not _are_indices(names) and all(name.isdecimal() for name in names):
        raise DataError(
            f"{source}: the {len(names)} class names are numbers, but not 0, ..., {len(names) - 1} in this order:"
            f" {_shown(names)}. Pass class_names=[...] in the order of the classifier"
        )
    keys = _keys(names)
    if keys != imagenet_keys() and len(keys) == len(imagenet_keys()) and set(keys) == set(imagenet_keys()):
        first = next(i for i, key in enumerate(keys) if key != imagenet_keys()[i])
        published = (wnids() if names[first] in wnid_labels() else imagenet_names())[first]
        raise DataError(
            f"{source}: the classes of ImageNet-1k are not in the published order (label {first} is {names[first]!r},"
            f" not {published!r}). If the logits have the published order, pass class_names={IMAGENET!r} to"
            " renumber the labels. Otherwise pass class_names=[...] with the names in the order of the logits"
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
            f"data set {stream.name!r}: expected only classes of {source}, got {_shown(unknown)}. Classes of {source}:"
            f" {_shown(names)}. Rename or remove unknown classes, or {'correct' if source == 'class_names' else 'pass'}"
            " class_names=[...] in the order of the classifier"
        )
    for what, found in ((f"data set {stream.name!r}", keys), (source, known)):
        if twice := repeated(found):
            raise DataError(
                f"{what}: two classes are called {twice[0]!r}, so the labels of data set {stream.name!r} cannot be"
                f" mapped to the order of the classes in {source}; rename one of the two"
            )
    return _renamed(stream, AlignedSource(stream.source, [index[key] for key in keys]), names)


def _renamed(stream: Stream, source: Source, names: tuple[str, ...]) -> Stream:
    class_names = stream.class_names if stream.role is Role.SHIFT else names
    return replace(stream, source=source, class_names=class_names, label_names=names)


class AlignedSource:
    """A source with its labels renumbered.

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

    def facts(self) -> Iterator[SampleFacts]:
        """Facts of all samples, with the new labels."""
        for path, label, group in facts_of(self.source):
            yield SampleFacts(path, self.labels[label] if 0 <= label < len(self.labels) else -1, group)

    def _relabelled(self, sample: Sample) -> Sample:
        if sample.label < 0:
            return sample
        if sample.label < len(self.labels):
            return replace(sample, label=self.labels[sample.label])
        reason = f"label {sample.label} is out of range for {len(self.labels)} class names"
        return replace(sample, error=sample.error or reason)


def imagenet_keys() -> list[str]:
    """Normalized names of ImageNet's classes."""
    return [_key(name) for name in imagenet_names()]


def _keys(names: Sequence[str]) -> list[str]:
    """Names normalized for comparison: WordNet ids become readable names, Unicode one form."""
    if wnid_labels().keys() >= set(names):
        names = [imagenet_names()[wnid_labels()[name]] for name in names]
    return [_key(name) for name in names]


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name.strip())


def _are_labels(own: Sequence[str], names: Sequence[str]) -> bool:
    """Whether one of the two lists uses the numbers 0, 1, ... as names, like folders named after labels."""
    if all(name.isdecimal() for name in (*own, *names)):
        return False
    return (_are_indices(own) and len(own) <= len(names)) or (_are_indices(names) and len(own) == len(names))


def _are_indices(names: Sequence[str]) -> bool:
    return all(name == str(i) for i, name in enumerate(names))


def _shown(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (f", ... ({len(names)} in total)" if len(names) > 5 else "")
