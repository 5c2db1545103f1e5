"""COOD: severity levels of ImageNet-21k classes."""

from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription, BenchmarkSet

COOD = BenchmarkDescription(
    name="cood",
    title="COOD: eleven severity levels of ImageNet-21k classes",
    sets=(BenchmarkSet("imagenet21k"),),
    tables=("cood",),
    source="https://github.com/mdabbah/COOD_benchmarking",
    citation="Galil, Dabbah, El-Yaniv: A framework for benchmarking class-out-of-distribution detection and its"
    " application to ImageNet, ICLR 2023",
)
