"""ImageNet-21k as a pool of OOD classes for classifiers of ImageNet-1k."""

from oodlit.datamodules.sets.description import DatasetDescription
from oodlit.datamodules.sets.imagenet21k.classes import in_part_and_class
from oodlit.roles import Role

IMAGENET21K = DatasetDescription(
    name="imagenet21k",
    title="ImageNet-21k without the classes of ImageNet-1k, their hypernyms and hyponyms, and small classes",
    role=Role.POOL,
    layout="<wnid>/<file>.JPEG, <wnid>.tar, or a tar of either",
    place=in_part_and_class,
    licence="as ImageNet: research use",
    source="https://image-net.org",
    citation=(
        "Deng et al.: ImageNet: A Large-Scale Hierarchical Image Database, CVPR 2009; protocol: Galil et al.: A"
        " framework for benchmarking class-out-of-distribution detection and its application to ImageNet, ICLR 2023"
    ),
)
