"""The `oodlit` command: find the function of a command, call it, and turn the outcome into an exit code."""

import errno
import inspect
import os
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from oodlit._version import __version__
from oodlit.base.errors import InvalidArgumentError, OodlitError, UnknownNameError, UsageError
from oodlit.base.processes.termination import TERMINATED, TerminatedError, ended_by_sigterm
from oodlit.base.secrets import mask_text
from oodlit.cli.command import Function, arguments_of
from oodlit.cli.help import print_help

USAGE, FAILED, INTERRUPTED = 2, 1, 130
FULL = (errno.ENOSPC, errno.EDQUOT)

COMMANDS = {
    "demo": "oodlit.cli.demo:demo",
    "evaluate": "oodlit.cli.evaluate:evaluate",
    "shards build": "oodlit.cli.shards:build",
    "shards verify": "oodlit.cli.shards:verify",
    "shards info": "oodlit.cli.shards:info",
    "data list": "oodlit.cli.data.listing:listing",
    "data get": "oodlit.cli.data.get:get",
    "data check": "oodlit.cli.data.check:check",
    "objects evaluate": "oodlit.cli.objects:evaluate",
    "objects report": "oodlit.cli.report:report",
    "report": "oodlit.cli.report:report",
    "export": "oodlit.cli.export:export",
    "list": "oodlit.cli.listing:listing",
    "guard": "oodlit.cli.guard:guard",
    "check": "oodlit.cli.check:check",
    "new detector": "oodlit.cli.new:detector",
}
"""The function of each command. Its file imports torch and other slow packages within the function only."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments; None = those of the process.

    Returns:
        Exit code: 0 = success; 2 = an invalid option, value, name, class or folder, at any time; 1 = any other failure,
        and problems found by `check`, `guard` and `verify`; 130 = interrupted; 143 = terminated by SIGTERM.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    words: tuple[str, ...] = ()
    try:
        words = _words(arguments)
        with _warnings_in_one_line(words, debug=debug), ended_by_sigterm():
            return _run(words, arguments[len(words) :])
    except (SystemExit, KeyboardInterrupt) as end:  # Lightning turns an interrupt into an exit
        return _report_end(end, words)
    except BrokenPipeError:  # the reader has closed the pipe: `oodlit list detectors | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushing at exit must not fail again
        return 0
    except Exception as error:
        if (cause := _termination(error)) is not None:
            return _report_end(cause, words, *getattr(error, "__notes__", ()))
        _report(error, words, debug=debug)
        return USAGE if isinstance(error, (InvalidArgumentError, UnknownNameError)) else FAILED


def _termination(error: BaseException | None) -> TerminatedError | None:
    """The SIGTERM behind an error: it also ends the workers that read images, and PyTorch reports this as an error."""
    while error is not None:
        if isinstance(error, TerminatedError):
            return error
        error = error.__context__
    return None


def _report_end(end: BaseException, words: tuple[str, ...], *more: str) -> int:
    """Print on one line what ended the command and what is kept; return the exit code."""
    text, code = (str(end), TERMINATED) if isinstance(end, TerminatedError) else ("interrupted", INTERRUPTED)
    notes = [note for error in (end, end.__context__) for note in getattr(error, "__notes__", ())]
    sys.stderr.write(f"{_prog(words)}: {' - '.join(dict.fromkeys([text, *notes, *more]))}\n")
    return code


def _run(words: tuple[str, ...], rest: list[str]) -> int:
    name = " ".join(words)
    if name not in COMMANDS:
        return _overview(words, rest)
    function: Function = pkgutil.resolve_name(COMMANDS[name])
    if {"-h", "--help"} & set(rest):
        print_help(function, name)
        return 0
    given = arguments_of(function, rest)
    return 0 if given is None else function(**given) or 0


def _words(arguments: Sequence[str]) -> tuple[str, ...]:
    """The leading words that name a command or a group of commands."""
    words: tuple[str, ...] = ()
    known = {tuple(name.split()[:depth]) for name in COMMANDS for depth in (1, 2)}
    for argument in arguments:
        if argument.startswith("-") or " ".join(words) in COMMANDS:
            break
        if (*words, argument) not in known:
            kind = f"command of '{_prog(words)}'" if words else "command"
            raise UnknownNameError.of(kind, argument, {k[len(words)] for k in known if k[:-1] == words})
        words = (*words, argument)
    return words


def _overview(words: tuple[str, ...], rest: Sequence[str]) -> int:
    """Print the list of commands, for `--help` or because a command is missing."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    if rest and rest[0] == "--version":
        Console().print(f"oodlit {__version__}", highlight=False)
        return 0
    asked = bool({"-h", "--help"} & set(rest))
    if rest and not asked:
        raise UsageError(f"expected a command before the option {rest[0]}")
    table = Table.grid(padding=(0, 3))
    for name, target in COMMANDS.items():
        if tuple(name.split())[: len(words)] == words:
            text = inspect.getdoc(pkgutil.resolve_name(target)) or ""
            table.add_row(f"  {name}", text.partition(".\n")[0].removesuffix("."))
    console = Console(stderr=not asked)
    intro = "" if words else "Measure how well OOD detectors recognize images that a classifier should reject.\n\n"
    console.print(escape(f"usage: {_prog(words)} COMMAND [options]\n\n{intro}Commands:"), highlight=False)
    console.print(table, highlight=False)
    console.print(f"\nRun '{_prog(words)} COMMAND --help' for details.", highlight=False)
    return 0 if asked else USAGE


@contextmanager
def _warnings_in_one_line(words: tuple[str, ...], *, debug: bool) -> Iterator[None]:
    """Show warnings in one line, like errors; with `--debug` as Python does, with their place in the code."""
    before = warnings.formatwarning

    def one_line(message: Warning | str, *_: object, **__: object) -> str:
        return f"{_prog(words)}: warning: {mask_text(' '.join(str(message).split()))}\n"

    if not debug:
        warnings.formatwarning = one_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def _report(error: Exception, words: tuple[str, ...], *, debug: bool) -> None:
    """Print an error in one line on standard error; with `--debug` after its traceback."""
    if debug:
        sys.stderr.write(mask_text("".join(traceback.format_exception(error))))
    text = " ".join(str(error).split()) or type(error).__name__
    advice = ["free some space and run the command again"] if isinstance(error, OSError) and error.errno in FULL else []
    text = " - ".join([text, *getattr(error, "__notes__", []), *advice])
    expected = isinstance(error, (OodlitError, OSError))
    hint = "" if debug or expected else f" [{type(error).__name__}; --debug shows where]"
    hint = f" (see '{_prog(words)} --help')" if isinstance(error, UsageError) else hint
    sys.stderr.write(f"{_prog(words)}: error: {mask_text(text)}{hint}\n")


def _prog(words: tuple[str, ...]) -> str:
    return " ".join(("oodlit", *words))
