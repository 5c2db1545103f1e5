"""Look up detectors by name; the registry is the export list of `oodlit.detectors`."""

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeAlias

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.plugins import DETECTORS, Plugins, name_problem, plugins, working
from oodlit.base.text.resolve import ObjectName, resolve
from oodlit.detectors.contract.class_paths import construct, import_class, signature
from oodlit.detectors.contract.detector import Detector

GivenDetector: TypeAlias = Detector | ObjectName | None
"""A detector, or the name of one with its default settings; None = the default of the argument."""


def detectors() -> dict[str, type[Detector]]:
    """Return every detector of the package, and of plug-ins, by its key.

    Warns:
        PluginWarning: A plug-in cannot be used, once per process.

    Example:
        >>> detectors()["relative_mahalanobis"].__name__
        'RelativeMahalanobis'
    """
    of_plugins = {kind.key(): kind for kind in working(DETECTORS, _problem).values()}
    return dict(sorted((_built_in() | of_plugins).items()))


def readable_names() -> dict[str, str]:
    """Return the name of every detector on pages and in tables, by its key.

    Example:
        >>> readable_names()["mahalanobis_plus_plus"], readable_names()["vim"]
        ('Mahalanobis++', 'ViM')
    """
    return {key: kind.display_name or kind.__name__ for key, kind in detectors().items()}


def detector_plugins() -> Plugins:
    """The detectors of plug-ins, by class name."""
    return plugins(DETECTORS, _problem)


def _problem(name: str, kind: Any) -> str:
    """Why a plug-in is not a detector of its name; empty if it is."""
    if not (isinstance(kind, type) and issubclass(kind, Detector) and not inspect.isabstract(kind)):
        return f"expected a subclass of oodlit.detectors.Detector without abstract methods, got {kind!r}"
    if needed := [p.name for p in signature(kind).parameters.values() if p.default is p.empty]:
        return f"expected a default for every setting of a plug-in, got none for {', '.join(needed)}"
    names = {known: kind for key, kind in _built_in().items() for known in (key, kind.__name__)}
    return name_problem(name, kind.__name__, names) or name_problem(kind.key(), kind.key(), names)


def _built_in() -> dict[str, type[Detector]]:
    package = import_module("oodlit.detectors")
    found: dict[str, type[Detector]] = {}
    for kind in (getattr(package, name) for name in package.__all__):
        if isinstance(kind, type) and issubclass(kind, Detector) and not inspect.isabstract(kind):
            if kind.key() in found:
                raise InvalidArgumentError(f"{kind.__name__} and {found[kind.key()].__name__} have the same key")
            found[kind.key()] = kind
    return found


def find(name: str, what: str = "detector") -> type[Detector]:
    """Find the detector class for a key or class name in any case, or for the dotted path of a custom class.

    Raises:
        UnknownNameError: No detector has this name; the message lists the nearest ones.
        InvalidArgumentError: The dotted path is not that of a detector.

    Example:
        >>> find("kl_matching") is find("KLMatching") is find("oodlit.detectors.KLMatching")
        True
    """
    if "." in name:
        return import_class(name, Detector)
    return detectors()[resolve(what, name, readable_names())]


def as_detector(given: object, what: str = "detector") -> Any:
    """Build the detector of a name, see `find`, with its default settings; return anything else unchanged.

    Args:
        given: A name, or anything else.
        what: What the name stands for, in the message of the error.

    Raises:
        UnknownNameError: There is no such detector.

    Example:
        >>> as_detector("Mahalanobis++"), as_detector(3)
        (MahalanobisPlusPlus(), 3)
    """
    return construct(find(given, what), {}, Detector) if isinstance(given, str) else given


def presets() -> dict[str, Mapping[str, Mapping[str, Any]]]:
    """Return the published settings of detectors: key -> name of the preset -> settings.

    Example:
        >>> presets()["react"]["p90-val"]
        {'percentile': 90.0}
    """
    return {key: kind.presets for key, kind in detectors().items() if kind.presets}


def detector_hint(item: object) -> str:
    """Suggest what to write instead of a detector's class or name; empty for anything else.

    Raises:
        UnknownNameError: There is no detector of this name.

    Example:
        >>> from oodlit.detectors import MSP
        >>> detector_hint(MSP), detector_hint("MSP"), detector_hint(3)
        ('; write MSP()', '; write MSP()', '')
    """
    kind = find(item) if isinstance(item, str) else item
    return f"; write {kind.__name__}()" if isinstance(kind, type) and issubclass(kind, Detector) else ""
