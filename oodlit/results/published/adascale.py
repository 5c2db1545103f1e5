"""The comparison of AdaSCALE's authors on ImageNet-1k."""

from oodlit.results.published.protocol import Protocol
from oodlit.results.published.table import PublishedTable

ADASCALE = PublishedTable(
    name="adascale",
    source="S. Regmi, AdaSCALE: Adaptive Scaling for OOD Detection, 2025",
    url="https://github.com/sudarshanregmi/AdaSCALE",
    tables="SCALE, and detectors that are missing from OpenOOD's board, with settings of the authors",
    rule="near and far AUROC, means over more OOD sets than on OpenOOD's board, so not comparable with that board",
    file="adascale.csv",
    protocol=Protocol("images", sets={"near": (), "far": ()}),
)
"""Near and far AUROC, comparable only within this table."""
