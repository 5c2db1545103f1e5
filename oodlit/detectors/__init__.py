"""Detectors: a score for every image, higher = more in-distribution.

Adding one takes a file beside this one and its line below.
"""

from oodlit.detectors.ash import ASH
from oodlit.detectors.base import BackboneFacts, Detector, Requirement, TrainFreeDetector
from oodlit.detectors.cosine import Cosine
from oodlit.detectors.ddu import DDU
from oodlit.detectors.dice import DICE
from oodlit.detectors.energy import Energy
from oodlit.detectors.entropy import Entropy
from oodlit.detectors.fdbd import FDBD
from oodlit.detectors.fitting import fit
from oodlit.detectors.gen import GEN
from oodlit.detectors.grad_norm import GradNorm
from oodlit.detectors.io import FitOrigin, load, save
from oodlit.detectors.kl_matching import KLMatching
from oodlit.detectors.knn import KNN
from oodlit.detectors.lard import LaRD
from oodlit.detectors.mahalanobis import Mahalanobis
from oodlit.detectors.max_logit import MaxLogit
from oodlit.detectors.mc_dropout import MCDropout
from oodlit.detectors.msp import MSP
from oodlit.detectors.nci import NCI
from oodlit.detectors.nn_guide import NNGuide
from oodlit.detectors.odin import ODIN
from oodlit.detectors.open_max import OpenMax
from oodlit.detectors.rank_feat import RankFeat
from oodlit.detectors.react import ReAct
from oodlit.detectors.reference import Reference
from oodlit.detectors.registry import detectors, find, presets
from oodlit.detectors.relative_cosine import RelativeCosine
from oodlit.detectors.relative_mahalanobis import RelativeMahalanobis
from oodlit.detectors.residual import Residual
from oodlit.detectors.scale import SCALE
from oodlit.detectors.shaping import Shaping
from oodlit.detectors.she import SHE
from oodlit.detectors.temperature_scaled_msp import TemperatureScaledMSP
from oodlit.detectors.vim import ViM
from oodlit.detectors.vra import VRA

__all__ = [
    "ASH",
    "DDU",
    "DICE",
    "FDBD",
    "GEN",
    "KNN",
    "MSP",
    "NCI",
    "ODIN",
    "SCALE",
    "SHE",
    "VRA",
    "BackboneFacts",
    "Cosine",
    "Detector",
    "Energy",
    "Entropy",
    "FitOrigin",
    "GradNorm",
    "KLMatching",
    "LaRD",
    "MCDropout",
    "Mahalanobis",
    "MaxLogit",
    "NNGuide",
    "OpenMax",
    "RankFeat",
    "ReAct",
    "Reference",
    "RelativeCosine",
    "RelativeMahalanobis",
    "Requirement",
    "Residual",
    "Shaping",
    "TemperatureScaledMSP",
    "TrainFreeDetector",
    "ViM",
    "detectors",
    "find",
    "fit",
    "load",
    "presets",
    "save",
]
