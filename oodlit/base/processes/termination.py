"""Handle SIGTERM like Ctrl-C: the other processes are notified, and completed work is kept."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from oodlit.base.errors import add_note

TERMINATED = 128 + signal.SIGTERM
"""Exit code that shells report for a process ended by this signal."""
_log = logging.getLogger("oodlit.callbacks")


class TerminatedError(SystemExit):
    """This process received SIGTERM."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)

    def __str__(self) -> str:
        """Return the reason as text."""
        return "the process was asked to end (SIGTERM)"


def is_default() -> bool:
    """Return whether SIGTERM has its default handler and can be handled here: in the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _end)


def end_on_sigterm() -> None:
    """Let SIGTERM raise `TerminatedError`, until Lightning restores the previous handler.

    Lightning's own handler lets a prediction continue; with several processes, those that received the signal wait for
    the others to receive it too.
    """
    signal.signal(signal.SIGTERM, _end)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `TerminatedError` within a block, unless there is a custom handler."""
    if not is_default():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say_where(error: BaseException, where: str) -> None:
    """Add a note to an error: which results were kept. Log the note for an interruption, which shows no error."""
    add_note(error, where)
    if not isinstance(error, Exception):
        _log.warning("%s; %s", str(error) or type(error).__name__, where)


def _end(*_: object) -> NoReturn:
    raise TerminatedError
