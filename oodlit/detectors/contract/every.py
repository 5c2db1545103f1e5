"""Build one instance of every exported detector."""

from collections.abc import Mapping
from typing import Any

from oodlit.base.errors import UnknownNameError
from oodlit.detectors.contract.class_paths import construct
from oodlit.detectors.contract.detector import Detector
from oodlit.detectors.contract.overview import overview
from oodlit.detectors.contract.registry import detectors


def every_detector(
    settings: Mapping[str, Mapping[str, Any]] | None = None, *, train_free: bool = False, one_pass: bool = False
) -> tuple[dict[str, Detector], dict[str, str]]:
    """Build one instance of every exported detector.

    Args:
        settings: Constructor arguments by key, where the defaults do not suit a small data set.
        train_free: Whether to leave out detectors that require training images.
        one_pass: Whether to leave out detectors that require extra forward passes, or parts of one.

    Returns:
        Detectors by key, and the reasons why others are left out.

    Raises:
        UnknownNameError: `settings` names an unknown detector.
        InvalidArgumentError: A detector does not have such an argument.
    """
    known = detectors()
    for key in settings or {}:
        UnknownNameError.check("detector", key, known)
    chosen: dict[str, Detector] = {}
    left_out: dict[str, str] = {}
    for key, kind in known.items():
        detector = construct(kind, (settings or {}).get(key, {}), Detector)
        if train_free and detector.required_statistics:
            left_out[key] = "must be fitted on training images, but there are none"
            continue
        if one_pass and "pass" in (cost := overview(detector).cost):
            left_out[key] = f"costs {cost} per image"
            continue
        chosen[key] = detector
    return chosen, left_out
