"""What makes a detector: the base class, registry, fitting, saving and the reference to its paper."""

from oodlit.detectors.contract.detector import Detector, TrainFreeDetector
from oodlit.detectors.contract.reference import Reference

__all__ = ["Detector", "Reference", "TrainFreeDetector"]
