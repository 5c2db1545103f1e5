"""Identify custom code by the source files that it consists of."""

import ast
import hashlib
import importlib.machinery
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType

from oodlit.base.current_folder import folder_of

KNOWN = {__name__.partition(".")[0], "numpy", "PIL", "timm", "torch", "torchvision", *sys.builtin_module_names}
"""Packages that are identified by their version instead of their files."""
INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def code_digest(values: Iterable[object]) -> str:
    """Hash the source files of classes and functions, and the files of the same project that they import.

    Followed are imports at the top of a file and inside functions, direct and indirect. Nothing is imported. Packages
    that are installed, such as torch, are left out, except for the one that a value belongs to. Code without a file,
    from a notebook or a console, is identified by its compiled functions, as single functions always are.

    Args:
        values: Classes, functions, methods, and `functools.partial` of these; others stand for their class.

    Returns:
        A hexadecimal text; empty if all of the code belongs to Python or to packages in `KNOWN`.

    Example:
        >>> code_digest([dict, code_digest])
        ''
    """
    kinds = set(map(_kind, values))
    custom = sorted((k for k in kinds if not _is_known(k.__module__)), key=lambda k: (k.__module__, k.__qualname__))
    if not custom:
        return ""
    digest = hashlib.blake2b(digest_size=8)
    roots = {kind.__module__.partition(".")[0] for kind in custom}
    files: dict[str, Path] = {}
    for kind in custom:
        if (file := _file_of(kind.__module__)) is not None:
            _collect(kind.__module__, file, roots, folder_of(kind.__module__), files)
        if file is None or not isinstance(kind, type):  # several functions of one file can have one name
            digest.update(repr([*_compiled(kind)]).encode())
    for name, file in sorted(files.items()):
        digest.update(name.encode() + file.read_bytes())
    return digest.hexdigest()


def _kind(value: object) -> type | FunctionType:
    """Return the class or function that defines what a value does."""
    while isinstance(value, partial | MethodType):
        value = value.func if isinstance(value, partial) else value.__func__
    return value if isinstance(value, type | FunctionType) else type(value)


def _is_known(module: str) -> bool:
    root = module.partition(".")[0]
    return root in KNOWN or (root in sys.stdlib_module_names and root != "__main__")


def _file_of(module: str, folder: list[str] | None = None) -> Path | None:
    """Find the file of a module without importing the module, last in `folder`; None if there is no file."""
    if module in sys.modules:
        found = getattr(sys.modules[module], "__file__", None)
        return Path(found) if found and Path(found).is_file() else None
    places, spec = None, None
    for part in module.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, places)
        if spec is None and places is None:
            spec = importlib.machinery.PathFinder.find_spec(part, folder or [])
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None


def _collect(module: str, file: Path, roots: set[str], folder: list[str], files: dict[str, Path]) -> None:
    """Add a file, and the files of the same project that it imports, now or later; `folder` is searched last."""
    files[module] = file
    if file.suffix != ".py":
        return
    for name in _imported(file, module if file.name == "__init__.py" else module.rpartition(".")[0]):
        if name in files or _is_known(name) or (found := _file_of(name, folder)) is None:
            continue
        if name.partition(".")[0] in roots or not any(folder in found.parents for folder in INSTALLED):
            _collect(name, found, roots, folder, files)


def _imported(file: Path, package: str) -> Iterator[str]:
    """Yield the names of modules that a file imports; for `from a import b` both a and a.b, which may be a module."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # it cannot have been imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            whole = ".".join(filter(None, (base, node.module)))
            yield whole
            yield from (f"{whole}.{alias.name}" for alias in node.names)


def _compiled(kind: type | FunctionType) -> Iterator[object]:
    """Yield the compiled code of functions, without file names and line numbers."""
    for value in vars(kind).values() if isinstance(kind, type) else [kind]:
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if isinstance(function, FunctionType):
            held = [cell.cell_contents for cell in function.__closure__ or ()]
            yield _plain(function.__code__), *map(_plain, (function.__defaults__, function.__kwdefaults__, held))


def _plain(value: object) -> object:
    """Convert a value to a form whose repr is the same in every process."""
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, [_plain(constant) for constant in value.co_consts]
    return sorted(map(repr, value)) if isinstance(value, frozenset) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
