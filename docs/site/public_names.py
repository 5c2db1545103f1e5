"""Read the public names of the package from its sources, without importing it (and torch).

tests/docs/test_site.py compares them with `__all__` of the imported package.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = (
    "oodlit",
    "oodlit.module",
    "oodlit.backbones.clip",
    "oodlit.backbones.negatives",
    "oodlit.datamodules",
    "oodlit.datamodules.shards",
    "oodlit.datamodules.generated.unit_test_source",
    "oodlit.datamodules.generated.unit_test_kinds",
    "oodlit.detectors",
    "oodlit.detectors.statistics",
    "oodlit.callbacks",
    "oodlit.results",
    "oodlit.results.published",
    "oodlit.report",
    "oodlit.metrics",
    "oodlit.recorded",
    "oodlit.gate",
    "oodlit.objects",
    "oodlit.testing",
    "oodlit.errors",
    "oodlit.outputs",
    "oodlit.roles",
)
"""Modules with a page, in the order of the navigation."""


def public_names(module: str) -> list[str]:
    """Names in `__all__` if it is a literal, else in the export list, else those that the module defines."""
    body = _tree(module).body
    listed = {name: value for node in body for name, value in _assigned(node)}.get("__all__")
    if isinstance(listed, ast.List):
        return sorted(ast.literal_eval(listed))
    names = {alias.name for line in _imported(module) for alias in line.names if alias.name == alias.asname}
    own = {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return sorted(name for name in names or own if not name.startswith("_"))


def _imported(module: str) -> list[ast.ImportFrom]:
    """Export lists: imports of names at the top level and under `TYPE_CHECKING`."""
    body = _tree(module).body
    blocks = [node.body for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return [line for block in [body, *blocks] for line in block if isinstance(line, ast.ImportFrom)]


def _assigned(node: ast.stmt) -> list[tuple[str, ast.expr]]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [(target.id, node.value) for target in targets if isinstance(target, ast.Name)]


def summary(module: str) -> str:
    """The docstring of a module."""
    return ast.get_docstring(_tree(module)) or ""


def api_page(module: str) -> str:
    """The page of a module: its docstring, and every public name for mkdocstrings.

    A function with the name of its file, such as `oodlit.metrics.auroc`, gets its full path, since the public path is
    ambiguous.
    """
    files = {file.stem for file in ROOT.joinpath(*module.split(".")).glob("*.py")}
    paths = (f"{home(module, name) if name in files else module}.{name}" for name in public_names(module))
    names = "\n\n".join(f"::: {path}" for path in paths)
    return f"# {module}\n\n{summary(module)}\n\n{names}\n"


def home(module: str, name: str) -> str:
    """The module from which a public module imports a name; the module itself if it defines the name."""
    homes = {alias.name: line.module for line in _imported(module) for alias in line.names}
    return homes.get(name) or module


def _tree(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
