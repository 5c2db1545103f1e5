"""Figures of results: one function per figure, which returns a matplotlib `Figure`.

The `describe` method of each function returns the content as plain numbers, for both the HTML page and matplotlib. The
export list is the registry.
"""

from typing import Any

from oodlit.results.plots.accuracy_fpr import accuracy_fpr as accuracy_fpr
from oodlit.results.plots.class_distribution import class_distribution as class_distribution
from oodlit.results.plots.fpr_per_class import fpr_per_class as fpr_per_class
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.roc import roc as roc
from oodlit.results.plots.score_histograms import score_histograms as score_histograms
from oodlit.results.plots.severity_correlation import severity_correlation as severity_correlation
from oodlit.results.plots.severity_curve import severity_curve as severity_curve
from oodlit.results.plots.unit_tests import unit_tests as unit_tests

FIGURES: dict[str, Plot[..., Any]] = {name: value for name, value in vars().items() if isinstance(value, Plot)}
"""All figures by name."""

__all__ = [name for name, value in vars().items() if name == "FIGURES" or isinstance(value, Plot)]
