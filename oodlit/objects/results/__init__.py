"""Results of runs over boxes: tables, storage, summary. Names are loaded on first use."""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.objects.results.curves import CURVES as CURVES
    from oodlit.objects.results.curves import TauPoint as TauPoint
    from oodlit.objects.results.curves import tau_curve as tau_curve
    from oodlit.objects.results.results import ObjectResults as ObjectResults
    from oodlit.objects.results.summary import headline as headline
    from oodlit.objects.results.summary import headline_metrics as headline_metrics
    from oodlit.objects.results.summary import main_metrics as main_metrics

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
