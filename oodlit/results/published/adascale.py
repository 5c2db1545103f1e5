"""The comparison of AdaSCALE's authors on ImageNet-1k."""

from oodlit.results.published.protocol import Protocol
from oodlit.results.published.table import PublishedTable

ADASCALE = PublishedTable(
    name="adascale",
    source="S. Regmi, AdaSCALE: Adaptive Scaling for OOD Detection, 2025",
    url="https://github.com/sudarshanregmi/AdaSCALE",
    tables="a part: detectors that are not on OpenOOD's board, and SCALE beside them; settings as its authors chose",
    rule="near and far AUROC, means over more OOD sets than those of OpenOOD's board: no comparison with it",
    file="adascale.csv",
    protocol=Protocol("images", sets={"near": (), "far": ()}),
)
"""Near and far AUROC; compare with one another alone."""
