"""Detectors: a score for every image, higher = more in-distribution.

Adding one takes a file beside this one and its line below.
"""

from oodlit.detectors.base import BackboneFacts, Detector, Requirement, TrainFreeDetector
from oodlit.detectors.energy import Energy
from oodlit.detectors.fitting import fit
from oodlit.detectors.io import FitOrigin, load, save
from oodlit.detectors.knn import KNN
from oodlit.detectors.mahalanobis import Mahalanobis
from oodlit.detectors.max_logit import MaxLogit
from oodlit.detectors.msp import MSP
from oodlit.detectors.reference import Reference
from oodlit.detectors.relative_mahalanobis import RelativeMahalanobis
from oodlit.detectors.vim import ViM

__all__ = [
    "KNN",
    "MSP",
    "BackboneFacts",
    "Detector",
    "Energy",
    "FitOrigin",
    "Mahalanobis",
    "MaxLogit",
    "Reference",
    "RelativeMahalanobis",
    "Requirement",
    "TrainFreeDetector",
    "ViM",
    "fit",
    "load",
    "save",
]
