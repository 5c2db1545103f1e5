"""Turn the words of a call into the arguments of one function: its signature and docstring define the command.

Parameters before `*` are positional, those after it are options. A type that needs torch is written as
`Annotated[Any, function]`: the function returns such types by parameter name, once there are values to convert. A
parameter `resolved_config` adds `--config` and `--print_config`, and receives the resolved configuration.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import jsonargparse
import yaml  # type: ignore[import-untyped]

from oodlit.base.current_folder import search_current_folder
from oodlit.base.errors import OodlitError, UnknownNameError, UsageError
from oodlit.base.secrets import mask
from oodlit.base.yaml_files import load_yaml
from oodlit.configuration import CLASS_KEYS, make, plan, spell_out
from oodlit.configuration.lookup import PACKAGES

Function = Callable[..., int | None]
Parameters = Mapping[str, inspect.Parameter]
_PACKAGES = (*PACKAGES, "oodlit.cli.running.loggers")


def arguments_of(function: Function, words: Sequence[str]) -> dict[str, Any] | None:
    """Convert the words of a command line to arguments, and build the objects that they describe.

    Returns:
        None if `--print_config` was given: the configuration was printed.

    Raises:
        UnknownNameError: An option, a class or an argument of a class does not exist.
        UsageError: A value is missing or has the wrong type.
    """
    parameters, is_configured = parameters_of(function)
    if is_configured:
        search_current_folder()
    given = _read(words, parameters, is_configured=is_configured)
    is_printing = given.pop("print_config", False)
    missing = [name for name, p in parameters.items() if p.default is p.empty and name not in given]
    if missing and not is_printing:
        raise UsageError(missing_text([label(parameters[name]) for name in missing]))
    planned = {
        name: plan(value, _type(parameters[name]), label(parameters[name]), packages=_PACKAGES)
        for name, value in given.items()
    }
    if not is_configured:
        return planned
    values = {name: planned.get(name, p.default) for name, p in parameters.items() if name not in missing}
    resolved = yaml.safe_dump(mask(spell_out(values)), sort_keys=False)
    if is_printing:
        print(resolved, end="")  # noqa: T201 - the output of --print_config
        return None
    import torch

    with naming_options({"complete=False": "--data.complete=false"}), torch.random.fork_rng():
        torch.manual_seed(planned.get("seed", 0))  # every run with this seed has the same random weights
        return {**make(planned), "resolved_config": resolved}


@contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """In errors, name the options of a command instead of the arguments of Python, such as "complete=False"."""
    try:
        yield
    except OodlitError as error:
        text = str(error)
        for argument, option in options.items():
            text = text.replace(argument, option)
        error.args = (text,)
        raise


def parameters_of(function: Function) -> tuple[Parameters, bool]:
    """The parameters of a command, and whether it accepts `--config`."""
    every = dict(inspect.signature(function).parameters)
    return every, every.pop("resolved_config", None) is not None


def is_positional(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is given by position."""
    return parameter.kind is not parameter.KEYWORD_ONLY


def label(parameter: inspect.Parameter) -> str:
    """Return the name of a parameter in help and errors."""
    return parameter.name.upper() if is_positional(parameter) else f"--{parameter.name}"


def missing_text(labels: Sequence[str]) -> str:
    """The message for required parameters that were not given.

    Example:
        >>> missing_text(["--backbone", "--data"])
        'missing required options: --backbone, --data'
    """
    kind = "option" if labels[0].startswith("--") else "argument"
    return f"missing required {kind}{'s' if len(labels) > 1 else ''}: {', '.join(labels)}"


def _type(parameter: inspect.Parameter) -> Any:
    kind = parameter.annotation
    return get_args(kind)[1]()[parameter.name] if get_origin(kind) is Annotated else kind


class _Options:
    """The options of a command.

    Attributes:
        known: All names.
        flags: Options without a value.
        repeatable: Options that extend a list each time they are given.
        nested: Options whose values may be lists or dictionaries.
        replacing: Nested lists that also accept text, such as "all": the first value replaces a list of a file.
        typed: Options given so far.
    """

    def __init__(self, parameters: Parameters, *, is_configured: bool) -> None:
        kinds = {name: p.annotation for name, p in parameters.items() if not is_positional(p)}
        self.known = {*kinds, "debug", *(("config", "print_config") if is_configured else ())}
        self.flags = {"print_config", *(name for name, kind in kinds.items() if kind is bool)}
        self.repeatable = {name for name, kind in kinds.items() if is_list(kind)}
        self.nested = {name for name, kind in kinds.items() if get_origin(kind) is Annotated}
        self.replacing = {name for name in self.repeatable & self.nested if str in get_args(get_args(kinds[name])[0])}
        self.typed: set[str] = set()

    def option_of(self, name: str, *but: str) -> str:
        """Return the option that a name such as `data.init_args.root` or `detectors+` belongs to."""
        option = name.removesuffix("+").partition(".")[0]
        if option not in self.known or option in but:
            raise UnknownNameError.of("option", option, self.known - set(but))
        return option


def is_list(kind: Any) -> bool:
    """Whether a parameter accepts a list."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return any(get_origin(member) is list for member in (kind, *get_args(kind)))


def _read(words: Sequence[str], parameters: Parameters, *, is_configured: bool) -> dict[str, Any]:
    """Read values by parameter name, not yet converted; later values override earlier ones."""
    options = _Options(parameters, is_configured=is_configured)
    given: dict[str, Any] = {}
    positional: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            given = _with_option(given, word, rest, options)
        else:
            positional.append(word)
    for parameter in filter(is_positional, parameters.values() if positional else ()):
        if is_list(parameter.annotation):
            given[parameter.name], positional = positional, []
        elif positional:
            given[parameter.name] = positional.pop(0)
    if positional:
        hint = "; separate several values with commas" if options.repeatable & options.typed else ""
        raise UsageError(f"unexpected argument: {positional[0]}{hint}")
    return {name: value for name, value in given.items() if value is not None and name != "debug"}


def _with_option(given: dict[str, Any], word: str, rest: list[str], options: _Options) -> dict[str, Any]:
    """Add the value of one option, which may be the next word."""
    name, equals, text = word.lstrip("-").partition("=")
    head, dot, steps = name.partition(".")
    name = head.replace("-", "_") + dot + steps  # --fail-if is --fail_if
    option = options.option_of(name)
    if not equals and option in options.flags:
        text = "true"
    elif not equals:
        if not rest or rest[0].startswith("--"):
            raise UsageError(f"--{option} requires a value")
        text = rest.pop(0)
    written = {name: _of_text(text) if option in options.nested else text}
    for key, value in (_of_file(Path(text)) if option == "config" else written).items():
        is_again = key in options.repeatable and (key in options.typed or key not in options.replacing)
        is_longer = value is not None and (key.endswith("+") or (option != "config" and is_again))
        options.option_of(key, "config")
        given = _put(given, key.removesuffix("+").split("."), value, is_longer=is_longer)
    options.typed.add(name)
    return given


def _of_text(text: str) -> Any:
    """Parse lists, dictionaries and null; other text is converted later, when its type is known."""
    try:
        value = jsonargparse.get_loader("yaml")(text)
    except (yaml.YAMLError, ValueError, AttributeError, TypeError):  # the latter of dates, such as 2026-99-99
        return text
    except RecursionError as error:
        raise UsageError(f"{text[:100]}: lists and mappings are nested too deeply") from error
    if not isinstance(value, list | dict):
        return text if value is not None else None
    try:
        return load_yaml(text, jsonargparse.get_loader("yaml"))
    except yaml.YAMLError as error:
        raise UsageError(f"{text[:100]}: {' '.join(str(error).split())[:300]}") from error


def _of_file(path: Path) -> dict[str, Any]:
    """The options in a configuration file."""
    try:
        value = load_yaml(path.read_text(encoding="utf-8"), jsonargparse.get_loader("yaml"))
    except OSError as error:
        raise UsageError(f"--config: cannot read {path} ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise UsageError(f"--config: {path} is not valid YAML: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"--config: {path} must map options to values")
    return {str(key): item for key, item in value.items()}


def _put(target: Any, steps: Sequence[str], value: Any, *, is_longer: bool) -> Any:
    """`target` with a value at a path; arguments of a class can be named without `init_args`."""
    if not steps:
        return [*_listed(target), *_listed(value)] if is_longer else _merged(target, value)
    if isinstance(target, list) and target:  # the item that was added last
        return [*target[:-1], _put(target[-1], steps, value, is_longer=is_longer)]
    place = {"class_path": target} if isinstance(target, str) else target if isinstance(target, dict) else {}
    if "class_path" in place and steps[0] not in CLASS_KEYS:
        steps = ["init_args", *steps]
    return {**place, steps[0]: _put(place.get(steps[0]), steps[1:], value, is_longer=is_longer)}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _merged(old: Any, new: Any) -> Any:
    """Return the new value. If both values describe the same class, it keeps the old arguments that it does not set."""
    if not isinstance(old, dict):
        return new
    path = old.get("class_path")
    if path is not None and new == path:
        return old
    if not isinstance(new, dict) or new.get("class_path", path) != path:
        return new
    return {**old, **{key: _merged(old.get(key), item) for key, item in new.items()}}
