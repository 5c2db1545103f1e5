"""Errors of worker processes: send them to the main process unchanged, explain them, and prevent them."""

import multiprocessing
import pickle
import re
import traceback

from oodlit.base.errors import DataError, InvalidArgumentError, OodlitError
from oodlit.datamodules.stream import Stream

_FILES = re.compile(r"(?i)too many open files|ancdata")
_SHARED = re.compile(r"(?i)bus error|shared memory|\bshm\b|/torch_|no space left|cannot allocate memory")
_DIED = "DataLoader worker (pid"  # PyTorch has no error class for this


def describe_error(error: BaseException) -> str:
    """Class and message of an error.

    Example:
        >>> describe_error(KeyError("a"))
        "KeyError: 'a'"
    """
    try:
        text = str(error)
    except Exception:  # of a user's class
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class WorkerTraceback(Exception):
    """The traceback of an error in a worker process, chained as its cause in this process."""

    def __str__(self) -> str:
        """The traceback as text."""
        return f"\n{self.args[0]}"


class Failure:
    """An error sent as an item of a stream.

    PyTorch rebuilds a worker's error from text, without its causes and with arguments that its class may not accept.
    Here the error and all its causes arrive unchanged. Tracebacks cannot be pickled: the last cause is followed by a
    `WorkerTraceback`.

    Args:
        error: The error.

    Example:
        >>> arrived = pickle.loads(pickle.dumps(Failure(KeyError("a"))))
        >>> type(arrived.error).__name__, type(arrived.error.__cause__).__name__
        ('KeyError', 'WorkerTraceback')
    """

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getstate__(self) -> tuple[list[BaseException], str]:
        """Return the chain of causes in picklable form, and the traceback as text."""
        chain: list[BaseException] = []
        error: BaseException | None = self.error
        while error is not None and len(chain) < MAX_CAUSES:
            chain.append(_movable(error))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return chain, "".join(traceback.format_exception(self.error))

    def __setstate__(self, state: tuple[list[BaseException], str]) -> None:
        """Rebuild the chain."""
        chain, text = state
        for error, cause in zip(chain, [*chain[1:], WorkerTraceback(text)], strict=True):
            error.__cause__ = cause
        assert isinstance(chain[0], Exception)
        self.error = chain[0]


MAX_CAUSES = 20
"""Longest chain of causes that is sent: a chain can be circular."""


def _movable(error: BaseException) -> BaseException:
    """Return the error if it can be pickled, otherwise a `RuntimeError` with its description."""
    try:
        arrived = pickle.loads(pickle.dumps(error))
    except Exception:  # of a class that cannot be pickled or rebuilt
        arrived = None
    if type(arrived) is type(error) and describe_error(arrived) == describe_error(error):
        return error
    return RuntimeError(describe_error(error))


def explained(error: Exception, stream: str) -> Exception:
    """Explain an error of PyTorch's worker processes; return any other error unchanged."""
    text = str(error)
    if isinstance(error, OodlitError) or not isinstance(error, RuntimeError | OSError):
        return error
    if _FILES.search(text):
        what = "too many files are open; raise the limit (ulimit -n), or use fewer workers"
    elif _SHARED.search(text):
        what = (
            "the shared memory (/dev/shm, often 64 MB in a container) or the memory of the machine is probably full;"
            " enlarge shared memory (docker run --shm-size=8g), or use a smaller batch_size, prefetch_factor or"
            " num_workers"
        )
    elif text.startswith(_DIED):
        what = "if the machine ran out of memory, use fewer workers or a smaller batch_size"
    else:
        return error
    died = "a worker process died" if text.startswith(_DIED) else "a worker process failed"
    made = DataError(f"data set {stream!r}: {died} ({text.splitlines()[0]}); {what}")
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
                f"data set {stream.name!r}: {name} {part!r} cannot be sent to worker processes"
                f" ({describe_error(error)}); use only functions and classes that are defined at the top"
                " level of a module (no lambdas), or pass num_workers=0"
            ) from error
