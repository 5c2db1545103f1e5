"""The notebook runs, and its stored output has the same words; numbers depend on the machine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, script

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def _words(notebook: dict[str, Any]) -> list[str]:
    """The output of each cell without numbers and spaces, and whether it has a picture."""
    found = []
    for output in (o for cell in notebook["cells"] for o in cell.get("outputs", ())):
        text = output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
        picture = "picture" if "image/png" in output.get("data", {}) else ""
        found.append(re.sub(r"[\s\d.]+", " ", "".join(text)) + picture)
    return found


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_output_is_current(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert _words(script("notebook_page").run(kept)) == _words(kept)
    assert sum("picture" in words for words in _words(kept)) == 1
    assert (tmp_path / "results" / "report.html").is_file()


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_format_and_page(file: Path) -> None:
    """Version 4.5 of the format: every cell has an id, code cells have a count and outputs."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(names) == len(set(names))
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    page = script("notebook_page").as_page(notebook, file.name)
    assert page.startswith("# ")
    assert page.count("```python") == len(counts)
    assert page.count("data:image/png;base64,") == 1
    assert f"]({file.name})" in page
    for target in re.findall(r"\]\((\.\./[^)#]+)", page):
        assert (file.parent / target).is_file(), target


def test_there_is_one_notebook() -> None:
    assert [file.name for file in NOTEBOOKS] == ["quickstart.ipynb"]
