"""The pages of the documentation, and their code blocks.

A block runs unless a comment in the line before gives a reason: `<!-- not run: reason -->`. A block with a title is a
file of that name. Blocks may be indented, as in tabs. The command line parses commands; after `<!-- run -->` they run.
"""

import importlib.util
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[^>]*?) -->\n)?^(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block.

    Args:
        language: What stands behind the fence.
        title: Name of the file that it is; empty for code of the page itself.
        body: Its text.
        line: Where the text begins, from 1.
        why_not: Why it cannot run; empty if it can.
        marked: Whether commands in it run.
    """

    language: str
    title: str
    body: str
    line: int
    why_not: str
    marked: bool


def blocks(page: Path) -> list[Block]:
    """All blocks of a page that name their language, in the order of the page."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        mark = match["mark"] or ""
        why_not = mark.removeprefix("not run:").strip() if mark.startswith("not run") else ""
        line = 1 + text[: match.start("body")].count("\n")
        body = textwrap.dedent(match["body"])
        found.append(Block(match["language"], match["title"] or "", body, line, why_not, marked=mark == "run"))
    return found


def script(name: str) -> ModuleType:
    """A script of the site, which is no part of a package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
