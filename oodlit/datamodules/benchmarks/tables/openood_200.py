"""OpenOOD v1.5 on ImageNet-200: the 200 classes of ImageNet-R."""

from dataclasses import replace

from oodlit.base.known_classes.imagenet import subset_labels
from oodlit.datamodules.benchmarks.tables.description import BenchmarkSet
from oodlit.datamodules.benchmarks.tables.openood import OPENOOD

_OF_200 = {"imagenet_v2": 2_000, "imagenet_c": None}

OPENOOD_200 = replace(
    OPENOOD,
    name="openood-v1.5-200",
    title="OpenOOD v1.5, ImageNet-200",
    id_set=BenchmarkSet("imagenet_val", 9_000, drop="imagenet_val_5000"),
    sets=tuple(replace(one, images=_OF_200.get(one.name, one.images)) for one in OPENOOD.sets),
    tables=(),
    class_subset=subset_labels("imagenet_r"),
)
