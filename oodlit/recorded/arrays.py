"""Make the stream of one set from arrays by name, or from a file of them."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from oodlit.base.errors import InvalidArgumentError, OodlitError
from oodlit.base.outputs import Head, Outputs
from oodlit.base.roles import NAMES_OF_LABELS, UNKNOWN_CLASSES, Role
from oodlit.datamodules.stream import Stream
from oodlit.recorded.array_files import ONE, SYNONYMS, Arrays, as_array, as_tensor, read_array, read_arrays
from oodlit.recorded.rows import MemoryRows, Rows

FIELDS = ("logits", "features", "labels", "groups", "keys", "class_names")
"""Fields of a set; one of the first two must be given."""

_EXPECTED = (
    "expected features or logits as arrays or files by name, such as {features: a.npy, logits: b.npy}, as a .npz, .pt,"
    " .pth, .parquet or .safetensors file, or as a folder of .npy files"
)
_LABELS = (
    "write train: {features: FILE, labels: FILE} in YAML, or train={'features': array, 'labels': integers} in Python"
)

Given: TypeAlias = Mapping[str, Any] | Outputs | str | Path
"""Accepted as the outputs of one set."""
GivenHead: TypeAlias = Head | nn.Linear | Sequence[Any] | Mapping[str, Any] | np.ndarray | Tensor | str | Path
"""Accepted as a head: weight and bias, or the weight alone, in one of these forms."""


def stream_of(name: str, role: Role, given: Given, class_names: Sequence[str] = ()) -> Stream:
    """Make the stream of one set.

    Args:
        name: Name of the set.
        role: Role of the set.
        given: Arrays by the names of `FIELDS`, a file or folder of them, or `Outputs`. Groups may be names;
            numbers without "class_names" are their own names.
        class_names: Names of the labels, for sets of known classes.

    Raises:
        InvalidArgumentError: The arrays do not match each other; names the set.
        DataError: A file cannot be read.
    """
    try:
        arrays = _arrays(given)
        if role is Role.TRAIN and arrays.get("labels") is None:
            raise InvalidArgumentError(f"missing labels of the training images; {_LABELS}")
        rows, own_names = _rows(arrays)
        if not own_names and role not in NAMES_OF_LABELS:
            rows, own_names = _with_numbers_as_names(rows)
        names = own_names or (() if role in UNKNOWN_CLASSES or role is Role.SHIFT else tuple(class_names))
        labels = tuple(class_names) if role is Role.SHIFT else ()
        return Stream(name, role, MemoryRows(rows), names, label_names=labels)
    except OodlitError as error:
        raise type(error)(f"{name!r}: {error}") from error


def head_of(given: GivenHead) -> Head:
    """Make a head from a `Head`, an `nn.Linear`, a pair (weight, bias), or arrays or a file with "weight" and "bias".

    A single array is the weight of a head without bias. Arrays may be files.

    Raises:
        InvalidArgumentError: The weight is missing, or the shapes do not match.

    Example:
        >>> head_of((np.eye(2), np.zeros(2))).num_classes
        2
    """
    if isinstance(given, Head):
        return given
    if isinstance(given, nn.Linear):
        return Head(given.weight, given.bias)
    if isinstance(given, str | Path):
        given = _head_in(read_arrays(given))
    if isinstance(given, np.ndarray | Tensor):
        given = (given, None)
    if isinstance(given, Mapping):
        if "weight" not in given:
            raise InvalidArgumentError(f"head: missing 'weight'; found {', '.join(map(str, given)) or 'nothing'}")
        given = [given["weight"], given.get("bias")]
    names = ("weight", "bias")
    parts = [
        read_array(part, names[min(place, 1)]) if isinstance(part, str | Path) else part
        for place, part in enumerate(given)
    ]
    if len(parts) != 2:
        raise InvalidArgumentError(f"head: expected a pair (weight, bias) or (weight, None); got {len(parts)} parts")
    weight, bias = (None if part is None else as_tensor(part, "head") for part in parts)
    if weight is None or not weight.is_floating_point():
        raise InvalidArgumentError(f"head: expected a floating-point weight, got {getattr(weight, 'dtype', None)}")
    return Head(weight, None if bias is None else bias.to(weight.dtype))


def _head_in(arrays: Arrays) -> Arrays:
    """Weight and bias of a file: a single array is the weight; a prefix such as "fc." is removed."""
    if len(arrays) == 1:
        return {"weight": next(iter(arrays.values()))}
    prefixes = [name.removesuffix("weight") for name in arrays if name.endswith(".weight")]
    if "weight" in arrays or len(prefixes) != 1:
        return arrays
    return {name.removeprefix(prefixes[0]): value for name, value in arrays.items()}


def _arrays(given: Given) -> Arrays:
    if isinstance(given, Outputs):
        return {name: value for name in FIELDS if (value := getattr(given, name, None)) is not None}
    if isinstance(given, Mapping):
        named = {SYNONYMS.get(str(name), str(name)): value for name, value in given.items() if value is not None}
        return {
            name: read_array(value, name) if isinstance(value, str | Path) else value for name, value in named.items()
        }
    if not isinstance(given, str | Path):
        raise InvalidArgumentError(f"{_EXPECTED}; got an object of type {type(given).__name__}")
    arrays = read_arrays(given)
    if ONE in arrays:
        raise InvalidArgumentError(f"{_EXPECTED}; {given} contains a single array without a name")
    return arrays


def _rows(arrays: Arrays) -> tuple[Rows, tuple[str, ...]]:
    """The rows, and the names of their groups."""
    for name in arrays.keys() - set(FIELDS):  # other arrays, such as paths, are ignored
        if near := difflib.get_close_matches(str(name).lower(), FIELDS, n=1, cutoff=0.7):
            raise InvalidArgumentError(
                f"unknown array {name!r}; did you mean {near[0]!r}? Expected some of {', '.join(FIELDS)}"
            )
    values = {name: as_tensor(arrays[name], name) for name in FIELDS[:2] if name in arrays}
    if not values:
        raise InvalidArgumentError(f"{_EXPECTED}; got {', '.join(sorted(map(str, arrays))) or 'no arrays'}")
    count = len(next(iter(values.values())))
    labels = _integers("labels", arrays.get("labels"), count)
    groups, names = _groups(arrays, count)
    keys = _keys(arrays.get("keys"), count)
    all_fields = {**values, "labels": labels, "groups": groups, "keys": keys}
    sizes = {name: len(value) for name, value in all_fields.items() if arrays.get(name) is not None}
    if len(set(sizes.values())) > 1:
        raise InvalidArgumentError(f"expected arrays with the same number of images, got {sizes}")
    return Rows(values.get("logits"), values.get("features"), labels, groups, keys), names


def _groups(arrays: Arrays, count: int) -> tuple[Tensor, tuple[str, ...]]:
    """Groups as numbers, and the names of the groups: the given ones, or those found in text groups."""
    given = arrays.get("groups")
    names: tuple[str, ...] = ()
    if (of_classes := arrays.get("class_names")) is not None:
        names = tuple(str(name) for name in _texts("class_names", as_array(of_classes, "class_names")))
    if given is None or isinstance(given, Tensor):
        return _integers("groups", given, count), names
    values = as_array(given, "groups")
    if values.dtype.kind not in "USO":
        if values.dtype.kind == "f":
            _texts("groups", values)  # refuses missing ones
        return _integers("groups", given, count), names
    texts = _texts("groups", values)
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in texts):
        return _integers("groups", np.asarray(texts, dtype=np.int64), count), names
    if other := next((value for value in texts if not isinstance(value, str)), None):
        raise InvalidArgumentError(f"groups: expected text or integers, got {other!r}")
    known = names or tuple(sorted(set(map(str, texts))))
    index = {name: number for number, name in enumerate(known)}
    if unknown := sorted(set(map(str, texts)) - index.keys()):
        raise InvalidArgumentError(f"groups: expected names from class_names ({len(known)} names), got {unknown[0]!r}")
    return torch.tensor([index[str(name)] for name in texts], dtype=torch.int64), known


def _with_numbers_as_names(rows: Rows) -> tuple[Rows, tuple[str, ...]]:
    """Name groups that have no names by their numbers; images without a group (-1) keep -1."""
    numbers: Tensor = rows.groups[rows.groups >= 0].unique()  # type: ignore[no-untyped-call]
    places = torch.searchsorted(numbers, rows.groups)
    return replace(rows, groups=torch.where(rows.groups >= 0, places, rows.groups)), tuple(map(str, numbers.tolist()))


def _texts(name: str, values: np.ndarray) -> list[Any]:
    """Convert bytes to text and refuse missing values.

    Raises:
        InvalidArgumentError: A value is None, NaN or NA, or bytes that are not UTF-8.
    """
    if values.ndim != 1:
        raise InvalidArgumentError(f"{name}: expected shape (images,), got shape {values.shape}")
    missing = np.flatnonzero(pd.isna(values))
    if len(missing):
        raise InvalidArgumentError(
            f"{name}: {len(missing)} of {len(values)} values are missing (None, NaN or NA), first in row {missing[0]};"
            " remove these images, or fill in the values"
        )
    try:
        return [value.decode() if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{name}: {error.object!r} is not UTF-8; pass text") from error


def _integers(name: str, given: Any, count: int) -> Tensor:
    if given is None:
        return torch.full((count,), -1)
    values = as_tensor(given, name)
    if values.ndim != 1 or values.is_floating_point() or values.dtype == torch.bool:
        raise InvalidArgumentError(
            f"expected {name} to be integers of shape (images,), got {values.dtype} of shape {tuple(values.shape)}"
        )
    return values.long()


def _keys(given: Any, count: int) -> Sequence[str]:
    if given is None:
        return [f"{number:08d}" for number in range(count)]
    return list(map(str, _texts("keys", as_array(given, "keys"))))
