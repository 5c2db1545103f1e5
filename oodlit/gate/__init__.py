"""Deploy a detector: images in, decisions out, with the network, transform and threshold of a run."""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.gate.calibration import Calibration as Calibration
    from oodlit.gate.drift import DriftAlarm as DriftAlarm
    from oodlit.gate.drift import DriftTest as DriftTest
    from oodlit.gate.gate import Gate as Gate
    from oodlit.gate.monitor import DriftWarning as DriftWarning
    from oodlit.gate.monitor import Monitor as Monitor
    from oodlit.gate.monitor import RefusalWarning as RefusalWarning
    from oodlit.gate.threshold import Threshold as Threshold
    from oodlit.gate.verdict import Verdict as Verdict

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
