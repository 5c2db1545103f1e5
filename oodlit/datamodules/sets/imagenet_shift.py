"""Sets of known classes under covariate shift: ImageNet-V2, -R, -A, -Sketch and -C."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from oodlit.base.errors import DataError
from oodlit.base.known_classes.imagenet import subset_labels
from oodlit.datamodules.generated.corruptions import CORRUPTIONS
from oodlit.datamodules.sets.description import DatasetDescription, Membership, published
from oodlit.datamodules.sets.imagenet import by_wnid

NUM_FLAT_C = 10_000
"""Images of ImageNet-C that OpenOOD uses."""
_SEVERITIES = frozenset("12345")
_OTHER_V2 = ("imagenetv2-threshold", "imagenetv2-top")
"""Folders of the other two sets of ImageNet-V2, which have the same layout and other accuracies."""


def by_number(path: PurePosixPath) -> Membership | None:
    """Label of a file in a folder named by its class index; None in the other two sets of ImageNet-V2.

    Example:
        >>> by_number(PurePosixPath("imagenetv2-matched-frequency-format-val/112/a.jpeg"))
        Membership(label=112, group='', path='')
    """
    name = path.parent.name
    if any(part.startswith(_OTHER_V2) for part in path.parts):
        return None
    return Membership(label=int(name)) if name.isdecimal() and name.isascii() and int(name) < 1000 else None


def by_corruption(path: PurePosixPath) -> Membership | None:
    """Label by wnid, group "<corruption>/<severity>".

    Example:
        >>> by_corruption(PurePosixPath("noise/shot_noise/5/n01443537/ILSVRC2012_val_00000236.JPEG"))
        Membership(label=1, group='shot_noise/5', path='')
    """
    place, group = by_wnid(path), _corruption(path.parts[-4:-2])
    return Membership(place.label, group) if place is not None and group else None


def _corruption(folders: Sequence[str]) -> str:
    """Name of the group of images in folders <corruption>/<severity>; "" for other folders."""
    group = "/".join(folders).lower()
    kind, _, severity = group.partition("/")
    return group if kind in CORRUPTIONS and severity in _SEVERITIES else ""


IMAGENET_V2 = published("imagenet_v2", by_number)
IMAGENET_R = published("imagenet_r", by_wnid, label_subset=subset_labels("imagenet_r"))
IMAGENET_A = published("imagenet_a", by_wnid, label_subset=subset_labels("imagenet_a"))
IMAGENET_SKETCH = published("imagenet_sketch", by_wnid)
IMAGENET_C = published("imagenet_c", by_corruption)


def flat_c(labels: Mapping[str, int]) -> DatasetDescription:
    """`IMAGENET_C` for OpenOOD's archive: 10,000 images without class folders, whose labels are in a separate list.

    Args:
        labels: Class index by name of the validation image, as `read_val_labels` returns it.

    Example:
        >>> flat_c({"ILSVRC2012_val_00000236": 1}).place(PurePosixPath("fog/5/ILSVRC2012_val_00000236.JPEG"))
        Membership(label=1, group='fog/5', path='fog/5/ILSVRC2012_val_00000236.JPEG')
    """
    known = {name.lower(): label for name, label in labels.items()}

    def place(path: PurePosixPath) -> Membership | None:
        group = _corruption(path.parts[-3:-1])
        if group and path.stem.lower() not in known:
            raise DataError(f"imagenet_c: {path.as_posix()!r} has no label; pass a complete list of labels")
        return Membership(known[path.stem.lower()], group, f"{group}/{path.name}") if group else None

    layout = "<corruption>/<severity 1-5>/<file>.JPEG"
    of_list = {"file_list": "imagenet_c_10000", "expected_count": NUM_FLAT_C, "per_group": None}
    return replace(IMAGENET_C, layout=layout, place=place, **of_list)  # type: ignore[arg-type]
