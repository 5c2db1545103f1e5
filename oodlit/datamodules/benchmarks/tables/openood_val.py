"""The validation images of OpenOOD v1.5, to choose hyperparameters without the test images."""

from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription, BenchmarkSet
from oodlit.datamodules.benchmarks.tables.openood import OPENOOD

OPENOOD_VAL = BenchmarkDescription(
    name="openood-v1.5-val",
    title="OpenOOD v1.5, ImageNet-1k: validation images, to choose hyperparameters",
    id_set=BenchmarkSet("imagenet_val", 5_000, keep="imagenet_val_5000"),
    sets=(BenchmarkSet("openimage_o", 1_763, keep="openimage_o_val_1763"),),
    source=OPENOOD.source,
    citation=OPENOOD.citation,
)
