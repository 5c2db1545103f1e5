"""Complete results, which limits can be checked on."""

import os
import warnings
from pathlib import Path

from oodlit.base.errors import InvalidArgumentError
from oodlit.results.files.storage import RUN, UNFINISHED
from oodlit.results.files.unfinished import UnfinishedRunWarning, interruption, is_running, state
from oodlit.results.results import Results


def load_complete(directory: str | os.PathLike[str], *, allow_unfinished: bool = False) -> Results:
    """Read complete results; reject interrupted runs and trials, because missing images cannot cross a limit.

    Args:
        directory: Folder of the results.
        allow_unfinished: True accepts a trial, and an interrupted run with a warning, as `Results.load` does.

    Raises:
        InvalidArgumentError: The run was interrupted, or a newer run in the same folder was; or the run was a trial.
        DataError: See `Results.load`.
    """
    if allow_unfinished:
        return Results.load(directory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfinishedRunWarning)  # it is an error here
        results = Results.load(directory)
    why = interruption(results.run)
    way_out = "Wait until the run is complete" if is_running(Path(directory)) else "Rerun the command to resume the run"
    if not why and (Path(directory) / UNFINISHED / RUN).is_file():
        why = f"a newer run {state(Path(directory))}, so the complete results in this folder are outdated"
    if not why and (trial := results.run.dry_run):
        why, way_out = f"this run read only a part of each data set ({trial})", f"Rerun without {trial}"
    if why:
        raise InvalidArgumentError(
            f"{directory}: {why}. Limits require complete results of the newest run. {way_out}, or accept these results"
            " (oodlit guard --allow_unfinished, pytest --oodlit-allow-unfinished)"
        )
    return results
