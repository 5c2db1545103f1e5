"""A YAML file that names files of recorded outputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from oodlit.base.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.base.yaml_files import load_yaml
from oodlit.recorded.data import RecordedData
from oodlit.recorded.from_arrays import recorded_parts
from oodlit.recorded.module import RecordedModule

SETS = ("id", "train")
NAMED_SETS = ("ood", "shift", "unit_tests")
KEYS = (*SETS, *NAMED_SETS, "head", "class_names", "name", "batch_size")


def read_description(path: str | Path) -> tuple[RecordedModule, RecordedData]:
    """Read module and data from a file such as this; paths are relative to its folder.

        id: val.npz
        train: {features: train_features.npy, labels: train_labels.npy}
        ood: {ninco: ninco.pt, textures: textures.parquet}
        head: head.safetensors

    Keys and their meaning are those of `oodlit.evaluate_arrays`; each file is one set.

    Raises:
        DataError: The file, or one that it names, cannot be read.
        UnknownNameError: A key is unknown.
        InvalidArgumentError: A value is not a path, or arrays do not match each other.
    """
    file = Path(path).expanduser()
    try:
        content = load_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file}: not valid YAML ({reason})") from error
    if not isinstance(content, Mapping) or "id" not in content:
        raise InvalidArgumentError(
            f"{file}: expected lines such as `id: FILE`, and at least the key id; see docs/features.md"
        )
    for key in content:
        if key not in KEYS:
            raise UnknownNameError.of(f"key in {file}:", str(key), KEYS)
    return recorded_parts(**{key: _resolved(key, value, file) for key, value in content.items()})


def _resolved(key: str, value: Any, file: Path) -> Any:
    """The value with paths in place of names of files."""
    top, _, last = key.rpartition(".")
    if last in ("class_names", "name", "batch_size") and not (last == "class_names" and isinstance(value, str)):
        return value
    if isinstance(value, Mapping) and value:
        return {str(name): _resolved(f"{key}.{name}", inner, file) for name, inner in value.items()}
    if isinstance(value, list) and key in NAMED_SETS:
        raise InvalidArgumentError(f"{file}: expected {key} to be sets by name, such as {{far: far.npz}}, got {value}")
    if isinstance(value, list) and key == "head":
        return [_resolved(f"{key}.{place}", inner, file) for place, inner in enumerate(value)]
    if not isinstance(value, str):
        raise InvalidArgumentError(
            f"{file}: expected {key} to be the path of a file, or files by name such as {{features: a.npy, logits:"
            f" b.npy}}; got {value!r}"
        )
    is_known = not top and key == "class_names" and value == "imagenet"
    return value if is_known else file.parent / Path(value).expanduser()
