"""Module and data of a run from existing arrays of features and logits, or from a YAML file that lists them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from oodlit.datamodules.classes import IMAGENET, as_class_names
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.recorded.arrays import Given, GivenHead, head_of, stream_of
from oodlit.recorded.data import RecordedData
from oodlit.recorded.module import RecordedModule
from oodlit.roles import Role

SETS = ("id", "train")
NAMED_SETS = ("ood", "shift", "unit_tests")
KEYS = (*SETS, *NAMED_SETS, "head", "class_names", "name", "batch_size")


def recorded_parts(
    *,
    id: Given,
    ood: Mapping[str, Given] | Given | None = None,
    train: Given | None = None,
    shift: Mapping[str, Given] | None = None,
    unit_tests: Mapping[str, Given] | None = None,
    head: GivenHead | None = None,
    class_names: str | Path | Sequence[str] | None = None,
    name: str = "recorded outputs",
    batch_size: int = 4096,
) -> tuple[RecordedModule, RecordedData]:
    """Make module and data for `trainer.predict` from the arguments of `evaluate_arrays`."""
    names = as_class_names(class_names)
    sets: list[tuple[str, Role, Given]] = [("id", Role.ID, id)]
    sets += [] if train is None else [("train", Role.TRAIN, train)]
    for role, many in ((Role.OOD, ood), (Role.SHIFT, shift), (Role.UNIT_TEST, unit_tests)):
        sets += [(key, role, given) for key, given in _by_name(str(role), many).items()]
    streams = [stream_of(key, role, given, names) for key, role, given in sets]
    data = RecordedData(streams, batch_size=batch_size, class_names=names or None)
    module = RecordedModule(
        width=data.width, num_classes=data.num_classes, head=None if head is None else head_of(head), name=name
    )
    return module, data


def _by_name(role: str, given: Mapping[str, Given] | Given | None) -> dict[str, Given]:
    """Sets by name; a single set without a name is called by its role."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or {"logits", "features"} & given.keys():
        return {role: given}
    if not given:
        raise InvalidArgumentError(f"{role}: expected sets by name, got an empty mapping")
    return dict(given)  # type: ignore[arg-type]  # names with sets


def read_description(path: str | Path) -> tuple[RecordedModule, RecordedData]:
    """Read module and data from a file such as this; paths are relative to its folder.

        id: val.npz
        train: train.npz
        ood: {ninco: ninco.npz, textures: textures.parquet}
        head: head.safetensors

    Keys and their meaning are those of `oodlit.evaluate_arrays`; each file is one set.

    Raises:
        DataError: The file, or one that it lists, cannot be read.
        UnknownNameError: A key is unknown.
        InvalidArgumentError: A value is not a path, or arrays do not fit each other.
    """
    file = Path(path).expanduser()
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file}: not readable as YAML ({reason})") from error
    if not isinstance(content, Mapping) or "id" not in content:
        raise InvalidArgumentError(f"{file}: expected keys with files, at least `id: FILE`; see docs/features.md")
    for key in content:
        if key not in KEYS:
            raise UnknownNameError.of(f"key in {file}:", str(key), KEYS)
    return recorded_parts(**{key: _resolved(key, value, file) for key, value in content.items()})


def _resolved(key: str, value: Any, file: Path) -> Any:
    if key in NAMED_SETS and isinstance(value, Mapping):
        return {str(name): _path(f"{key}.{name}", inner, file) for name, inner in value.items()}
    is_list_of_names = key == "class_names" and isinstance(value, str) and value != IMAGENET
    return _path(key, value, file) if is_list_of_names or key in (*SETS, *NAMED_SETS, "head") else value


def _path(key: str, value: Any, file: Path) -> Path:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{file}: expected {key} to be the path of a file, got {value!r}")
    return file.parent / Path(value).expanduser()
