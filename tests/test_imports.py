"""The house stands: who may import whom, and what stays out."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import oodlit

PACKAGE = Path(oodlit.__file__).parent
BASE = {"_lightning", "_version", "base"}
"""What every room may stand on."""
DATA = BASE | {"backbones", "datamodules", "detectors", "metrics", "module", "results"}
ALLOWED = {
    **dict.fromkeys(BASE, BASE),
    "configuration": {"base", "configuration"},
    **dict.fromkeys(("errors", "outputs", "roles"), frozenset({"base"})),
    "detectors": BASE | {"detectors"},
    "metrics": BASE | {"metrics"},
    "datamodules": BASE | {"datamodules"},
    "backbones": BASE | {"backbones"},
    "module": BASE | {"backbones"},
    "results": BASE | {"metrics", "results"},
    "report": BASE | {"metrics", "objects", "results", "report"},
    "objects": DATA | {"scoring", "objects"},
    "scoring": DATA | {"scoring"},
    "runs": DATA | {"scoring", "objects", "recorded", "runs"},
    "callbacks": DATA | {"scoring", "report", "objects", "recorded", "runs", "callbacks"},
    "recorded": DATA | {"recorded"},
    "testing": DATA | {"testing"},
    "gate": DATA | {"configuration", "gate"},
    "cli": DATA | {"configuration", "callbacks", "report", "recorded", "runs", "scoring", "testing", "objects", "cli"},
    "__main__": {"cli"},
    "__init__": BASE | {"gate", "module", "recorded", "results"},
}
"""What each room may import, at the top of a file, inside a function, or for type checkers alone."""


def _found() -> Iterator[tuple[str, str, bool]]:
    """(module file, imported module, whether at the top level or for type checkers) of every import of the package."""
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        lazy = {
            child
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
            for child in ast.walk(node)
        }
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}: relative imports hide where things come from"
                modules = [f"oodlit.{alias.name}" for alias in node.names] if node.module == "oodlit" else [node.module]
                names = [module or "" for module in modules]
            for name in names:
                yield file.relative_to(PACKAGE).as_posix(), name, node not in lazy


@cache
def _imports() -> list[tuple[str, str, bool]]:
    return list(_found())


def _room(file: str) -> str:
    return file.split("/", maxsplit=1)[0].removesuffix(".py")


def test_the_walk_sees_the_package() -> None:
    assert len(_imports()) > 500
    assert {_room(file) for file, _, _ in _imports()} <= set(ALLOWED)


FACADES = {
    ("objects/__init__.py", "oodlit.callbacks"),
    ("objects/__init__.py", "oodlit.report"),
    ("recorded/__init__.py", "oodlit.callbacks"),
}
"""Packages that hand out public names of other rooms beside their own, on first use."""
ABOVE = {"runs", "callbacks", "report", "cli"}
"""Rooms above the data: others use their public names."""
INNER = {("__main__", "oodlit.cli.main")}


def test_imports_point_one_way() -> None:
    wrong = []
    for file, name, _ in _imports():
        if not name.startswith("oodlit."):
            continue
        room, target = _room(file), name.split(".")[1]
        if target in ("__version__", "__all__"):
            continue
        if target not in ALLOWED[room] and (file, name) not in FACADES:
            wrong.append(f"{file} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_room_imports_an_inner_file_of_a_room_above_the_data() -> None:
    found = {
        (_room(file), name)
        for file, name, _ in _imports()
        if name.count(".") > 1 and name.split(".")[1] in ABOVE - {_room(file)}
    }
    assert {pair for pair in found if pair not in INNER and pair[0] != "callbacks"} == set()
    assert all(name.split(".")[1] == "runs" for room, name in found if room == "callbacks")


def _files_imported_by(file: Path, files: dict[str, Path]) -> set[str]:
    """Files of the package that a file imports: at its top, in functions, for type checkers, by name at run time.

    A registry that reads the export list of its own package at run time imports none of its files by that.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in files else str(node.module) for name in whole]
        elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
            named = [str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)]
            names = [name for name in named if name in files and files[name].parent not in file.parents]
        found |= {name for name in names if name in files}
    return found


def test_no_two_files_import_each_other() -> None:
    """Neither directly nor over others; an export list counts as a file that imports all it lists."""
    files = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    left = {name: _files_imported_by(file, files) - {name} for name, file in files.items()}
    assert len(left) > 200
    assert sum(map(len, left.values())) > 700
    while ready := {name for name, needed in left.items() if not needed & left.keys()}:
        left = {name: needed for name, needed in left.items() if name not in ready}
    assert not left, "\n".join(f"{name} -> {sorted(needed & left.keys())}" for name, needed in sorted(left.items()))


LIGHTNING = {"lightning", "lightning_fabric", "pytorch_lightning"}


def test_one_lightning_only() -> None:
    """Classes of `lightning.pytorch` and `pytorch_lightning` are not each other's."""
    users = {(file, name) for file, name, _ in _imports() if name.split(".")[0] in LIGHTNING}
    assert users == {("_lightning.py", "pytorch_lightning")}


def test_lightning_stays_in_the_outer_rooms() -> None:
    users = {_room(file) for file, name, _ in _imports() if name == "oodlit._lightning"}
    assert users <= {"module", "callbacks", "runs", "datamodules", "objects", "recorded", "cli", "testing"}


BROUGHT = {
    "import oodlit": ["torch", "numpy", "pandas", "pytorch_lightning", "hypothesis", "pytest"],
    "import oodlit.cli.main": ["torch", "numpy", "pandas", "pytorch_lightning"],  # `oodlit --help`
    "import oodlit.objects": ["torch", "numpy", "pandas", "pytorch_lightning", "faster_coco_eval"],
    "import oodlit.detectors, oodlit.metrics": ["pytorch_lightning", "lightning", "hypothesis", "pytest"],
    "import oodlit.results, oodlit.report": ["pytorch_lightning", "lightning", "hypothesis", "pytest"],
    "from oodlit.objects import ObjectResults, evaluate_files": ["pytorch_lightning", "pytest"],
    "import oodlit.callbacks, oodlit.module, oodlit.datamodules": ["lightning", "pytest", "wandb", "mlflow"],
}
"""What is absent after a statement, and so after those before it."""


@pytest.mark.integration
def test_what_an_import_does_not_bring() -> None:
    """In one new process, one statement after the other: what is absent at the end of one was brought by none."""
    lines = ["import json, sys", "found = {}"]
    for statement, absent in BROUGHT.items():
        lines += [statement, f"found[{statement!r}] = [name for name in {absent} if name in sys.modules]"]
    code = "\n".join([*lines, "print(json.dumps(found))"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {statement: [] for statement in BROUGHT}


HOOKS = {"setup", "teardown", "on_exception", "on_predict_start", "on_predict_end", "on_predict_batch_start"}
HOOKS |= {"on_predict_batch_end"}
SHELL = "runs/shell.py"
MODULES = ("module.py", "objects/module.py", "datamodules/")
"""Modules and data modules have hooks of their own."""
ENDS = {"peers", "signal", "end_on_sigterm", "ended_by_sigterm", "is_default"}


def test_hooks_of_a_run_other_processes_and_signals_stay_in_the_shell() -> None:
    """The command line ends on a signal itself, and its callbacks only show progress."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith((*MODULES, "base/", "cli/", "testing/")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name in HOOKS:
                found.add((file, node.name))
            if isinstance(node, ast.Name) and node.id in ENDS:
                found.add((file, node.id))
    assert {name for _, name in found} >= HOOKS | {"peers", "end_on_sigterm"}
    assert {file for file, _ in found} == {SHELL}
