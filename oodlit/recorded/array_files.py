"""Read arrays from `.npy`, `.npz`, `.pt`, `.safetensors` and Parquet files, and from folders of `.npy` files."""

import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.sizes import check_expansion, check_parquet

Arrays = Mapping[str, Any]
"""Arrays by name."""
ONE = ""
"""Name of an array in a file of a single array without a name."""
SYNONYMS = {"embedding": "features", "embeddings": "features", "target": "labels", "targets": "labels"}
"""Accepted names of arrays, beside those of the fields."""
_UNREADABLE = (OSError, ValueError, EOFError, MemoryError, pa.ArrowException, SafetensorError, BadZipFile, zlib.error)


def read_arrays(path: str | Path) -> Arrays:
    """Read the arrays of a file, or of the `.npy` files of a folder, by name. Nothing is unpickled.

    Columns of Parquet files that contain lists of one length become two-dimensional. `.npy` files are memory-mapped. A
    file of a single array has it under the name `ONE`.

    Raises:
        InvalidArgumentError: The file does not exist, or its format is unknown.
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
        raise InvalidArgumentError(f"{file} does not exist; expected a file or folder of arrays")
    if kind not in READERS:
        suffixes = ", ".join(sorted(READERS.keys() - {"folder"}))
        raise InvalidArgumentError(f"{file}: expected a folder, or a file with suffix {suffixes}; got {kind or 'none'}")
    try:
        return {SYNONYMS.get(str(name), str(name)): values for name, values in READERS[kind](file).items()}
    except _UNREADABLE as error:
        pickled = ". Arrays of Python objects are not supported; save numbers or text" if "pickle" in str(error) else ""
        raise DataError(f"{file}: cannot read arrays ({error}){pickled}") from error


def read_array(path: str | Path, name: str) -> Any:
    """Read one array: the only one of a file, or the one called `name`.

    Raises:
        InvalidArgumentError: The file has several arrays, none of that name.
        DataError: The file cannot be read.
    """
    found = read_arrays(path)
    if name in found or len(found) == 1:
        return found.get(name, next(iter(found.values())))
    raise InvalidArgumentError(
        f"{path}: expected a single array, or one called {name!r}; the file has {', '.join(sorted(found))}"
    )


def _npz(file: Path) -> Arrays:
    with np.load(file, allow_pickle=False) as archive:
        unpacked = sum(info.file_size for info in archive.zip.infolist()) if hasattr(archive, "zip") else 0
        check_expansion(file, packed=file.stat().st_size, unpacked=unpacked)
        return {name: archive[name] for name in archive.files}


def _pt(file: Path) -> Arrays:
    if is_zipfile(file):
        with ZipFile(file) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
        check_expansion(file, packed=file.stat().st_size, unpacked=unpacked)
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, KeyError) as error:
        raise ValueError(
            "expected a tensor or dictionary of tensors that torch.load reads with weights_only=True; save tensors with"
            ' torch.save({"features": features, "logits": logits}, file)'
        ) from error
    found = {ONE: found} if isinstance(found, torch.Tensor) else found
    if isinstance(found, Mapping) and any(isinstance(value, torch.Tensor) for value in found.values()):
        return found
    what = f"a {type(found).__name__} without tensors" if isinstance(found, Mapping) else type(found).__name__
    raise ValueError(f"expected a tensor or a dictionary of tensors, got {what}")


def _folder(folder: Path) -> Arrays:
    found = sorted(folder.glob("*.npy"))
    if not found:
        raise InvalidArgumentError(f"{folder}: expected .npy files, such as features.npy or logits.npy; found none")
    return {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in found}


def _parquet(file: Path) -> Arrays:
    check_parquet(file, file, packed=file.stat().st_size)
    with pq.ParquetFile(file) as opened:  # `read_table` adds columns for folders such as `groups=zebra`
        table = opened.read()
    return {name: _column(table.column(name).combine_chunks(), name) for name in table.column_names}


def _column(values: Any, name: str) -> Any:
    if isinstance(values, pa.ChunkedArray):  # several chunks or none
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    if values.null_count:
        raise ValueError(f"column {name!r} has {values.null_count} empty values")
    if not (pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type)):
        return (
            np.asarray(values.to_pylist(), dtype=object) if pa.types.is_string(values.type) else values.to_numpy(False)
        )
    if pa.types.is_list(values.type) and len(values.value_lengths().unique()) > 1:
        raise ValueError(f"column {name!r} has lists of different lengths; expected equal lengths")
    return values.flatten().to_numpy(False).reshape(len(values), -1)


READERS: dict[str, Callable[[Path], Arrays]] = {
    ".npz": _npz,
    ".npy": lambda file: {ONE: np.load(file, mmap_mode="c", allow_pickle=False)},
    ".pt": _pt,
    ".pth": _pt,
    "folder": _folder,
    ".parquet": _parquet,
    ".safetensors": load_file,
}


def as_tensor(values: Any, name: str = "array") -> torch.Tensor:
    """Convert an array or tensor to a tensor on the CPU, without a copy if possible.

    Other byte orders, negative strides and floating point above 64 bits are copied; read-only memory maps are not.

    Args:
        values: Array, tensor or nested lists of numbers.
        name: Name of the array in messages.

    Raises:
        InvalidArgumentError: The values are not numbers, or some are masked.

    Example:
        >>> as_tensor(np.arange(3, dtype=">i4")[::-1]).tolist()
        [2, 1, 0]
    """
    if isinstance(values, torch.Tensor):
        return values.detach().cpu()
    array = as_array(values, name)
    if array.dtype.kind not in "fiub":
        raise InvalidArgumentError(f"{name}: expected an array of numbers, got dtype {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():  # nothing writes to recorded outputs
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)


def as_array(values: Any, name: str) -> np.ndarray:
    """Convert values to an array and refuse masked ones.

    Raises:
        InvalidArgumentError: Some are masked, or nested lists have different lengths.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        number = int(np.ma.getmaskarray(values).sum())
        raise InvalidArgumentError(
            f"{name}: {number} of {values.size} values are masked; remove these images, or fill in the values"
        )
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InvalidArgumentError(f"{name}: cannot be converted to an array ({error})") from error
