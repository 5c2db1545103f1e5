"""The detector contract: base class, registry, fitting, saving and paper references."""

from oodlit.detectors.contract.detector import Detector, TrainFreeDetector
from oodlit.detectors.contract.reference import Reference
from oodlit.detectors.contract.registry import GivenDetector

__all__ = ["Detector", "GivenDetector", "Reference", "TrainFreeDetector"]
