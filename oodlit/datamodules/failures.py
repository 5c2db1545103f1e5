"""Errors on their way from a reader to the main process: the same ones with and without worker processes."""

import pickle
import traceback


def describe_error(error: BaseException) -> str:
    """Class and text of an error.

    Example:
        >>> describe_error(KeyError("a"))
        "KeyError: 'a'"
    """
    try:
        text = str(error)
    except Exception:  # a user's class may fail here
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class WorkerTraceback(Exception):
    """Where in a worker process an error was raised; the cause of that error in this process."""

    def __str__(self) -> str:
        """The traceback as the worker saw it."""
        return f"\n{self.args[0]}"


class Failure:
    """An error as an item of a stream.

    PyTorch raises a worker's error anew from a text, without its causes and with arguments that the class may not
    take. Here the error and all its causes arrive as they are. Tracebacks cannot be moved: the last cause gets a
    `WorkerTraceback`.

    Args:
        error: What was raised.

    Example:
        >>> arrived = pickle.loads(pickle.dumps(Failure(KeyError("a"))))
        >>> type(arrived.error).__name__, type(arrived.error.__cause__).__name__
        ('KeyError', 'WorkerTraceback')
    """

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getstate__(self) -> tuple[list[BaseException], str]:
        """The chain of causes, each of them movable, and the whole as text."""
        chain: list[BaseException] = []
        error: BaseException | None = self.error
        while error is not None and len(chain) < MAX_CAUSES:
            chain.append(_movable(error))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return chain, "".join(traceback.format_exception(self.error))

    def __setstate__(self, state: tuple[list[BaseException], str]) -> None:
        """Chain them again."""
        chain, text = state
        for error, cause in zip(chain, [*chain[1:], WorkerTraceback(text)], strict=True):
            error.__cause__ = cause
        assert isinstance(chain[0], Exception)
        self.error = chain[0]


MAX_CAUSES = 20
"""Longest chain of causes that is moved: a chain can be a circle."""


def _movable(error: BaseException) -> BaseException:
    """The error itself, or its description as a `RuntimeError` where pickle does not bring it across."""
    try:
        arrived = pickle.loads(pickle.dumps(error))
    except Exception:  # a class may fail when it is pickled or made anew
        arrived = None
    if type(arrived) is type(error) and describe_error(arrived) == describe_error(error):
        return error
    return RuntimeError(describe_error(error))
