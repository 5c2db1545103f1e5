"""Explain failures of worker processes, and check that code can be sent to them."""

import multiprocessing
import pickle
import re

from oodlit.datamodules.failures import describe_error
from oodlit.datamodules.stream import Stream
from oodlit.errors import DataError, InvalidArgumentError, OodlitError

_FILES = re.compile(r"(?i)too many open files|ancdata")
_SHARED = re.compile(r"(?i)bus error|shared memory|\bshm\b|/torch_|no space left|cannot allocate memory")
_DIED = "DataLoader worker (pid"  # PyTorch has no error class for this


def explained(error: Exception, stream: str) -> Exception:
    """Explain an error of PyTorch's worker processes; return any other error unchanged."""
    text = str(error)
    if isinstance(error, OodlitError) or not isinstance(error, RuntimeError | OSError):
        return error
    if _FILES.search(text):
        what = "too many open files; raise the limit (ulimit -n), or use fewer workers"
    elif _SHARED.search(text):
        what = (
            "the shared memory of the worker processes is full (/dev/shm, often 64 MB in a container); enlarge it:"
            " docker run --shm-size=8g; or use fewer workers, a smaller batch_size or prefetch_factor, or num_workers=0"
        )
    elif text.startswith(_DIED):
        what = "if the machine ran out of memory, use fewer workers or a smaller batch_size"
    else:
        return error
    died = "a worker process died" if text.startswith(_DIED) else "a worker process failed"
    made = DataError(f"stream {stream!r}: {died} ({text.splitlines()[0]}); {what}")
    made.__cause__ = error
    return made


def check_movable(stream: Stream, method: str | None, **code: object) -> None:
    """Check that a source and code can be pickled for worker processes; forked workers do not need to.

    Args:
        stream: The stream; its source is sent.
        method: Start method; None = the platform's.
        code: Other objects that are sent, by name.

    Raises:
        InvalidArgumentError: Something cannot be pickled.
    """
    if (method or multiprocessing.get_context().get_start_method()) == "fork":
        return
    for name, part in {**code, "source": stream.source}.items():
        try:
            pickle.dumps(part)
        except Exception as error:  # pickle and the classes themselves raise almost anything
            raise InvalidArgumentError(
                f"stream {stream.name!r}: {name} {part!r} cannot be sent to worker processes ({describe_error(error)});"
                f" use a module-level function or class instead of a lambda or local one, or num_workers=0"
            ) from error
