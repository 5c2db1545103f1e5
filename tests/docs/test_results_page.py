"""The page on results names every kind of finding, and every section of the report."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import DOCS, ROOT

RESULTS = (DOCS / "results.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "oodlit"


def arguments(path: Path, name: str, place: int) -> Iterator[ast.expr]:
    """One positional argument of all calls of a class in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node.args[place]


def test_every_kind_of_finding_is_explained() -> None:
    found = [kind for path in PACKAGE.rglob("*.py") for kind in arguments(path, "Finding", 0)]
    kinds = {kind.value for kind in found if isinstance(kind, ast.Constant)}
    assert len(kinds) > 10
    assert all(isinstance(kind, ast.Constant) for kind in found)
    assert {kind for kind in kinds if f"| `{kind}` |" not in RESULTS} == set()


def test_every_section_of_the_report_is_explained_under_its_title() -> None:
    titles = [
        part.value
        for path in (PACKAGE / "report" / "sections" / "images").glob("*.py")
        for title in arguments(path, "Section", 1)
        for part in ast.walk(title)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    titles.append("Means over data sets and controls")  # its title depends on the run
    assert len(titles) >= 15
    assert {title for title in titles if title.strip() not in RESULTS} == set()
