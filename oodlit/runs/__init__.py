"""One `trainer.predict`, from the first check to its results. The names below are loaded on first use."""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.runs.folder import check_not_in_use as check_not_in_use
    from oodlit.runs.loggers import RunLog as RunLog
    from oodlit.runs.loggers import figures_of as figures_of
    from oodlit.runs.loggers import log_to_all as log_to_all

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
