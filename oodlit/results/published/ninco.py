"""NINCO's own figures: its tables, and the result file of its first release."""

from oodlit.results.published.table import PublishedTable

_SOURCE = "J. Bitterwolf, M. Mueller and M. Hein, In or Out? Fixing ImageNet Out-of-Distribution Detection Evaluation"
_RULE = (
    "FPR at a TPR of 95 % and others of each OOD class against ImageNet-val, then the mean over the classes; the"
    " threshold is the interpolated 5 % quantile"
)
_DETECTORS = {"RMahalanobis": "RelativeMahalanobis", "RCos": "RelativeCosine"}

NINCO = PublishedTable(
    name="ninco",
    source=f"{_SOURCE}, ICML workshop version, 2023",
    url="https://arxiv.org/abs/2306.00826",
    tables="tables 3-6: 26 classifiers, and zero-shot CLIP with the cosine detectors alone; ReAct is energy + ReAct",
    rule=f"{_RULE}; 64 classes",
    file="ninco.csv",
    detectors=_DETECTORS,
)
"""Means over the 64 OOD classes, in percent with one decimal."""

NINCO_FIRST_RELEASE = PublishedTable(
    name="ninco_first_release",
    source=f"{_SOURCE}, result file of the first release, 2023",
    url="https://github.com/j-cb/NINCO",
    tables="29 classifiers (MIT); the means are formed here of the figures of the classes. Left out: zero-shot CLIP",
    rule=f"{_RULE}; 46 classes, some of them cleaned later",
    file="ninco_first_release.csv",
    detectors=_DETECTORS,
)
"""Means over the 46 OOD classes of the first release; not those of `NINCO`."""
