"""OOD sets for ImageNet-1k in folders: the MOS subsets, Textures, OpenImage-O, ImageNet-O, SSB, Species."""

from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from oodlit.datamodules.sets.description import DatasetDescription, Membership
from oodlit.roles import Role

_MOS = "Huang, Li: MOS: Towards Scaling Out-of-distribution Detection for Large Semantic Space, CVPR 2021"
_MOS_SOURCE = "https://github.com/deeplearning-wisc/large_scale_ood"

_ood = partial(DatasetDescription, role=Role.OOD)


def flat(path: PurePosixPath) -> Membership:
    """Every image is part of the set, without groups."""
    return Membership()


def by_folder(path: PurePosixPath) -> Membership | None:
    """The folder of a file is its OOD class; files without a folder are not part of the set."""
    return Membership(group=path.parent.name) if path.parent.name else None


def _mos(name: str, title: str, folder: str, licence: str) -> DatasetDescription:
    return _ood(
        name=name,
        title=f"{title}, 10 000 images without ImageNet classes (MOS)",
        layout=f"{folder}/images/<file>.jpg",
        place=flat,
        expected_count=10_000,
        licence=licence,
        source=_MOS_SOURCE,
        citation=_MOS,
    )


INATURALIST = _mos("inaturalist", "iNaturalist plants", "iNaturalist", "that of each photo (CC)")
SUN = _mos("sun", "SUN scenes", "SUN", "research use")
PLACES = _mos("places", "Places365 scenes", "Places", "research use")
TEXTURES = _ood(
    name="textures",
    title="Describable Textures (DTD)",
    layout="dtd/images/<texture>/<file>.jpg",
    place=by_folder,
    expected_count=5_640,
    n_groups=47,
    licence="research use",
    source="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
    citation="Cimpoi et al.: Describing Textures in the Wild, CVPR 2014",
)
OPENIMAGE_O = _ood(
    name="openimage_o",
    title="OpenImage-O: images of OpenImage-v3's test set, chosen by hand (file list)",
    layout="<file>.jpg as in openimage_o.txt",
    place=flat,
    expected_count=17_632,
    licence="CC-BY-4.0 (annotations), that of each photo (CC-BY)",
    source="https://github.com/haoqiwang/vim",
    citation="Wang et al.: ViM: Out-of-Distribution with Virtual-logit Matching, CVPR 2022",
)
IMAGENET_O = _ood(
    name="imagenet_o",
    title="ImageNet-O: ImageNet-21k images of other classes, chosen against a ResNet-50",
    layout="imagenet-o/<wnid>/<file>.JPEG",
    place=by_folder,
    expected_count=2_000,
    n_groups=200,
    licence="MIT",
    source="https://github.com/hendrycks/natural-adv-examples",
    citation="Hendrycks et al.: Natural Adversarial Examples, CVPR 2021",
)
SSB_HARD = _ood(
    name="ssb_hard",
    title="Semantic Shift Benchmark, hard: ImageNet-21k classes near ImageNet-1k",
    layout="<wnid>/<file>.JPEG, or the file list of OpenOOD",
    place=by_folder,
    licence="as ImageNet",
    source="https://github.com/sgvaze/SSB",
    citation="Vaze et al.: Open-Set Recognition: a Good Closed-Set Classifier is All You Need?, ICLR 2022",
)
SSB_EASY = replace(
    SSB_HARD,
    name="ssb_easy",
    title="Semantic Shift Benchmark, easy: ImageNet-21k classes far from ImageNet-1k",
    layout="<wnid>/<file>.JPEG",
)
SPECIES = _ood(
    name="species",
    title="Species: photos of iNaturalist species that are not in ImageNet",
    layout="<species>/<file>.jpg",
    place=by_folder,
    licence="that of each photo (CC)",
    source="https://github.com/hendrycks/anomaly-seg",
    citation="Hendrycks et al.: Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022",
)
