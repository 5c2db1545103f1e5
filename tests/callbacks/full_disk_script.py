"""Run by test_unfinished.py: runs into one folder while files may grow to a limit, as on a disk that is full."""

import json
import resource
import signal
import warnings
from pathlib import Path

from oodlit import Results
from oodlit.detectors import MSP, ViM
from oodlit.errors import DataError
from tests.callbacks.support import make_streams, run

LIMITS = (0, 500, 3_000, 6_000, 9_000, 14_000, 20_000, 40_000, 80_000, 300_000)


def contents(folder: Path) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            results = Results.load(folder)
        except DataError:
            return "nothing"
    broke_off = any("interrupted" in str(warning.message) for warning in caught)
    return f"{','.join(results.detectors)}{' and a run that broke off' if broke_off else ''}"


def attempt(folder: Path, limit: int) -> str:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        run([ViM(dim=4)], output_dir=folder, streams=make_streams())
    except OSError as error:
        return type(error).__name__ if str(folder) in str(error) else str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return "done"


def main(root: Path) -> None:
    """Write, for each limit, what the folder holds afterwards."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    told = []
    for limit in LIMITS:
        folder = root / str(limit)
        run([MSP()], output_dir=folder)
        page = (folder / "report.html").read_bytes()
        ended = attempt(folder, limit)
        left = contents(folder)
        same_page = (folder / "report.html").is_file() and (folder / "report.html").read_bytes() == page
        told.append({"limit": limit, "ended": ended, "left": left, "old_page": same_page})
    (root / "told.json").write_text(json.dumps(told))
