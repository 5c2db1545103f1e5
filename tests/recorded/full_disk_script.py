"""Run by test_recording.py: a cache is extended while files may grow to a limit, as on a disk that is full."""

import resource
import signal
from pathlib import Path

from tests.callbacks.support import make_streams
from tests.recorded.support import record, rows_in

LIMITS = (0, 400, 2_000, 8_000)


def main(_devices: int, folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    first = [stream for stream in make_streams() if stream.name in ("val", "far")]
    record(folder, first)
    before = rows_in(folder)
    problems = []
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in LIMITS:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            record(folder, make_streams(), every=1000.0)
        except OSError as error:
            problems.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        now = rows_in(folder)
        assert {name: now[name] for name in before} == before
    record(folder, make_streams())
    assert len(rows_in(folder)) == len(make_streams())
    print(*problems, sep="\n", flush=True)
