"""Results of a run: per-image scores, the tidy table of metrics, and the description of the run."""

from oodlit.results.comparison import compare
from oodlit.results.info import DatasetInfo, Settings
from oodlit.results.results import Results
from oodlit.results.scores import Scores

__all__ = ["DatasetInfo", "Results", "Scores", "Settings", "compare"]
