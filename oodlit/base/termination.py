"""A signal to end (SIGTERM) ends a run as Ctrl-C does: the other processes hear of it, and what is finished is kept."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from oodlit.errors import add_note

TERMINATED = 128 + signal.SIGTERM
"""Exit code that shells give for a process that this signal ended."""
_log = logging.getLogger("oodlit.callbacks")


class TerminatedError(SystemExit):
    """Somebody asked this process to end."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)

    def __str__(self) -> str:
        """The reason in words."""
        return "the process was asked to end (SIGTERM)"


def is_default() -> bool:
    """Whether nobody else has said what SIGTERM does here, and it can be said: in the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _end)


def end_on_sigterm() -> None:
    """Let SIGTERM raise `TerminatedError`, until Lightning puts back what was before.

    Lightning's own way of handling it lets a prediction go on; of several processes, those that got the signal wait for
    the others to get it as well.
    """
    signal.signal(signal.SIGTERM, _end)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `TerminatedError` within a block, unless somebody has said what it does."""
    if not is_default():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say_where(error: BaseException, where: str) -> None:
    """Say what was kept of a run that ends, by the error; where somebody ends it, no error is shown, but the log is."""
    add_note(error, where)
    if not isinstance(error, Exception):
        _log.warning("%s; %s", str(error) or type(error).__name__, where)


def _end(*_: object) -> NoReturn:
    raise TerminatedError
