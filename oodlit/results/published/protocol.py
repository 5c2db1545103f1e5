"""How the figures of a published table were formed, in terms that a run can be held against."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Protocol:
    """What must be the same before a figure of ours and a published one are a comparison.

    Args:
        mean: Of a set with OOD classes: "classes" = the mean over them, "images" = all images together, "" = not known.
        threshold: Rule of the threshold, "interpolated" or "attained", where one comes in; "" = none, or not known.
        sets: Printed data set -> sets as named here, over whose values the figure is the mean; () = not known. A data
            set that is not named stands for itself.
        unclear: Metrics of which it is not known how they were formed, whatever `mean` says.
        images: Number of images by set, as far as it is known. A value of all images of a set of which it is not known
            is never compared.
        inside: The ID set, for what is not an accuracy.
        train_images: Number of training images that detectors are fitted on; 0 = not known.
    """

    mean: Literal["classes", "images", ""]
    threshold: Literal["interpolated", "attained", ""] = ""
    sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unclear: tuple[str, ...] = ()
    images: Mapping[str, int] = field(default_factory=dict)
    inside: str = "imagenet_val"
    train_images: int = 0

    def sets_of(self, dataset: str) -> tuple[str, ...]:
        """The sets that a printed data set stands for.

        Example:
            >>> Protocol("images", sets={"near": ("ssb_hard", "ninco")}).sets_of("near")
            ('ssb_hard', 'ninco')
        """
        return self.sets.get(dataset, (dataset,))


def weights(model: str, img_size: int, crop_pct: float) -> str:
    """Weights of timm under a transform, as one name.

    Example:
        >>> weights("resnet50.a1_in1k", 224, 0.95)
        'resnet50.a1_in1k, 224 px, crop 0.95'
    """
    return f"{model}, {img_size} px, crop {crop_pct:g}"
