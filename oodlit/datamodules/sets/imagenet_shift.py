"""Sets of known classes under covariate shift: ImageNet-V2, -R, -A, -Sketch and -C."""

from functools import partial
from pathlib import PurePosixPath

from oodlit.datamodules.generated.corruptions import CORRUPTIONS
from oodlit.datamodules.sets.description import DatasetDescription, Membership
from oodlit.datamodules.sets.imagenet import by_wnid
from oodlit.datamodules.sets.imagenet_classes import subset_labels
from oodlit.roles import Role

_N_VAL = 50_000
_shift = partial(DatasetDescription, role=Role.SHIFT)


def by_number(path: PurePosixPath) -> Membership | None:
    """Label of a file in a folder whose name is the class index.

    Example:
        >>> by_number(PurePosixPath("imagenetv2-matched-frequency-format-val/112/a.jpeg"))
        Membership(label=112, group='')
    """
    name = path.parent.name
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
    return Membership(place.label, f"{kind}/{severity}") if kind in CORRUPTIONS and severity in "12345" else None


IMAGENET_V2 = _shift(
    name="imagenet_v2",
    title="ImageNet-V2, matched frequency",
    layout="imagenetv2-matched-frequency-format-val/<class index>/<file>.jpeg",
    place=by_number,
    expected_count=10_000,
    per_label=10,
    licence="MIT (code)",
    source="https://github.com/modestyachts/ImageNetV2",
    citation="Recht et al.: Do ImageNet Classifiers Generalize to ImageNet?, ICML 2019",
)
IMAGENET_R = _shift(
    name="imagenet_r",
    title="ImageNet-R (renditions)",
    layout="imagenet-r/<wnid>/<file>.jpg",
    place=by_wnid,
    expected_count=30_000,
    label_subset=subset_labels("imagenet_r"),
    licence="MIT",
    source="https://github.com/hendrycks/imagenet-r",
    citation="Hendrycks et al.: The Many Faces of Robustness, ICCV 2021",
)
IMAGENET_A = _shift(
    name="imagenet_a",
    title="ImageNet-A (natural adversarial examples)",
    layout="imagenet-a/<wnid>/<file>.jpg",
    place=by_wnid,
    expected_count=7_500,
    label_subset=subset_labels("imagenet_a"),
    licence="MIT",
    source="https://github.com/hendrycks/natural-adv-examples",
    citation="Hendrycks et al.: Natural Adversarial Examples, CVPR 2021",
)
IMAGENET_SKETCH = _shift(
    name="imagenet_sketch",
    title="ImageNet-Sketch",
    layout="sketch/<wnid>/<file>.JPEG",
    place=by_wnid,
    expected_count=50_889,
    licence="MIT (code)",
    source="https://github.com/HaohanWang/ImageNet-Sketch",
    citation="Wang et al.: Learning Robust Global Representations by Penalizing Local Predictive Power, NeurIPS 2019",
)
IMAGENET_C = _shift(
    name="imagenet_c",
    title="ImageNet-C (corruptions), 224 x 224 pixels",
    layout="<corruption>/<severity 1-5>/<wnid>/<file>.JPEG",
    place=by_corruption,
    per_group=_N_VAL,
    prepared=True,
    licence="CC-BY-4.0",
    source="https://zenodo.org/records/2235448",
    citation="Hendrycks, Dietterich: Benchmarking Neural Network Robustness to Common Corruptions, ICLR 2019",
)
