"""Lightning callbacks."""

from oodlit.callbacks.detection import OODDetection

__all__ = ["OODDetection"]
