"""Describe a transform, decoder or setting as text that is equal in every run and changes with its settings."""

import enum
import functools
import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MAX_DEPTH = 12
MAX_SHOWN = 100_000
"""Characters of a description in a record. A function may hold a data module, whose trainer takes millions."""
_LIBRARIES = sys.stdlib_module_names | {"torch", "torchvision", "timm", "PIL", "numpy", "open_clip"}
"""Libraries with objects that show all settings in their repr."""
_WITH_PARTS = (list, tuple, set, frozenset, Mapping, functools.partial, FunctionType, MethodType)


def hash_of(text: str) -> str:
    """Return a short hash of a text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def describe(value: object) -> str:
    """Describe a transform, or a part of one, as text.

    The address in the default repr of objects and functions, and the order of a set of strings, change between runs.
    Functions are described by their code and closure, objects by all their attributes.

    Example:
        >>> describe([round, object(), {"b", "a"}])
        "[<built-in function round>, builtins.object(), {'a', 'b'}]"
    """
    return Description().of(value)


def shown(value: object) -> str:
    """Describe a transform for people: its repr, or its description if the repr contains an address.

    Of a long text, the beginning and a hash of the whole.
    """
    text = repr(value)
    text = describe(value) if " at 0x" in text else text
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({hash_of(text)})"


class Description:
    """Describes a value, and records the text of every attribute on the way.

    Args:
        without: Places of attributes to leave out, as in `texts`.
    """

    def __init__(self, without: Collection[str] = ()) -> None:
        self.without = without
        self.texts: dict[str, str] = {}
        self._outer: list[int] = []

    def of(self, value: object, place: str = "") -> str:
        """Describe a value that was found at `place`."""
        if isinstance(value, Tensor | np.ndarray):
            return _of_array(value)
        is_plain = isinstance(value, str | bytes | int | float | complex | enum.Enum | type | None)
        if is_plain or _has_complete_repr(value):
            return repr(value)
        if id(value) in self._outer or len(self._outer) > MAX_DEPTH:
            return _path(value)
        self._outer.append(id(value))
        try:
            return self._of_parts(value, place)
        finally:
            self._outer.pop()

    def _of_parts(self, value: Any, place: str) -> str:
        if isinstance(value, set | frozenset):
            return "{" + ", ".join(sorted(self.of(v, place) for v in value)) + "}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(self.of(v, f'{place}[{k}]') for k, v in enumerate(value))}]"
        if isinstance(value, Mapping):
            pairs = sorted((self.of(k), self.of(v, f"{place}[{self.of(k)}]")) for k, v in value.items())
            return f"{_path(value)}({', '.join(f'{k}={v}' for k, v in pairs)})"
        return f"{_path(value)}({', '.join(self._of_object(value, place))})"

    def _of_object(self, value: Any, place: str) -> list[str]:
        if isinstance(value, functools.partial):
            return [self.of((value.func, value.args, value.keywords), place)]
        if isinstance(value, MethodType):
            return [self.of(value.__self__, place), self.of(value.__func__, place)]
        if isinstance(value, FunctionType):
            return self._of_function(value, place)
        calls = [] if _is_of_library(value) else [self.of(f, place) for f in _own_calls(type(value))]
        return [*self._named(_state(value), place), *calls]

    def _of_function(self, function: FunctionType, place: str) -> list[str]:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        held = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
        held |= {"defaults": function.__defaults__, "named defaults": function.__kwdefaults__}
        return [_code(function.__code__), *self._named({k: v for k, v in held.items() if v is not None}, place)]

    def _named(self, values: Mapping[str, Any], place: str) -> list[str]:
        shown = []
        for name, value in sorted(values.items()):
            here = f"{place}.{name}"
            if here not in self.without:
                self.texts[here] = self.of(value, here)
                shown.append(f"{name}={self.texts[here]}")
        return shown


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> frozenset[str]:
    """Return the places of attributes with different texts, without the objects that contain them.

    Example:
        >>> sorted(changed({".a": "1", ".a.b": "1", ".c": "1"}, {".a": "2", ".a.b": "2", ".c": "1"}))
        ['.a.b']
    """
    differ = {place for place, text in before.items() if after.get(place) != text}
    return frozenset(p for p in differ if not any(d != p and d.startswith((f"{p}.", f"{p}[")) for d in differ))


def _code(code: CodeType) -> str:
    """Hash what a function does, regardless of its line numbers."""
    constants = [_code(c) if isinstance(c, CodeType) else describe(c) for c in code.co_consts]
    return hash_of(f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}")


def _own_calls(kind: type) -> Iterator[FunctionType]:
    """Yield the methods that run when an object of a custom class is called."""
    for name in ("__call__", "forward"):
        owner = next((k for k in kind.__mro__ if name in vars(k)), None)
        is_own = owner is not None and owner.__module__.partition(".")[0] not in _LIBRARIES
        if is_own and isinstance(function := vars(owner)[name], FunctionType):
            yield function


def _of_array(value: Any) -> str:
    is_special = isinstance(value, np.ndarray) and value.dtype.kind not in "biufc"
    array = value if is_special else torch.as_tensor(value).detach().cpu()
    return f"array{tuple(array.shape)}:{hash_of(str(array.tolist()))}"


def _is_of_library(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in _LIBRARIES


def _has_complete_repr(value: object) -> bool:
    """Return whether `repr(value)` describes it completely: no address, set or custom step in it."""
    if not _is_of_library(value) or isinstance(value, _WITH_PARTS):
        return False
    text, steps = repr(value), _steps(value, getattr(value, "transforms", ()))
    return " at 0x" not in text and "{" not in text and all(map(_has_complete_repr, steps))


def _steps(value: object, inner: object) -> list[object]:
    """Return the steps inside an object of a library, such as a composed transform."""
    steps = list(inner) if isinstance(inner, list | tuple | nn.ModuleList) else []
    return steps + (list(value.children()) if isinstance(value, nn.Module) else [])


def _state(value: object) -> dict[str, Any]:
    """Return all attributes of an object; for a module its settings, weights, buffers and parts."""
    slots = (n for k in type(value).__mro__ for n in _names(getattr(k, "__slots__", ())) if not n.startswith("__"))
    state = {n: getattr(value, n) for n in slots if hasattr(value, n)} | dict(getattr(value, "__dict__", {}))
    if not isinstance(value, nn.Module):
        return {str(k): v for k, v in state.items()}
    usual = vars(nn.Module()).keys()
    own = {k: v for k, v in state.items() if k not in usual}
    parts = (*value.named_parameters(recurse=False), *value.named_buffers(recurse=False), *value.named_children())
    return own | dict(parts)


def _names(slots: object) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots) if isinstance(slots, list | tuple) else ()


def _path(value: object) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
