"""ImageNet-21k as a pool of OOD classes for classifiers of ImageNet-1k."""

from oodlit.datamodules.sets.description import published
from oodlit.datamodules.sets.imagenet21k.classes import in_part_and_class

IMAGENET21K = published("imagenet21k", in_part_and_class)
