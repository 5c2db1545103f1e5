"""Results of a run: per-image scores, the tidy table of metrics, and the description of the run.

The names below are loaded on first use: what the metrics are can be told without loading what computes them.
"""

from typing import TYPE_CHECKING

from oodlit.base import lazy

if TYPE_CHECKING:
    from oodlit.metrics.settings import Settings as Settings
    from oodlit.results.comparing.best import group_of_best as group_of_best
    from oodlit.results.comparing.between_runs import compare_runs as compare_runs
    from oodlit.results.comparing.conclusion import conclusions as conclusions
    from oodlit.results.comparing.controls import controls as controls
    from oodlit.results.comparing.correlation import level_correlation as level_correlation
    from oodlit.results.comparing.correlation import rank_correlation as rank_correlation
    from oodlit.results.comparing.detectors import compare as compare
    from oodlit.results.comparing.several_runs import RunColumn as RunColumn
    from oodlit.results.comparing.several_runs import mean_ranks as mean_ranks
    from oodlit.results.comparing.several_runs import run_columns as run_columns
    from oodlit.results.comparing.several_runs import values_of_runs as values_of_runs
    from oodlit.results.files.unfinished import UnfinishedRunWarning as UnfinishedRunWarning
    from oodlit.results.finding import Finding as Finding
    from oodlit.results.finding import FindingWarning as FindingWarning
    from oodlit.results.info import DatasetInfo as DatasetInfo
    from oodlit.results.limits import Crossing as Crossing
    from oodlit.results.limits import Limit as Limit
    from oodlit.results.limits import crossings as crossings
    from oodlit.results.results import Results as Results
    from oodlit.results.run_results import RunResults as RunResults
    from oodlit.results.views.held_out_images import held_out as held_out
    from oodlit.results.views.operating import operating_points as operating_points
    from oodlit.results.views.operating import operating_sentence as operating_sentence
    from oodlit.results.views.pools import check_same_pool as check_same_pool
    from oodlit.results.views.pools import levels_of_runs as levels_of_runs

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)
