"""Results that may be held to limits: those of a run that came to its end."""

import os
import warnings
from pathlib import Path

from oodlit.errors import InvalidArgumentError
from oodlit.results.files.storage import RUN, UNFINISHED
from oodlit.results.files.unfinished import broke_off
from oodlit.results.results import Results, UnfinishedRunWarning


def load_whole(directory: str | os.PathLike[str], *, allow_unfinished: bool = False) -> Results:
    """Read results, and refuse those of a run that broke off: a set that was not scored crosses no limit.

    Args:
        directory: Folder of the results.
        allow_unfinished: True takes what there is, as `Results.load` does, with its warning.

    Raises:
        InvalidArgumentError: The run broke off, or a newer one in the same folder did.
        DataError: See `Results.load`.
    """
    if allow_unfinished:
        return Results.load(directory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfinishedRunWarning)  # it is an error here
        results = Results.load(directory)
    why = broke_off(results.run)
    if not why and (Path(directory) / UNFINISHED / RUN).is_file():
        why = "a newer run broke off, or still goes on, and the complete result is that of the run before"
    if why:
        raise InvalidArgumentError(
            f"{directory}: {why}; that passes no limit - start the run again, and it goes on, or allow it"
            " (--allow_unfinished of oodlit guard, --oodlit-allow-unfinished of pytest)"
        )
    return results
