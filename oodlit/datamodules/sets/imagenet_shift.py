"""Sets of known classes under covariate shift: ImageNet-V2, -R, -A, -Sketch and -C."""

import re
from pathlib import PurePosixPath

from oodlit.base.known_classes.imagenet import subset_labels
from oodlit.datamodules.generated.corruptions import CORRUPTIONS
from oodlit.datamodules.sets.description import Membership, published
from oodlit.datamodules.sets.imagenet import by_wnid

_SEVERITIES = frozenset("12345")
_OTHER_V2 = re.compile(r"imagenetv2-(threshold|top)")
"""Folders of the other two sets of ImageNet-V2, which have the same layout and other accuracies."""


def by_number(path: PurePosixPath) -> Membership | None:
    """Label of a file in a folder named by its class index; None in the other two sets of ImageNet-V2.

    Example:
        >>> by_number(PurePosixPath("imagenetv2-matched-frequency-format-val/112/a.jpeg"))
        Membership(label=112, group='')
    """
    name = path.parent.name
    if any(map(_OTHER_V2.match, path.parts)):
        return None
    return Membership(label=int(name)) if name.isdecimal() and name.isascii() and int(name) < 1000 else None


def by_corruption(path: PurePosixPath) -> Membership | None:
    """Label by wnid, group "<corruption>/<severity>".

    Example:
        >>> by_corruption(PurePosixPath("noise/shot_noise/5/n01443537/ILSVRC2012_val_00000236.JPEG"))
        Membership(label=1, group='shot_noise/5')
    """
    place = by_wnid(path)
    if place is None or len(path.parts) < 4:
        return None
    kind, severity = path.parts[-4:-2]
    return Membership(place.label, f"{kind}/{severity}") if kind in CORRUPTIONS and severity in _SEVERITIES else None


IMAGENET_V2 = published("imagenet_v2", by_number)
IMAGENET_R = published("imagenet_r", by_wnid, label_subset=subset_labels("imagenet_r"))
IMAGENET_A = published("imagenet_a", by_wnid, label_subset=subset_labels("imagenet_a"))
IMAGENET_SKETCH = published("imagenet_sketch", by_wnid)
IMAGENET_C = published("imagenet_c", by_corruption)
