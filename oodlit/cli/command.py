"""From the words of a call to the arguments of one function: its signature and its docstring are all that a command is.

Parameters before `*` are given by position, those after it as options. A type that needs torch is written as
`Annotated[Any, function]`: the function gives such types, by the names of the parameters, once there are values. A
parameter `resolved_config` brings `--config` and `--print_config`, and takes the configuration as it was understood.
"""

import argparse
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import jsonargparse
import yaml  # type: ignore[import-untyped]
from docstring_parser import DocstringStyle
from docstring_parser import parse as parse_docstring

from oodlit.base.lazy import search_current_folder
from oodlit.configuration import CLASS_KEYS, make, plan, spell_out
from oodlit.configuration.names import PACKAGES
from oodlit.errors import UnknownNameError, UsageError

_PACKAGES = (*PACKAGES, "oodlit.cli.running.loggers")
_Function = Callable[..., int | None]
_Parameters = Mapping[str, inspect.Parameter]


def arguments_of(function: _Function, words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments that the words of a call give, objects made.

    Returns:
        None if `--print_config` asked for the configuration: it was printed.

    Raises:
        UnknownNameError: An option, a class or an argument of a class does not exist.
        UsageError: Something is missing or has the wrong type.
    """
    parameters, configured = _parameters(function)
    if configured:
        search_current_folder()
    given = _read(words, parameters, configured=configured)
    printing = given.pop("print_config", False)
    missing = [name for name, p in parameters.items() if p.default is p.empty and name not in given]
    if missing and not printing:
        raise UsageError(f"needed but not given: {', '.join(missing)}")
    planned = {
        name: plan(value, _type(parameters[name]), _label(parameters[name]), packages=_PACKAGES)
        for name, value in given.items()
    }
    if not configured:
        return planned
    whole = {name: planned.get(name, p.default) for name, p in parameters.items() if name not in missing}
    resolved = yaml.safe_dump(spell_out(whole), sort_keys=False)
    if printing:
        print(resolved, end="")  # noqa: T201 - it was asked for
        return None
    with _seeded(planned.get("seed", 0)):
        return {**make(planned), "resolved_config": resolved}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """A network with random weights is made from the seed of its run: it is the same in every run."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _parameters(function: _Function) -> tuple[_Parameters, bool]:
    """What can be given to a command, and whether a file can give it."""
    every = dict(inspect.signature(function).parameters)
    return every, every.pop("resolved_config", None) is not None


def _is_position(parameter: inspect.Parameter) -> bool:
    return parameter.kind is not parameter.KEYWORD_ONLY


def _type(parameter: inspect.Parameter) -> Any:
    kind = parameter.annotation
    return get_args(kind)[1]()[parameter.name] if get_origin(kind) is Annotated else kind


def _label(parameter: inspect.Parameter) -> str:
    return parameter.name.upper() if _is_position(parameter) else f"--{parameter.name}"


# --- what was written -------------------------------------------------------------------------------------------------


def _read(words: Sequence[str], parameters: _Parameters, *, configured: bool) -> dict[str, Any]:
    """Values by the name of their parameter, as they were written; what comes later counts."""
    options = {name for name, p in parameters.items() if not _is_position(p)}
    flags = {"print_config", *(name for name in options if parameters[name].annotation is bool)}
    known = {*options, "debug", *(("config", "print_config") if configured else ())}
    repeatable = {name for name in options if _is_list(parameters[name].annotation)}
    given: dict[str, Any] = {}
    in_place: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            in_place.append(word)
            continue
        name, equals, text = word.lstrip("-").partition("=")
        option, dot, rest_of_name = name.partition(".")
        name = option.replace("-", "_") + dot + rest_of_name  # --fail-if is --fail_if
        option = _option(name, known)
        if not equals and option in flags:
            text = "true"
        elif not equals:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"--{option}: a value is needed")
            text = rest.pop(0)
        nested = option in parameters and get_origin(parameters[option].annotation) is Annotated
        written = _of_file(Path(text)) if option == "config" else {name: _of_text(text) if nested else text}
        for key, value in written.items():
            _option(key, known - {"config"})
            more = key.endswith("+") or (key in repeatable and option != "config")
            given = _put(given, key.removesuffix("+").split("."), value, more=more)
    for parameter in (p for p in parameters.values() if _is_position(p) and in_place):
        if get_origin(parameter.annotation) is list:
            given[parameter.name], in_place = in_place, []
        else:
            given[parameter.name] = in_place.pop(0)
    if in_place:
        raise UsageError(f"one word too many: {in_place[0]}")
    return {name: value for name, value in given.items() if value is not None and name != "debug"}


def _is_list(kind: Any) -> bool:
    """Whether an option takes a list by its plain type: every time it is given, the list becomes longer."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return any(get_origin(member) is list for member in get_args(kind))


def _option(name: str, known: Collection[str]) -> str:
    """The option that a name such as `data.init_args.root` or `detectors+` belongs to."""
    option = name.removesuffix("+").partition(".")[0]
    if option not in known:
        raise UnknownNameError.of("option", option, known)
    return option


def _of_text(text: str) -> Any:
    """Lists, dictionaries and null as what they are; other text is converted once its type is known."""
    try:
        value = jsonargparse.get_loader("yaml")(text)
    except yaml.YAMLError:
        return text
    return value if value is None or isinstance(value, (list, dict)) else text


def _of_file(path: Path) -> dict[str, Any]:
    """What a configuration file holds."""
    try:
        value = jsonargparse.get_loader("yaml")(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config: {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise UsageError(f"--config: {path} is no YAML: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"--config: {path} holds no options with their values")
    return {str(key): item for key, item in value.items()}


def _put(target: Any, steps: Sequence[str], value: Any, *, more: bool) -> Any:
    """`target` with a value where the steps lead; arguments of a class can be named without `init_args`."""
    if not steps:
        return [*_listed(target), *_listed(value)] if more else _merged(target, value)
    if isinstance(target, list) and target:  # the one that was added last
        return [*target[:-1], _put(target[-1], steps, value, more=more)]
    place = {"class_path": target} if isinstance(target, str) else target if isinstance(target, dict) else {}
    if "class_path" in place and steps[0] not in CLASS_KEYS:
        steps = ["init_args", *steps]
    return {**place, steps[0]: _put(place.get(steps[0]), steps[1:], value, more=more)}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _merged(old: Any, new: Any) -> Any:
    """The new value; what it does not say about the same class stays as it was."""
    if not isinstance(old, dict):
        return new
    path = old.get("class_path")
    if path is not None and new == path:
        return old
    if not isinstance(new, dict) or new.get("class_path", path) != path:
        return new
    return {**old, **{key: _merged(old.get(key), item) for key, item in new.items()}}


# --- help -------------------------------------------------------------------------------------------------------------


def print_help(function: _Function, name: str) -> None:
    """What a command does, and its options."""
    parameters, configured = _parameters(function)
    document = parse_docstring(inspect.getdoc(function) or "", DocstringStyle.GOOGLE)
    described = {entry.arg_name: " ".join((entry.description or "").split()) for entry in document.params}
    usage = _usage_line(name, parameters, configured=configured)
    parser = argparse.ArgumentParser(usage=usage, description=document.description)
    if configured:
        parser.add_argument("--config", help="YAML file with any of the options below")
        parser.add_argument("--print_config", action="store_true", help="print what would be run, and stop")
    for parameter in parameters.values():
        kind, default = parameter.annotation, parameter.default
        text = described.get(parameter.name, "")
        if default not in (parameter.empty, None) and kind is not bool and "default" not in text:
            text += f" (default: {default})"
        how: dict[str, Any] = {"help": text.replace("%", "%%")}
        if kind is bool:
            how["action"] = "store_true"
        elif get_origin(kind) is Literal:
            how["choices"] = get_args(kind)
        parser.add_argument(parameter.name if _is_position(parameter) else f"--{parameter.name}", **how)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.print_help()


def _usage_line(name: str, parameters: _Parameters, *, configured: bool) -> str:
    """A usage line that fits one line: positions by name, options in general."""
    shown = ["--config RUN.yaml"] if configured else []
    for parameter in parameters.values():
        kind, needed = parameter.annotation, parameter.default is parameter.empty
        if _is_position(parameter):
            word = "|".join(get_args(kind)) if get_origin(kind) is Literal else parameter.name.upper()
            word = f"{word} [{word} ...]" if get_origin(kind) is list else word
            shown.append(word if needed else f"[{word}]")
        elif needed and not configured:
            shown.append(f"--{parameter.name} {parameter.name.upper()}")
    return " ".join(["oodlit", name, *shown, "[options]"])
