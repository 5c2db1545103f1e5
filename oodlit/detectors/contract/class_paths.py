"""Convert classes and settings to plain values: dotted class paths and constructor arguments."""

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.lazy import import_object

T = TypeVar("T")


def public_path(kind: type) -> str:
    """Return the shortest dotted path to a class, which stays valid if its file moves within the package.

    Example:
        >>> from oodlit.detectors import KNN
        >>> public_path(KNN)
        'oodlit.detectors.KNN'
    """
    parts = kind.__module__.split(".")
    for length in range(1, len(parts)):
        package = ".".join(parts[:length])
        if getattr(sys.modules.get(package), kind.__qualname__, None) is kind:
            return f"{package}.{kind.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def import_class(path: str, base: type[T]) -> type[T]:
    """Import the class at a dotted path, which must be a subclass of `base`.

    Raises:
        InvalidArgumentError: The class cannot be imported or is not a subclass of `base`.
    """
    kind = import_object(path, f"class {path!r}")
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise InvalidArgumentError(f"expected {path!r} to be a subclass of {public_path(base)}")
    return kind


def signature(kind: type) -> inspect.Signature:
    """Return the signature of a constructor without `*args` and `**kwargs`, such as those of `nn.Module`."""
    found = inspect.signature(kind)
    named = [p for p in found.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return found.replace(parameters=named)


def from_config(config: Mapping[str, Any], base: type[T]) -> T:
    """Build the object described by `class_path` and `init_args`.

    Raises:
        InvalidArgumentError: The class cannot be imported, is not a subclass of `base`, or has different settings.
    """
    return construct(import_class(config["class_path"], base), config["init_args"], base)


def construct(kind: type[T], settings: Mapping[str, Any], base: type[Any]) -> T:
    """Build an object of class `kind`; settings with a `class_path`, also in lists, become objects of `base`.

    Raises:
        InvalidArgumentError: An argument is unknown or missing.

    Example:
        >>> from oodlit.detectors import KNN, Detector
        >>> construct(KNN, {"k": 5}, Detector)
        KNN(k=5)
    """
    known = signature(kind)
    try:
        known.bind(**settings)
    except TypeError as error:
        raise InvalidArgumentError(
            f"{kind.__name__}: {error}; available settings: {', '.join(known.parameters) or 'none'}"
        ) from None
    return kind(**{name: _built(value, base) for name, value in settings.items()})


def _built(value: Any, base: type[Any]) -> Any:
    """Build a nested object, or those of a list; other values stay as they are."""
    if isinstance(value, list):
        return [_built(item, base) for item in value]
    return from_config(value, base) if isinstance(value, Mapping) and "class_path" in value else value


def snake_case(name: str) -> str:
    """Convert a class name to a key.

    Example:
        >>> [snake_case(n) for n in ("MSP", "ViM", "KLMatching", "RelativeMahalanobis", "ReAct", "MCDropout")]
        ['msp', 'vim', 'kl_matching', 'relative_mahalanobis', 'react', 'mc_dropout']
    """
    acronym = re.sub(r"([A-Z])([A-Z][a-z]{2,})", r"\1_\2", name)
    return re.sub(r"([a-z]{2,})([A-Z])", r"\1_\2", acronym).lower()


def parameters_of(kind: type) -> Mapping[str, Any]:
    """Return the names and defaults of the constructor's parameters."""
    if kind not in _PARAMETERS:  # read for every scored batch
        _PARAMETERS[kind] = {name: parameter.default for name, parameter in signature(kind).parameters.items()}
    return _PARAMETERS[kind]


_PARAMETERS: dict[type, Mapping[str, Any]] = {}
