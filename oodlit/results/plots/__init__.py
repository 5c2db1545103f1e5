"""Figures of results, each a function of `Results` that returns a matplotlib `Figure`."""

from collections.abc import Callable

from matplotlib.figure import Figure

from oodlit.results.plots.accuracy_fpr import accuracy_fpr
from oodlit.results.plots.class_distribution import class_distribution
from oodlit.results.plots.fpr_per_class import fpr_per_class
from oodlit.results.plots.roc import roc
from oodlit.results.plots.score_histograms import score_histograms
from oodlit.results.plots.unit_tests import unit_tests

__all__ = [
    "FIGURES",
    "accuracy_fpr",
    "class_distribution",
    "fpr_per_class",
    "roc",
    "score_histograms",
    "unit_tests",
]

FIGURES: dict[str, Callable[..., Figure]] = {
    function.__name__: function
    for function in (fpr_per_class, class_distribution, roc, score_histograms, unit_tests, accuracy_fpr)
}
"""All figures by name."""
