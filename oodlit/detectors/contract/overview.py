"""What a detector needs and costs, in words: the same in `oodlit list`, on the page and in the documentation."""

from typing import NamedTuple

from oodlit.detectors.contract.detector import Detector

READS = ("logits", "features", "features and head", "hidden activations", "images")
"""What detectors may read, each with what stands before it; in the order of `oodlit list detectors`."""


class Overview(NamedTuple):
    """A detector with its settings, in the words of tables; every field follows from its declarations.

    Args:
        reads: The last of `READS` that it needs.
        is_fitted: Whether training images are needed.
        cost: "closed form" (no more than products with matrices that do not grow with the training set), "bank" (the
            image is compared with stored training images), "part of a pass" or the number of further passes.
        tuned: The preset chosen by search on OOD data whose settings these, or those of a detector inside, are; empty
            if there is none.
    """

    reads: str
    is_fitted: bool
    cost: str
    tuned: str

    @property
    def group(self) -> str:
        """What it reads and whether it is fitted, as a heading.

        Example:
            >>> from oodlit.detectors import ViM
            >>> overview(ViM()).group
            'features and head, fitted'
        """
        return f"{self.reads}, {'fitted' if self.is_fitted else 'no fit'}"


def overview(detector: Detector) -> Overview:
    """What a detector needs and costs.

    Example:
        >>> from oodlit.detectors import BATS, KNN, ODIN, ReAct, WeiPer
        >>> [overview(d).cost for d in (KNN(), ODIN(), ODIN(epsilon=0.0))]
        ['bank', '2 further passes', 'closed form']
        >>> [overview(d).tuned for d in (WeiPer(), WeiPer(strength=1.0), ReAct(then=BATS()))]
        ['imagenet-resnet50', '', 'imagenet of BATS']
    """
    needs = detector.required_needs
    reads = "logits"
    for name, words in zip(("features", "head", "hidden", "images"), READS[1:], strict=True):
        reads = words if name in needs else reads
    return Overview(reads, bool(detector.required_statistics), _cost(detector), tuned_as(detector))


def tuned_as(detector: Detector) -> str:
    """The first preset chosen by search on OOD data that has the settings of this detector, or of one inside it.

    Empty if there is none.
    Settings that the preset leaves out do not count, nor those that are None here and thus follow from the data.
    """
    stored = detector.settings
    for name, settings in detector.presets.items():
        if name in detector.tuned_presets:
            tuned = type(detector).preset(name).settings
            compared = [key for key in settings if stored[key] is not None]
            if compared and all(repr(tuned[key]) == repr(stored[key]) for key in compared):
                return name
    inside = ((tuned_as(child), type(child).__name__) for child in detector.children() if isinstance(child, Detector))
    return next((f"{name} of {kind}" for name, kind in inside if name), "")


def _cost(detector: Detector) -> str:
    if detector.extra_passes:
        return f"{detector.extra_passes} further pass{'es' if detector.extra_passes > 1 else ''}"
    if {"hidden", "model"} <= detector.required_needs:
        return "part of a pass"
    everyone = [child for child in detector.modules() if isinstance(child, Detector)]
    return "bank" if any(child.compares_images for child in everyone) else "closed form"
