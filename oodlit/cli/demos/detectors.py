"""Every exported detector, as a demo uses it."""

import inspect
from collections.abc import Mapping
from typing import Any

from oodlit import detectors
from oodlit.detectors import Detector

__all__ = ["every_detector"]


def every_detector(
    settings: Mapping[str, Mapping[str, Any]] | None = None, *, train_free: bool = False
) -> tuple[dict[str, Detector], dict[str, str]]:
    """One instance of every exported detector.

    Args:
        settings: Constructor arguments by key, where the defaults do not suit a small data set.
        train_free: True leaves out the detectors that must be fitted on training images.

    Returns:
        Detectors by key, and the reasons why others are left out.
    """
    chosen: dict[str, Detector] = {}
    left_out: dict[str, str] = {}
    for key, kind in sorted(detectors.detectors().items()):
        given = dict((settings or {}).get(key, {}))
        needed = [
            p.name
            for p in inspect.signature(kind).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in given
        ]
        if needed:
            left_out[key] = f"has no default for {', '.join(needed)}; this demo gives none"
            continue
        detector = kind(**given)
        if train_free and detector.required_statistics:
            left_out[key] = "must be fitted on training images; this demo has none"
            continue
        chosen[key] = detector
    return chosen, left_out
