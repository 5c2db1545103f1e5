"""`--help` of a command: usage, description, and one line per option, for screens of 80 columns."""

import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from docstring_parser import DocstringStyle
from docstring_parser import parse as parse_docstring

from oodlit.cli.command import Function, Parameters, is_list, is_positional, label, parameters_of

WIDTH = 80
_VALUES = {int: "N", float: "X", Path: "PATH"}
"""Placeholders for values by type; other values are TEXT."""


def print_help(function: Function, name: str) -> None:
    """Print what a command does and its options."""
    sys.stdout.write("\n".join(_lines(function, name)) + "\n")


def _lines(function: Function, name: str) -> Iterator[str]:
    parameters, is_configured = parameters_of(function)
    document = parse_docstring(inspect.getdoc(function) or "", DocstringStyle.GOOGLE)
    described = {entry.arg_name: " ".join((entry.description or "").split()) for entry in document.params}
    rows = {name: (_shown(p), described[name] + _default(p, described[name])) for name, p in parameters.items()}
    if is_configured:
        rows["config"] = ("--config PATH", "YAML file; write a class as class_path and init_args")
        rows["print_config"] = ("--print_config", "print the resolved configuration and exit")
    rows["debug"] = ("--debug", "show the traceback of an error")
    width = 4 + max(len(shown) for shown, _ in rows.values())
    yield _usage_line(name, parameters, is_configured=is_configured)
    for paragraph in (document.description or "").split("\n\n"):
        yield ""
        yield from textwrap.wrap(" ".join(paragraph.split()), WIDTH)
    for heading, names in _sections(function, list(rows), parameters).items():
        yield f"\n{heading}:"
        for shown, text in (rows[name] for name in names):
            yield f"  {shown:{width - 2}}{text}"


def _sections(function: Function, names: Sequence[str], parameters: Parameters) -> Mapping[str, Sequence[str]]:
    """Group option names by heading: first the headings in the command's `HEADINGS`, then all other options."""
    own = getattr(inspect.getmodule(function), "HEADINGS", {}).get(function.__name__, {})
    arguments = [name for name in names if name in parameters and is_positional(parameters[name])]
    listed = {name for group in own.values() for name in group}
    others = [name for name in names if name not in (*arguments, *listed)]
    return {heading: group for heading, group in {"Arguments": arguments, **own, "Options": others}.items() if group}


def _shown(parameter: inspect.Parameter) -> str:
    """Return a parameter with a placeholder for its value."""
    kind = parameter.annotation
    if is_positional(parameter) or kind is bool:
        return label(parameter)
    choices = ",".join(get_args(kind)) if get_origin(kind) is Literal else ""
    if choices and len(choices) <= 8:
        return f"{label(parameter)} {{{choices}}}"
    kinds = (kind, *get_args(kind))
    return f"{label(parameter)} {next((word for known, word in _VALUES.items() if known in kinds), 'TEXT')}"


def _default(parameter: inspect.Parameter, text: str) -> str:
    default: Any = parameter.default
    if default in (parameter.empty, None) or parameter.annotation is bool or "default" in text:
        return ""
    return f" (default: {default})"


def _usage_line(name: str, parameters: Parameters, *, is_configured: bool) -> str:
    """One line: required parameters by name, options in general."""
    shown = ["[--config RUN.yaml]"] if is_configured else []
    for parameter in parameters.values():
        kind, is_required = parameter.annotation, parameter.default is parameter.empty
        if is_positional(parameter):
            word = "|".join(get_args(kind)) if get_origin(kind) is Literal else parameter.name.upper()
            word = f"{word} [{word} ...]" if is_list(kind) else word
            shown.append(word if is_required else f"[{word}]")
        elif is_required and not is_configured:
            shown.append(_shown(parameter))
    return " ".join(["usage: oodlit", name, *shown, "[options]"])
