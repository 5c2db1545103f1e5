"""Summarize what a detector requires and costs, for `oodlit list`, pages and documentation."""

from typing import NamedTuple

from oodlit.detectors.contract.detector import Detector

READS = ("logits", "features", "features and head", "hidden activations", "images")
"""Inputs of detectors, in the order of `oodlit list detectors`: a detector is listed under the last one that it
requires."""


class Overview(NamedTuple):
    """Requirements and costs of a detector with its settings, as text for tables.

    Args:
        reads: The last of `READS` that it requires.
        is_fitted: Whether it requires training images.
        cost: "closed form" (matrix products of constant size), "bank" (the image is compared with stored training
            images), "part of a pass", or the number of extra forward passes.
        tuned: The preset tuned on OOD data with the same settings as this or a nested detector; empty if there is none.
    """

    reads: str
    is_fitted: bool
    cost: str
    tuned: str

    @property
    def group(self) -> str:
        """A heading: what it reads and whether it is fitted.

        Example:
            >>> from oodlit.detectors import ViM
            >>> overview(ViM()).group
            'features and head, fitted'
        """
        return f"{self.reads}, {'fitted' if self.is_fitted else 'no fit'}"


def overview(detector: Detector) -> Overview:
    """Summarize what a detector requires and costs.

    Example:
        >>> from oodlit.detectors import BATS, KNN, ODIN, ReAct, WeiPer
        >>> [overview(d).cost for d in (KNN(), ODIN(), ODIN(epsilon=0.0))]
        ['bank', '2 extra forward passes', 'closed form']
        >>> [overview(d).tuned for d in (WeiPer(), WeiPer(strength=1.0), ReAct(then=BATS()))]
        ['imagenet-resnet50', '', 'imagenet of BATS']
    """
    needs = detector.required_needs
    reads = "logits"
    for name, words in zip(("features", "head", "hidden", "images"), READS[1:], strict=True):
        reads = words if name in needs else reads
    return Overview(reads, bool(detector.required_statistics), _cost(detector), tuned_as(detector))


def tuned_as(detector: Detector) -> str:
    """Return the first preset tuned on OOD data that matches this or a nested detector; empty if there is none.

    Settings that the preset omits are ignored, as are those that are None here and follow from the data.
    """
    stored = detector.settings
    for name, settings in detector.presets.items():
        if name in detector.tuned_presets:
            tuned = type(detector).preset(name).settings
            compared = [key for key in settings if stored[key] is not None]
            if compared and all(repr(tuned[key]) == repr(stored[key]) for key in compared):
                return name
    inside = ((tuned_as(child), type(child).__name__) for child in detector.nested_detectors())
    return next((f"{name} of {kind}" for name, kind in inside if name), "")


def _cost(detector: Detector) -> str:
    if detector.extra_passes:
        return f"{detector.extra_passes} extra forward pass{'es' if detector.extra_passes > 1 else ''}"
    if {"hidden", "model"} <= detector.required_needs:
        return "part of a pass"
    everyone = [child for child in detector.modules() if isinstance(child, Detector)]
    return "bank" if any(child.compares_images for child in everyone) else "closed form"
