"""ImageNet-OOD: classes of ImageNet-21k with little covariate shift."""

from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription, BenchmarkSet

IMAGENET_OOD = BenchmarkDescription(
    name="imagenet-ood",
    title="ImageNet-OOD: 637 classes of ImageNet-21k without semantic overlap with ImageNet-1k",
    sets=(BenchmarkSet("imagenet_ood", 31_802, keep="imagenet_ood_31802"),),
    source="https://github.com/princetonvisualai/imagenetood",
    citation="Yang, Zhang, Russakovsky: ImageNet-OOD: Deciphering Modern Out-of-Distribution Detection Algorithms, ICLR"
    " 2024",
)
