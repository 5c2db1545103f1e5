"""The Markdown versions of pages, and the list of pages."""

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.docs.pages import DOCS, PAGES

sys.path.append(str(DOCS / "site"))
markdown_twins = importlib.import_module("markdown_twins")
public_names = importlib.import_module("public_names")
sys.path.remove(str(DOCS / "site"))


@pytest.mark.parametrize("module", public_names.MODULES)
def test_functions_and_classes_have_signature_and_docstring(module: str) -> None:
    text = markdown_twins.api_text(module)
    assert text.startswith(f"# {module}\n")
    imported = importlib.import_module(module)
    described = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    kinds = [n for n in public_names.public_names(module) if getattr(getattr(imported, n), "__qualname__", "") == n]
    assert set(described) >= {name for name in kinds if not getattr(getattr(imported, name), "_is_protocol", False)}
    for name in described:
        document = (getattr(imported, name).__doc__ or "").strip().splitlines()
        assert not document or document[0].strip() in text


def test_signature_of_a_function() -> None:
    text = markdown_twins.api_text("oodlit.datamodules")
    assert "oodlit.datamodules.folder_stream(path: str | Path, " in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_opens_with_a_sentence(page: Path) -> None:
    sentence = markdown_twins.first_sentence(page.read_text(encoding="utf-8"))
    assert 10 <= len(sentence) <= 250
    assert "](" not in sentence


def test_pages_and_list_are_written(tmp_path: Path) -> None:
    pages = {"index.md": "# Home\n\nA first sentence. A second.\n", "a/b.md": "# B\n\nSee [this](../index.md):\n\n"}
    pages["a/b.md"] += "![Output](data:image/png;base64,AAAA)\n"
    leaf = [
        SimpleNamespace(is_section=False, is_page=True, title=path, file=SimpleNamespace(src_uri=path))
        for path in pages
    ]
    section = SimpleNamespace(is_section=True, is_page=False, title="Inside", children=leaf[1:])
    markdown_twins.write(tmp_path, [leaf[0], section], pages, title="oodlit", description="What it is.")
    listed = (tmp_path / "llms.txt").read_text(encoding="utf-8")
    assert listed.splitlines() == [
        *("# oodlit", "", "> What it is.", "", "- [index.md](index.md): A first sentence."),
        *("", "## Inside", "", "- [a/b.md](a/b.md): See this"),
    ]
    assert (tmp_path / "index.md").read_text(encoding="utf-8") == pages["index.md"]
    assert "base64" not in (tmp_path / "a" / "b.md").read_text(encoding="utf-8")
