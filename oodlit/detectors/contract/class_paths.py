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
    """Build an object of class `kind`; nested settings with a `class_path` become objects of `base`.

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
            f"{kind.__name__}: {error}; its settings: {', '.join(known.parameters) or 'none'}"
        ) from None
    nested = {n: from_config(v, base) for n, v in settings.items() if isinstance(v, Mapping) and "class_path" in v}
    return kind(**{**settings, **nested})


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
    return {name: parameter.default for name, parameter in signature(kind).parameters.items()}
