"""Mahalanobis++ on NINCO, by its authors."""

from oodlit.results.published.protocol import Protocol
from oodlit.results.published.table import PublishedTable

MAHALANOBIS_PLUS_PLUS = PublishedTable(
    name="mahalanobis_plus_plus",
    source="M. Mueller and M. Hein, Mahalanobis++: Improving OOD Detection via Feature Normalization, ICML, 2025",
    url="https://arxiv.org/abs/2505.18032",
    tables="seven detectors, means over 44 classifiers",
    rule="FPR at a TPR of 95 % on NINCO, mean over 44 classifiers; whether classes are pooled is not stated",
    file="mahalanobis_plus_plus.csv",
    protocol=Protocol(""),
    detectors={
        "Maha": "Mahalanobis",
        "rMaha": "RelativeMahalanobis",
        "Maha++": "MahalanobisPlusPlus",
        "rMaha++": "RelativeMahalanobisPlusPlus",
    },
)
"""Mean FPR95 on NINCO of the detectors that the paper compares."""
