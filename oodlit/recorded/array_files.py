"""Recorded outputs as users have them: `.npz`, `.safetensors`, Parquet, and folders of `.npy` files."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from oodlit.errors import DataError, InvalidArgumentError

Arrays = Mapping[str, Any]
"""Arrays by name."""


def read_arrays(path: str | Path) -> Arrays:
    """The arrays of a file, or of the `.npy` files of a folder, by name; nothing is unpickled.

    Columns of Parquet files that hold lists of one length become two-dimensional. `.npy` files are memory-mapped.

    Raises:
        InvalidArgumentError: There is no such file, or its kind is not known.
        DataError: The file cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(Path(folder, "id.npz"), logits=np.eye(3), labels=np.arange(3))
        ...     sorted(read_arrays(Path(folder, "id.npz")))
        ['labels', 'logits']
    """
    file = Path(path).expanduser()
    kind = "folder" if file.is_dir() else file.suffix.lower()
    if not file.exists():
        raise InvalidArgumentError(f"{file} does not exist; a file of recorded outputs is needed")
    if kind not in READERS:
        raise InvalidArgumentError(f"{file}: {kind or 'no suffix'}; known are {', '.join(sorted(READERS))}")
    try:
        return READERS[kind](file)
    except (OSError, ValueError, EOFError, pa.ArrowException, SafetensorError) as error:
        pickled = "; arrays of objects are not read, save plain numbers or text" if "pickle" in str(error) else ""
        raise DataError(f"{file}: not readable as recorded outputs ({error}){pickled}") from error


def _npz(file: Path) -> Arrays:
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _npy(file: Path) -> Arrays:
    raise InvalidArgumentError(
        f"{file}: one .npy file holds one array; give its folder with features.npy, logits.npy, labels.npy, or a .npz"
    )


def _folder(folder: Path) -> Arrays:
    found = sorted(folder.glob("*.npy"))
    if not found:
        raise InvalidArgumentError(f"{folder}: no .npy file in it; features.npy or logits.npy is needed")
    return {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in found}


def _parquet(file: Path) -> Arrays:
    table = pq.read_table(file)
    return {name: _column(table.column(name).combine_chunks(), name) for name in table.column_names}


def _column(values: Any, name: str) -> Any:
    if isinstance(values, pa.ChunkedArray):  # several files or none
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    if values.null_count:
        raise ValueError(f"column {name!r} has {values.null_count} empty values")
    if not (pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type)):
        return np.asarray(values.to_pylist()) if pa.types.is_string(values.type) else values.to_numpy(False)
    flat = values.flatten().to_numpy(False)
    if len(values) and len(flat) % len(values):
        raise ValueError(f"column {name!r} has lists of different lengths")
    lengths = set(values.value_lengths().to_pylist()) if pa.types.is_list(values.type) else set()
    if len(lengths) > 1:
        raise ValueError(f"column {name!r} has lists of {len(lengths)} different lengths")
    return flat.reshape(len(values), -1)


def _safetensors(file: Path) -> Arrays:
    return dict(load_file(file))


READERS: dict[str, Callable[[Path], Arrays]] = {
    ".npz": _npz,
    ".npy": _npy,
    "folder": _folder,
    ".parquet": _parquet,
    ".safetensors": _safetensors,
}


def as_tensor(values: Any, name: str = "array") -> torch.Tensor:
    """An array or tensor as a tensor on the CPU, without copying where torch can hold it as it is.

    Other byte orders, negative strides and floating point above 64 bits are copied. Read-only memory maps are not.

    Args:
        values: Array, tensor or nested lists of numbers.
        name: What messages call it.

    Raises:
        InvalidArgumentError: It holds no numbers, or some of them are masked.

    Example:
        >>> as_tensor(np.arange(3, dtype=">i4")[::-1]).tolist()
        [2, 1, 0]
    """
    if isinstance(values, torch.Tensor):
        return values.detach().cpu()
    array = as_array(values, name)
    if array.dtype.kind not in "fiub":
        raise InvalidArgumentError(f"{name}: an array of {array.dtype}; numbers are needed")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():  # nothing writes to recorded outputs
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)


def as_array(values: Any, name: str) -> np.ndarray:
    """Values as an array, none of which is masked.

    Raises:
        InvalidArgumentError: Some are masked, or nested lists have different lengths.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        number = int(np.ma.getmaskarray(values).sum())
        raise InvalidArgumentError(
            f"{name}: {number} of {values.size} values are masked; leave such images out, or fill the values in"
        )
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InvalidArgumentError(f"{name}: not an array ({error})") from error
