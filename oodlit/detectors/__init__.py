"""Detectors: a score for every image, higher = more in-distribution.

Adding one takes a file beside this one and its line below.
"""

from typing import TYPE_CHECKING

from oodlit import _lazy

if TYPE_CHECKING:
    from oodlit.detectors.ada_scale import AdaSCALE as AdaSCALE
    from oodlit.detectors.ash import ASH as ASH
    from oodlit.detectors.bats import BATS as BATS
    from oodlit.detectors.ca_ref import CARef as CARef
    from oodlit.detectors.cad_ref import CADRef as CADRef
    from oodlit.detectors.contract.detector import Detector as Detector
    from oodlit.detectors.contract.detector import Requirement as Requirement
    from oodlit.detectors.contract.detector import TrainFreeDetector as TrainFreeDetector
    from oodlit.detectors.contract.fitting import fit as fit
    from oodlit.detectors.contract.overview import Overview as Overview
    from oodlit.detectors.contract.overview import overview as overview
    from oodlit.detectors.contract.reference import Reference as Reference
    from oodlit.detectors.contract.registry import detectors as detectors
    from oodlit.detectors.contract.registry import find as find
    from oodlit.detectors.contract.registry import presets as presets
    from oodlit.detectors.contract.saving import FitOrigin as FitOrigin
    from oodlit.detectors.contract.saving import load as load
    from oodlit.detectors.contract.saving import save as save
    from oodlit.detectors.cop import CoP as CoP
    from oodlit.detectors.corp import CoRP as CoRP
    from oodlit.detectors.cosine import Cosine as Cosine
    from oodlit.detectors.ddu import DDU as DDU
    from oodlit.detectors.dice import DICE as DICE
    from oodlit.detectors.energy import Energy as Energy
    from oodlit.detectors.entropy import Entropy as Entropy
    from oodlit.detectors.fdbd import FDBD as FDBD
    from oodlit.detectors.formulas.shaping import Shaping as Shaping
    from oodlit.detectors.gen import GEN as GEN
    from oodlit.detectors.grad_norm import GradNorm as GradNorm
    from oodlit.detectors.iodin import IODIN as IODIN
    from oodlit.detectors.kl_matching import KLMatching as KLMatching
    from oodlit.detectors.knn import KNN as KNN
    from oodlit.detectors.lard import LaRD as LaRD
    from oodlit.detectors.lts import LTS as LTS
    from oodlit.detectors.mahalanobis import Mahalanobis as Mahalanobis
    from oodlit.detectors.mahalanobis_plus_plus import MahalanobisPlusPlus as MahalanobisPlusPlus
    from oodlit.detectors.max_logit import MaxLogit as MaxLogit
    from oodlit.detectors.mc_dropout import MCDropout as MCDropout
    from oodlit.detectors.msp import MSP as MSP
    from oodlit.detectors.nac import NAC as NAC
    from oodlit.detectors.nci import NCI as NCI
    from oodlit.detectors.neco import NECO as NECO
    from oodlit.detectors.nn_guide import NNGuide as NNGuide
    from oodlit.detectors.odin import ODIN as ODIN
    from oodlit.detectors.open_max import OpenMax as OpenMax
    from oodlit.detectors.opt_fs import OptFS as OptFS
    from oodlit.detectors.pro import PRO as PRO
    from oodlit.detectors.rank_feat import RankFeat as RankFeat
    from oodlit.detectors.react import ReAct as ReAct
    from oodlit.detectors.relative_cosine import RelativeCosine as RelativeCosine
    from oodlit.detectors.relative_mahalanobis import RelativeMahalanobis as RelativeMahalanobis
    from oodlit.detectors.relative_mahalanobis_plus_plus import (
        RelativeMahalanobisPlusPlus as RelativeMahalanobisPlusPlus,
    )
    from oodlit.detectors.residual import Residual as Residual
    from oodlit.detectors.scale import SCALE as SCALE
    from oodlit.detectors.she import SHE as SHE
    from oodlit.detectors.temperature_scaled_msp import TemperatureScaledMSP as TemperatureScaledMSP
    from oodlit.detectors.vim import ViM as ViM
    from oodlit.detectors.vra import VRA as VRA
    from oodlit.detectors.wei_per import WeiPer as WeiPer
    from oodlit.outputs import BackboneFacts as BackboneFacts

__getattr__, __dir__, __all__ = _lazy.lazy_exports(__name__)
