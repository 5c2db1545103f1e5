"""The comparison of AdaSCALE's authors on ImageNet-1k."""

from oodlit.results.published.protocol import Protocol
from oodlit.results.published.table import PublishedTable

ADASCALE = PublishedTable(
    name="adascale",
    source="S. Regmi, AdaSCALE: Adaptive Scaling for OOD Detection, 2025",
    url="https://github.com/sudarshanregmi/AdaSCALE",
    tables="SCALE and detectors that OpenOOD's board does not list, with the settings of AdaSCALE's authors",
    rule="near and far AUROC are means over more OOD sets than those of OpenOOD's board; do not compare the two tables",
    file="adascale.csv",
    protocol=Protocol("images", sets={"near": (), "far": ()}),
)
"""Near and far AUROC, comparable only within this table."""
