"""Make module and data of a run from existing arrays of features and logits, or from a YAML file that names files."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from oodlit.base.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.base.roles import Role
from oodlit.base.yaml_files import load_yaml
from oodlit.datamodules.classes import as_class_names
from oodlit.recorded.agreement import check_sets
from oodlit.recorded.array_files import SYNONYMS
from oodlit.recorded.arrays import Given, GivenHead, head_of, stream_of
from oodlit.recorded.data import RecordedData
from oodlit.recorded.module import RecordedModule

NAMED_SETS = ("ood", "shift", "unit_tests")
KEYS = ("id", "train", *NAMED_SETS, "head", "class_names", "name", "batch_size")


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
    layer = None if head is None else head_of(head)
    make = partial(RecordedModule, width=data.width, num_classes=data.num_classes, name=name, is_checked=True)
    module = make(head=layer)  # checks the shapes
    if problem := check_sets(streams, layer):
        module = make(head_problem=problem)
    return module, data


def _by_name(role: str, given: Mapping[str, Given] | Given | None) -> dict[str, Given]:
    """Sets by name; a single set gets the name of its role."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or {"logits", "features", *SYNONYMS} & given.keys():
        return {role: given}
    if not given:
        raise InvalidArgumentError(f"{role.replace('test', 'tests')}: expected at least one set, got an empty mapping")
    return dict(given)


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
        raise DataError(f"{file} cannot be read as YAML ({reason})") from error
    if not isinstance(content, Mapping) or "id" not in content:
        raise InvalidArgumentError(f"{file}: expected at least the line `id: FILE`; see docs/features.md")
    for key in content:
        UnknownNameError.check(f"key in {file}", str(key), KEYS)
    return recorded_parts(**{key: _resolved(key, value, file) for key, value in content.items()})


def _resolved(key: str, value: Any, file: Path) -> Any:
    """The value with paths in place of names of files."""
    top, _, last = key.rpartition(".")
    if last in ("class_names", "name", "batch_size") and not (last == "class_names" and isinstance(value, str)):
        return value
    if isinstance(value, Mapping) and value:
        return {str(name): _resolved(f"{key}.{name}", inner, file) for name, inner in value.items()}
    if isinstance(value, list) and key == "head":
        return [_resolved(f"{key}.{place}", inner, file) for place, inner in enumerate(value)]
    if not isinstance(value, str):
        named = {"head": "weight: w.npy, bias: b.npy", **dict.fromkeys(NAMED_SETS, "far: far.npz")}
        is_set = key in ("id", "train") or top in NAMED_SETS
        example = named.get(key, "features: a.npy, logits: b.npy" if is_set else "")
        files = f", or files by name, such as {{{example}}}" if example else ""
        raise InvalidArgumentError(f"{file}: expected {key} to be the path of a file{files}; got {value!r}")
    is_known = not top and key == "class_names" and value == "imagenet"
    return value if is_known else file.parent / Path(value).expanduser()
