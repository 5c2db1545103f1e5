"""Detectors, which score every image: higher = more in-distribution.

To add one, create a file in the folder of its family and add its line below.
"""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.base.outputs import BackboneFacts as BackboneFacts
    from oodlit.detectors.combinations.combined import Combined as Combined
    from oodlit.detectors.combinations.sirc import SIRC as SIRC
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
    from oodlit.detectors.densities.ddu import DDU as DDU
    from oodlit.detectors.densities.lard import LaRD as LaRD
    from oodlit.detectors.densities.nac import NAC as NAC
    from oodlit.detectors.densities.wei_per import WeiPer as WeiPer
    from oodlit.detectors.distances.ca_ref import CARef as CARef
    from oodlit.detectors.distances.cad_ref import CADRef as CADRef
    from oodlit.detectors.distances.cosine import Cosine as Cosine
    from oodlit.detectors.distances.fdbd import FDBD as FDBD
    from oodlit.detectors.distances.knn import KNN as KNN
    from oodlit.detectors.distances.mahalanobis import Mahalanobis as Mahalanobis
    from oodlit.detectors.distances.mahalanobis_plus_plus import MahalanobisPlusPlus as MahalanobisPlusPlus
    from oodlit.detectors.distances.nci import NCI as NCI
    from oodlit.detectors.distances.nn_guide import NNGuide as NNGuide
    from oodlit.detectors.distances.ora import ORA as ORA
    from oodlit.detectors.distances.relative_cosine import RelativeCosine as RelativeCosine
    from oodlit.detectors.distances.relative_mahalanobis import RelativeMahalanobis as RelativeMahalanobis
    from oodlit.detectors.distances.relative_mahalanobis_plus_plus import (
        RelativeMahalanobisPlusPlus as RelativeMahalanobisPlusPlus,
    )
    from oodlit.detectors.distances.she import SHE as SHE
    from oodlit.detectors.formulas.p_values import benjamini_yekutieli as benjamini_yekutieli
    from oodlit.detectors.formulas.shaping import Shaping as Shaping
    from oodlit.detectors.logits.energy import Energy as Energy
    from oodlit.detectors.logits.entropy import Entropy as Entropy
    from oodlit.detectors.logits.gen import GEN as GEN
    from oodlit.detectors.logits.kl_matching import KLMatching as KLMatching
    from oodlit.detectors.logits.max_logit import MaxLogit as MaxLogit
    from oodlit.detectors.logits.msp import MSP as MSP
    from oodlit.detectors.logits.open_max import OpenMax as OpenMax
    from oodlit.detectors.logits.temperature_scaled_msp import TemperatureScaledMSP as TemperatureScaledMSP
    from oodlit.detectors.passes.grad_norm import GradNorm as GradNorm
    from oodlit.detectors.passes.iodin import IODIN as IODIN
    from oodlit.detectors.passes.mc_dropout import MCDropout as MCDropout
    from oodlit.detectors.passes.odin import ODIN as ODIN
    from oodlit.detectors.passes.pro import PRO as PRO
    from oodlit.detectors.shaping.ada_scale import AdaSCALE as AdaSCALE
    from oodlit.detectors.shaping.ash import ASH as ASH
    from oodlit.detectors.shaping.bats import BATS as BATS
    from oodlit.detectors.shaping.dice import DICE as DICE
    from oodlit.detectors.shaping.lts import LTS as LTS
    from oodlit.detectors.shaping.opt_fs import OptFS as OptFS
    from oodlit.detectors.shaping.rank_feat import RankFeat as RankFeat
    from oodlit.detectors.shaping.ras import RAS as RAS
    from oodlit.detectors.shaping.react import ReAct as ReAct
    from oodlit.detectors.shaping.scale import SCALE as SCALE
    from oodlit.detectors.shaping.vra import VRA as VRA
    from oodlit.detectors.subspaces.act_sub import ActSub as ActSub
    from oodlit.detectors.subspaces.cop import CoP as CoP
    from oodlit.detectors.subspaces.corp import CoRP as CoRP
    from oodlit.detectors.subspaces.neco import NECO as NECO
    from oodlit.detectors.subspaces.residual import Residual as Residual
    from oodlit.detectors.subspaces.vim import ViM as ViM
    from oodlit.detectors.zero_shot.csp import CSP as CSP
    from oodlit.detectors.zero_shot.gl_mcm import GLMCM as GLMCM
    from oodlit.detectors.zero_shot.mcm import MCM as MCM
    from oodlit.detectors.zero_shot.neg_label import NegLabel as NegLabel

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
