"""Lazy imports: public names of a package from a single list, and objects by their dotted path.

The list is the `if TYPE_CHECKING:` block of the package: type checkers read it directly, and `lazy_exports` derives
everything that Python requires from it. A new public name takes one line there.
"""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oodlit.base.current_folder import import_module
from oodlit.base.errors import InvalidArgumentError


def lazy_exports(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Build the functions that let a package import its names on first use.

    Args:
        package: The `__name__` of the package. Its block must only contain lines `from module import Name as Name`.

    Returns:
        The module's `__getattr__`, `__dir__` and `__all__`.

    Example:
        >>> __getattr__, __dir__, __all__ = lazy_exports("oodlit")
        >>> __all__
        ['Gate', 'Head', 'OODModule', 'Outputs', 'Results', 'Role', 'evaluate_arrays']
    """
    homes = _homes(package)

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted({*vars(sys.modules[package]), *homes}), sorted(homes)


def _homes(package: str) -> dict[str, str]:
    """Return the module of every name in the `if TYPE_CHECKING:` block."""
    module = sys.modules[package]
    read = getattr(module.__loader__, "get_source", None)  # pytest's own loader, which rewrites asserts, has none
    source = Path(str(module.__file__)).read_text(encoding="utf-8") if read is None else read(package)
    block = next(
        node.body
        for node in ast.parse(source or "").body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    return {alias.name: str(line.module) for line in block if isinstance(line, ast.ImportFrom) for alias in line.names}


def import_object(path: str, what: str) -> Any:
    """Import the object at a dotted path, `module.Name`; see `import_module`.

    Raises:
        InvalidArgumentError: `what` cannot be imported.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:  # ValueError: a path without a dot
        raise InvalidArgumentError(f"{what} cannot be imported: {error}{import_hint(error)}") from error


def import_hint(error: Exception) -> str:
    """What to do if a module does not exist; empty for other errors."""
    hint = "; install the package that contains it, or add the folder that contains it to PYTHONPATH"
    return hint if isinstance(error, ModuleNotFoundError) else ""
