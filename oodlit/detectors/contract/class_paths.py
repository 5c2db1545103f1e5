"""Classes and settings as plain values: the dotted path of a class, and the arguments of its constructor."""

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from oodlit.base.lazy import import_object
from oodlit.errors import InvalidArgumentError

T = TypeVar("T")


def public_path(kind: type) -> str:
    """The shortest dotted path that leads to a class: it stays valid when the file of the class moves in its package.

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
    """The class at a dotted path, which must be a subclass of `base`.

    Raises:
        InvalidArgumentError: It cannot be imported, or is of another kind.
    """
    kind = import_object(path, f"class {path!r}")
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise InvalidArgumentError(f"{path!r} is not a subclass of {public_path(base)}")
    return kind


def signature(kind: type) -> inspect.Signature:
    """Arguments of a constructor that have a name: without `*args` and `**kwargs`, as `nn.Module` takes them."""
    found = inspect.signature(kind)
    named = [p for p in found.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return found.replace(parameters=named)


def from_config(config: Mapping[str, Any], base: type[T]) -> T:
    """The object that `class_path` and `init_args` describe.

    Raises:
        InvalidArgumentError: The class cannot be imported, is no subclass of `base`, or has other settings.
    """
    return construct(import_class(config["class_path"], base), config["init_args"], base)


def construct(kind: type[T], settings: Mapping[str, Any], base: type[Any]) -> T:
    """An object of class `kind`; a setting that is a class path and its `init_args` becomes an object of `base`.

    Raises:
        InvalidArgumentError: The constructor has no such argument, or needs one that is not among the settings.

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
    """A class name as key.

    Example:
        >>> [snake_case(n) for n in ("MSP", "ViM", "KLMatching", "RelativeMahalanobis", "ReAct", "MCDropout")]
        ['msp', 'vim', 'kl_matching', 'relative_mahalanobis', 'react', 'mc_dropout']
    """
    acronym = re.sub(r"([A-Z])([A-Z][a-z]{2,})", r"\1_\2", name)
    return re.sub(r"([a-z]{2,})([A-Z])", r"\1_\2", acronym).lower()


def parameters_of(kind: type) -> Mapping[str, Any]:
    """Names and defaults of the constructor's parameters."""
    return {name: parameter.default for name, parameter in signature(kind).parameters.items()}
