"""What `--config` understands beyond jsonargparse: short names for what oodlit makes public, roles as they are shown.

Errors of the parser come here, too: from several lines about types to one line about what was written.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonargparse

from oodlit.errors import UnknownNameError, UsageError

__all__ = ["MODE", "explain", "search_current_folder", "seeded", "use_short_names"]

MODE = "oodlit"
"""Name of the parser mode that `use_short_names` adds."""


def use_short_names() -> str:
    """Add a parser mode: YAML in which `class_path: shard_stream` and `role: id` are enough.

    Returns:
        Name of the mode, for `parser_mode`.
    """
    import yaml  # type: ignore[import-untyped]

    load = jsonargparse.get_loader("yaml")

    def loader(text: str) -> Any:
        return expand(load(text))

    jsonargparse.set_loader(MODE, loader, exceptions=(yaml.YAMLError,))
    return MODE


def expand(value: Any) -> Any:
    """`value` with full paths for the short names of classes and functions of oodlit, and members for roles."""
    if isinstance(value, list):
        return [expand(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: expand(item) for key, item in value.items()}
    path = made.get("class_path")
    if isinstance(path, str):
        if odd := [str(key) for key in made if key not in _CLASS_KEYS]:
            raise UnknownNameError.of(f"key beside class_path {path},", odd[0], _CLASS_KEYS)
        made["class_path"] = path = _TYPED.get(path) or short_names().get(path, path)
        arguments = made.get("init_args")
        if isinstance(arguments, dict) and path.startswith("oodlit.") and isinstance(arguments.get("role"), str):
            arguments["role"] = _role(arguments["role"])
    return made


_TYPED = dict.fromkeys(
    ("torchvision.transforms.Compose", "torchvision.transforms.v2.Compose"), "oodlit.datamodules.transforms.compose"
)
"""Classes of others whose parameters have no types, in the place of which stand functions with types."""

_CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")


def _role(name: str) -> str:
    from oodlit.roles import Role

    if name in Role.__members__:
        return name
    known = {str(role): role.name for role in Role}
    if name.lower() not in known:
        raise UnknownNameError.of("role", name, known)
    return known[name.lower()]


def short_names() -> dict[str, str]:
    """Dotted path of every class and function that may be written without its module."""
    found = {"OODModule": "oodlit.OODModule"}
    for name in ("oodlit.datamodules", "oodlit.detectors"):
        package = importlib.import_module(name)
        found |= {n: f"{name}.{n}" for n in package.__all__ if callable(getattr(package, n))}
    return found


def search_current_folder() -> None:
    """Let dotted paths lead to modules in the current folder; installed ones come first."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Objects of a configuration are made from its seed: a network with random weights is the same in every run."""
    import torch

    with torch.random.fork_rng():
        if seed is not None:
            torch.manual_seed(seed)
        yield


def explain(error: Exception, *, positional: Sequence[str], options: Sequence[str]) -> UsageError | UnknownNameError:
    """What jsonargparse says over several lines, in one; unknown names come with the nearest known ones.

    Args:
        error: The parser's error.
        positional: Names that are given by position.
        options: All names that may be given.
    """
    text = " ".join(str(error).split())
    key = re.search(r'Parser key "(\w+)', text)
    parameter = key[1] if key else ""
    if found := _unknown_option(text, options):
        return found
    match = re.search(r"Expected a <class 'list'>.* (?:Got|Given) value: ([A-Za-z_][\w.]*)$", text)
    if parameter == "detectors" and match:
        return _unknown_class(match[1], parameter) or UsageError(
            f"--detectors: {match[1]} is no list; write --detectors=[{match[1]}], or a list in the file"
        )
    match = re.search(_NO_CLASS, text)
    unknown = None if match is None else _unknown_class(match[1], parameter)
    return unknown or UsageError(_plain(_leaf(error), positional))


_NO_CLASS = r"(?:Expected a dot import path string:|No module named|Unable to import.*) '?([\w.]+)"
_NOT_ACCEPTED = r"(?:'([\w.]+)':?[^']*)?(?:Option|Key) '([\w.]+)' is not (?:accepted|expected)"


def _unknown_option(text: str, options: Sequence[str]) -> UnknownNameError | None:
    """An option or an argument of a class that does not exist."""
    match = re.search(_NOT_ACCEPTED, text)
    if match is None:
        match = re.search(r"()[uU]nrecognized arguments: --([\w.]+)", text)
        if match is None or "." in match[2]:
            return None
    path, name = match[1], match[2].rpartition(".")[2]
    if not path:
        return UnknownNameError.of("option", name, options)
    module, _, kind = path.rpartition(".")
    try:
        parameters = inspect.signature(getattr(importlib.import_module(module), kind)).parameters
    except (ImportError, AttributeError, ValueError):
        return UnknownNameError(f"{path} has no argument {name!r}")
    known = [p.name for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return UnknownNameError.of(f"argument of {path}", name, known)


def _unknown_class(name: str, parameter: str) -> UnknownNameError | None:
    """The nearest of the names that may be written without their module."""
    if "." in name:
        return None
    from oodlit.detectors import detectors

    if parameter == "detectors":
        if name in short_names():
            return None
        return UnknownNameError.of("detector", name, [kind.__name__ for kind in detectors().values()])
    if parameter == "data":
        known = [short for short, path in short_names().items() if path.startswith("oodlit.datamodules.")]
        return UnknownNameError.of("data class", name, known)
    return None


def _leaf(error: Exception) -> str:
    """The message without what jsonargparse says about types that were not meant."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line.removeprefix("- ") for line in lines if line and not line.startswith(_ASIDE)]
    if all(line.startswith(("Parser key", "Problem with")) for line in kept):  # none of the types was meant
        kept.append(_none_of(str(error)))
    return " ".join(kept)


def _none_of(text: str) -> str:
    given = re.findall(r"Given value: (.*)", text) or ["the value"]
    if choices := re.findall(r"Literal\[(.*?)\]", text):
        return f"{given[-1]} is none of {choices[-1]}"
    kinds = dict.fromkeys(re.findall(r"Expected an? <class '(?:[\w.]+\.)?(\w+)'>", text))
    classes = ["class_path and init_args"] if "Not a valid subclass" in text else []
    return f"{given[-1]} is not of type {' or '.join([*(kind for kind in kinds if kind != 'NoneType'), *classes])}"


_ASIDE = (
    "Does not validate",
    "Subtypes:",
    "Errors:",
    "Given value",
    "- Expected a",
    "- Not a valid subclass",
    "Subclass types expect",
    "- a class path",
    "- a dict w",
)


def _plain(text: str, positional: Sequence[str]) -> str:
    text = re.sub(r'(?<=: )Parser key "([\w.]+)": ?', r"\1: ", text)  # an argument within an option
    for pattern, plain in _PLAIN.items():
        text = re.sub(pattern, plain, text)
    for name in positional:
        text = text.replace(f"--{name}: ", f"{name.upper()}: ")
    return text


_PLAIN: Mapping[str, str] = {
    r'Parser key "([\w.]+)": ?': r"--\1: ",
    r"Expected an? <class '([\w.]+)'>\. Got value: (.*)": r"\2 is not of type \1",
    r"the following arguments are required: (.*)": r"needed but not given: \1",
    r"unrecognized arguments: (.*)": r"unknown option: \1",
    r"Expected a typing\.Literal\[(.*)\]\. Got value: (.*)": r"\2 is none of \1",
    r"Type \S+\[.*\] expects a function or a callable class: ": "",
    r"Problem with given class_path ('[\w.]+'):": r"\1:",
}
