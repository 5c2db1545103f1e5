"""NINCO: 64 OOD classes without ImageNet objects, and unit tests."""

from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription, BenchmarkSet

NINCO = BenchmarkDescription(
    name="ninco",
    title="NINCO: 64 OOD classes without objects of ImageNet-1k, and 17 unit tests",
    sets=(
        BenchmarkSet("ninco", 5_879),
        BenchmarkSet("unit_tests"),
        BenchmarkSet("ninco_unit_tests", 6_800, is_optional=True),
    ),
    rule="interpolated",
    tables=("ninco",),
    source="https://github.com/j-cb/NINCO",
    citation="Bitterwolf, Mueller, Hein: In or Out? Fixing ImageNet Out-of-Distribution Detection Evaluation,"
    " ICML 2023",
)
