"""Write `llms.txt` and a Markdown version next to every page of the site, for assistants and other programs.

The pages of the API are written out: signatures and docstrings, read from the sources without importing them.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from public_names import ROOT, home, public_names, summary

PICTURE = re.compile(r"^!\[[^\]]*\]\(data:image[^)]*\)$\n?", re.MULTILINE)
"""A picture within the text, of which the Markdown version has no use."""


def write(site: Path, nav: Iterable[Any], texts: dict[str, str], *, title: str, description: str) -> None:
    """Write the Markdown version of every page, and the list of pages.

    Args:
        site: Folder of the site.
        nav: Sections and pages of MkDocs' navigation.
        texts: Markdown of every page by its path.
        title: First heading of the list.
        description: One sentence below it.
    """
    for path, text in texts.items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        module = path.removeprefix("api/").removesuffix(".md")
        written = api_text(module) if path.startswith("api/") else PICTURE.sub("", text)
        target.write_text(written, encoding="utf-8")
    lines = [f"# {title}", "", f"> {description}", "", *_listed(nav, texts, level=2)]
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _listed(nav: Iterable[Any], texts: dict[str, str], level: int) -> Iterator[str]:
    for item in nav:
        if item.is_section:
            yield from ("", f"{'#' * min(level, 3)} {item.title}", "")
            yield from _listed(item.children, texts, level + 1)
        elif item.is_page:
            path = item.file.src_uri
            yield f"- [{item.title}]({path}): {first_sentence(texts[path])}"


def first_sentence(text: str) -> str:
    """The first sentence of a page, without links and marks."""
    body = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    for paragraph in body.split("\n\n"):
        plain = " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph).replace("**", "").split())
        if plain[:1].isalpha() or plain[:1] == "`":
            return re.split(r"(?<=[.!?:])\s", plain)[0].rstrip(":")
    return ""


def api_text(module: str) -> str:
    """The public names of a module with signatures and docstrings."""
    parts = [f"# {module}", summary(module)]
    for name in public_names(module):
        node = _definition(home(module, name), name)
        if node is not None:
            parts += [f"## {name}", *_described(node, f"{module}.")]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _definition(module: str, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return _definition(node.module or "", name)
    return None


def _described(node: ast.ClassDef | ast.FunctionDef, prefix: str) -> Iterator[str]:
    yield f"```python\n{_signature(node, prefix)}\n```"
    yield ast.get_docstring(node) or ""
    methods = node.body if isinstance(node, ast.ClassDef) else []
    for method in methods:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and ast.get_docstring(method):
            yield f"### {node.name}.{method.name}"
            yield from _described(method, f"{node.name}.")


def _signature(node: ast.ClassDef | ast.FunctionDef, prefix: str) -> str:
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{prefix}{node.name}({ast.unparse(node.args)}){returns}"
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return f"{prefix}{node.name}({ast.unparse(method.args).removeprefix('self').removeprefix(', ')})"
    return f"{prefix}{node.name}"
