"""Retry actions that fail temporarily, for example due to a busy server."""

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def retried(
    action: Callable[[], _T],
    *,
    attempts: int,
    backoff_s: float,
    passing: type[Exception] = Exception,
    lasting: tuple[type[Exception], ...] = (),
) -> _T:
    """Return `action()`, retried after errors with growing pauses.

    Args:
        action: The action to try.
        attempts: Total number of calls, at least 1. The error of the last one is raised.
        backoff_s: Pause in seconds after the first failure, doubled after each further one.
        passing: Errors after which to retry; all others are raised immediately.
        lasting: Exceptions to `passing` that are raised immediately too.

    Example:
        >>> answers = iter([OSError("busy"), OSError("busy"), "here"])
        >>> def ask():
        ...     answer = next(answers)
        ...     if isinstance(answer, OSError):
        ...         raise answer
        ...     return answer
        >>> retried(ask, attempts=3, backoff_s=0.0)
        'here'
    """
    for attempt in range(attempts - 1):
        try:
            return action()
        except lasting:
            raise
        except passing:
            time.sleep(backoff_s * 2**attempt)
    return action()
