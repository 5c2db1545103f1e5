"""How the figures of a published table were computed, described so that a run can be compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Protocol:
    """Conditions under which a published figure is comparable with that of a run.

    Args:
        mean: For a set with OOD classes: "classes" = the mean over them, "images" = all images together, "" = unknown.
        threshold: Threshold rule, "interpolated" or "attained"; "" = none or unknown.
        sets: Printed data set -> names of the sets whose mean the figure is; () = unknown. Other data sets have the
            same name here.
        unclear: Metrics whose computation is unknown, regardless of `mean`.
        images: Number of images by set, if known. A value over all images of a set with an unknown number is never
            compared.
        inside: The ID set, for metrics other than accuracy.
        train_images: Number of training images that detectors are fitted on; 0 = unknown.
        shifted: Printed data set -> shifted sets that count as ID there (full spectrum); () or absent = none.
    """

    mean: Literal["classes", "images", ""]
    threshold: Literal["interpolated", "attained", ""] = ""
    sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unclear: tuple[str, ...] = ()
    images: Mapping[str, int] = field(default_factory=dict)
    inside: str = "imagenet_val"
    train_images: int = 0
    shifted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def sets_of(self, dataset: str) -> tuple[str, ...]:
        """The sets that a printed data set stands for.

        Example:
            >>> Protocol("images", sets={"near": ("ssb_hard", "ninco")}).sets_of("near")
            ('ssb_hard', 'ninco')
        """
        return self.sets.get(dataset, (dataset,))


def weights(model: str, img_size: int, crop_pct: float) -> str:
    """One name for weights of timm with a transform.

    Example:
        >>> weights("resnet50.a1_in1k", 224, 0.95)
        'resnet50.a1_in1k, 224 px, crop 0.95'
    """
    return f"{model}, {img_size} px, crop {crop_pct:g}"
