"""No file of the results imports, at whatever point, a file that imports it."""

import ast
from pathlib import Path

from oodlit.results import storage

ROOM = Path(storage.__file__).parent


def imports_of(file, files):
    """Files of the room that a file imports: at its top, inside functions, for type checkers, by name at run time."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # The part that is a module, else the package that has the name.
            names = [
                f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in files else node.module for a in node.names
            ]
        elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        found |= {name for name in names if name in files}
    return found


def test_imports_of_the_results_form_no_circle():
    files = {}
    for file in ROOM.rglob("*.py"):
        parts = file.relative_to(ROOM.parents[1]).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    left = {name: imports_of(file, files) - {name} for name, file in files.items()}
    assert len(left) > 25
    assert sum(map(len, left.values())) > 60
    while ready := {name for name, needed in left.items() if not needed & left.keys()}:
        left = {name: needed for name, needed in left.items() if name not in ready}
    assert not left, "\n".join(f"{name} -> {sorted(needed & left.keys())}" for name, needed in sorted(left.items()))
