"""Imports within the room point one way: statistics <- contract <- formulas <- detectors."""

import ast
from pathlib import Path

import oodlit.detectors

ROOM = Path(oodlit.detectors.__file__).parent
LAYERS = ("statistics", "contract", "formulas", "")
"""From the innermost to the detectors themselves, which lie beside the others."""


def layer(module: str) -> int:
    part = module.removeprefix("oodlit.detectors").removeprefix(".").split(".")[0]
    return LAYERS.index(part if part in LAYERS else "")


def test_layers() -> None:
    checked = 0
    for file in ROOM.rglob("*.py"):
        if file == ROOM / "__init__.py":
            continue
        own = layer(f"oodlit.detectors.{file.relative_to(ROOM).parts[0].removesuffix('.py')}")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("oodlit.detectors."):
                checked += 1
                assert layer(str(node.module)) <= own, f"{file} imports {node.module}"
    assert checked > 100
