"""Send errors from worker processes to the main process unchanged."""

import pickle
import traceback


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
        """The chain of causes, each picklable, and the traceback as text."""
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
    """The error itself, or its description as a `RuntimeError` if it cannot be pickled."""
    try:
        arrived = pickle.loads(pickle.dumps(error))
    except Exception:  # of a class that cannot be pickled or rebuilt
        arrived = None
    if type(arrived) is type(error) and describe_error(arrived) == describe_error(error):
        return error
    return RuntimeError(describe_error(error))
