"""The `oodlit` command: from the command line to one plain function. Parsing only; no command lives here."""

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jsonargparse

from oodlit._version import __version__
from oodlit.cli.configuration import explain, search_current_folder, seeded, use_short_names
from oodlit.errors import InvalidArgumentError, OodlitError, UnknownNameError, UsageError

__all__ = ["COMMANDS", "Command", "main"]

USAGE, FAILED, INTERRUPTED = 2, 1, 130


@dataclass(frozen=True)
class Command:
    """One command: where its function lives, and how its parameters appear.

    Args:
        target: `module:function`; imported only when this command is named.
        summary: One line for the list of commands.
        positional: Parameters that are given by position, with argparse's `nargs`.
        typed: `module:function` that gives types for parameters annotated with Any. They import torch, so `--help`
            does without them.
        config: True if `--config run.yaml` is offered.
    """

    target: str
    summary: str
    positional: Mapping[str, str | None] = field(default_factory=dict)
    typed: str | None = None
    config: bool = False


COMMANDS: dict[str, Command] = {
    "demo": Command(
        "oodlit.cli.demo:demo",
        "run everything on embedded data and write a report",
        positional={"name": "?"},
    ),
    "evaluate": Command(
        "oodlit.cli.evaluate:evaluate",
        "score a backbone with detectors on data sets",
        typed="oodlit.cli.evaluate:types",
        config=True,
    ),
    "shards build": Command(
        "oodlit.cli.shards:build",
        "write a folder, archive or file list as shards",
        positional={"name": None, "source": None},
    ),
    "shards verify": Command(
        "oodlit.cli.shards:verify",
        "read every sample of shards and check it",
        positional={"directories": "+"},
    ),
    "shards info": Command(
        "oodlit.cli.shards:info",
        "say what a folder of shards holds",
        positional={"directories": "+"},
    ),
    "report": Command(
        "oodlit.cli.report:report",
        "make the HTML page of saved results",
        positional={"results": "+"},
    ),
    "list": Command(
        "oodlit.cli.listing:listing",
        "list detectors, datasets or metrics",
        positional={"kind": None},
    ),
    "check": Command(
        "oodlit.cli.check:check",
        "test a detector of your own against the contract",
        positional={"detectors": "+"},
    ),
}
"""Every command by its words."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments; None = those of the process.

    Returns:
        Exit code: 0 = done; 2 = what was asked for cannot be done as it is written (an option, value, name, class or
        folder, whenever it is noticed); 1 = everything else that fails, and what `check` and `verify` find wrong;
        130 = interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    progress = _Progress()
    try:
        return _run(arguments, progress)
    except (SystemExit, KeyboardInterrupt) as end:
        if isinstance(end, SystemExit) and not progress.running:  # --help and --print_config
            return int(end.code or 0)
        _say(f"{_prog(progress.words)}: interrupted")  # Lightning turns an interrupt into an exit
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads has seen enough: `oodlit list detectors | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to say at exit
        return 0
    except Exception as error:
        _report(error, progress.words, debug=debug)
        return USAGE if isinstance(error, (InvalidArgumentError, UnknownNameError)) else FAILED


@dataclass
class _Progress:
    """How far a call got: errors are worded and numbered by it."""

    words: tuple[str, ...] = ()
    running: bool = False


def _run(arguments: list[str], progress: _Progress) -> int:
    words = progress.words = _words(arguments)
    rest = arguments[len(words) :]
    if " ".join(words) not in COMMANDS:
        return _overview(words, rest)
    call = _parse(" ".join(words), rest)
    progress.running = True
    return call.function(**call.arguments) or 0


class _Call(NamedTuple):
    function: Callable[..., int | None]
    arguments: dict[str, Any]


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


def _parse(name: str, arguments: list[str]) -> _Call:
    """The function of a command and its arguments, instances of classes included."""
    command = COMMANDS[name]
    function: Callable[..., int | None] = _load(command.target)
    if command.config:
        search_current_folder()
    parser = _parser(name, command, function, helping=bool({"-h", "--help"} & set(arguments)))
    try:
        namespace = parser.parse_args(arguments)
    except jsonargparse.ArgumentError as error:
        options = [
            action.dest for action in parser._actions if not _is_help(action) and action.dest not in command.positional
        ]
        raise explain(error, positional=tuple(command.positional), options=options) from error
    instantiate = getattr(parser, "instantiate", None) or parser.instantiate_classes
    with seeded(namespace.get("seed")) if command.typed else nullcontext():
        given = instantiate(namespace).as_dict()
    given = {key: value for key, value in given.items() if key not in ("config", "debug") and key[:2] != "__"}
    if "resolved_config" in inspect.signature(function).parameters:
        given["resolved_config"] = parser.dump(namespace)
    return _Call(function, given)


def _parser(name: str, command: Command, function: Callable[..., Any], *, helping: bool) -> jsonargparse.ArgumentParser:
    """The parser of one command, from the signature and the docstring of its function."""
    document = _documentation(function)
    parser = jsonargparse.ArgumentParser(
        prog=f"oodlit {name}",
        description=document.summary,
        formatter_class=_HelpFormatter,
        exit_on_error=False,
        parser_mode=use_short_names(),
        usage=_usage_line(name, command, function),
    )
    types = {} if command.typed is None or helping else _load(command.typed)()
    if command.config:
        parser.add_argument("--config", action="config", help="YAML file with any of the options below")
    signature = inspect.signature(function)
    ours = {"resolved_config", *command.positional}
    for parameter in signature.parameters.values():
        described = document.arguments.get(parameter.name, "")
        needed = parameter.default is inspect.Parameter.empty
        if parameter.name in command.positional:
            nargs = command.positional[parameter.name]
            kind = parameter.annotation.__args__[0] if nargs == "+" else parameter.annotation
            options: dict[str, Any] = {"type": kind, "help": described}
            options |= {} if nargs is None else {"nargs": nargs}
            options |= {} if needed else {"default": parameter.default}
            parser.add_argument(parameter.name, **options)
        elif parameter.annotation is bool and parameter.default is False:
            parser.add_argument(f"--{parameter.name}", action="store_true", help=described)
            ours.add(parameter.name)
        elif parameter.annotation is Any:
            options = {} if needed else {"default": parameter.default}
            kind = types.get(parameter.name, str)
            made = parser.add_argument(f"--{parameter.name}", type=kind, required=needed, help=described, **options)
            # classes of others have parameters without types, such as the size of torchvision's Resize
            made.sub_add_kwargs = {"fail_untyped": False}
            ours.add(parameter.name)
    parser.add_function_arguments(function, as_group=False, skip=set(ours), fail_untyped=False)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


class _Document(NamedTuple):
    summary: str
    arguments: dict[str, str]


def _documentation(function: Callable[..., Any]) -> _Document:
    """Text before `Args:` and the description of each argument, from a Google docstring."""
    text, _, rest = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    rest = re.split(r"\n(?=\S)", rest)[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", rest, flags=re.MULTILINE)
    return _Document(text.strip(), {name: " ".join(entry.split()) for name, entry in entries})


def _usage_line(name: str, command: Command, function: Callable[..., Any]) -> str:
    """A usage line that fits one line: positions by name, options in general."""
    shown = []
    for parameter, nargs in command.positional.items():
        kind = inspect.signature(function).parameters[parameter].annotation
        choices = getattr(kind, "__args__", ()) if nargs != "+" else ()
        word = "|".join(map(str, choices)) if choices and all(isinstance(c, str) for c in choices) else parameter
        word = word if "|" in word else word.upper()
        shown.append({None: word, "?": f"[{word}]", "+": f"{word} [{word} ...]"}[nargs])
    needed = [
        f"--{p.name} {p.name.upper()}"
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.name not in command.positional and not command.config
    ]
    return " ".join(["oodlit", name, *(["--config RUN.yaml"] if command.config else []), *shown, *needed, "[options]"])


class _HelpFormatter(jsonargparse.DefaultHelpFormatter):
    """Help without the types that jsonargparse adds: they are told in words, defaults are kept."""

    def _get_help_string(self, action: Any) -> str:
        text = str(action.help or "")
        default = getattr(action, "default", None)
        if default in (None, False) or str(default).startswith("==") or "default" in text.lower():
            return text.replace("%", "%%")
        return f"{text} (default: {default})".replace("%", "%%")

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        return f"usage: {usage}\n\n" if usage else super()._format_usage(usage, actions, groups, prefix)


def _is_help(action: Any) -> bool:
    """Options that print something and end the command."""
    return action.dest.partition(".")[2] == "help" or action.dest in ("help", "print_config", "print_shtab")


def _overview(words: tuple[str, ...], rest: Sequence[str]) -> int:
    """The list of commands; asked for by `--help`, or shown because a command is missing."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    if rest and rest[0] == "--version":
        Console().print(f"oodlit {__version__}", highlight=False)
        return 0
    asked = bool({"-h", "--help"} & set(rest))
    if rest and not asked:
        raise UsageError(f"unknown option: {rest[0]} - a command is needed first, see '{_prog(words)} --help'")
    table = Table.grid(padding=(0, 3))
    for name, command in COMMANDS.items():
        if tuple(name.split())[: len(words)] == words:
            table.add_row(f"  {name}", command.summary)
    console = Console(stderr=not asked)
    intro = "" if words else "Find out what a trained image classifier should refuse.\n\n"
    console.print(escape(f"usage: {_prog(words)} COMMAND [options]\n\n{intro}Commands:"), highlight=False)
    console.print(table, highlight=False)
    console.print(f"\n'{_prog(words)} COMMAND --help' explains one.", highlight=False)
    return 0 if asked else USAGE


def _report(error: Exception, words: tuple[str, ...], *, debug: bool) -> None:
    """One line on standard error; with `--debug` the traceback before it."""
    if debug:
        traceback.print_exception(error)
    text = " ".join(str(error).split()) or type(error).__name__
    expected = isinstance(error, (OodlitError, OSError))
    hint = "" if debug or expected else f" [{type(error).__name__}; --debug shows where]"
    hint = f" (see '{_prog(words)} --help')" if isinstance(error, UsageError) else hint
    _say(f"{_prog(words)}: error: {text}{hint}")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _prog(words: tuple[str, ...]) -> str:
    return " ".join(("oodlit", *words))


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
