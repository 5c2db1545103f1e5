"""The lessons run, and their stored output has the same words; numbers depend on the machine."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.callbacks.processes import check_ended, run_function
from tests.docs.pages import DOCS, script

pytestmark = pytest.mark.integration

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
LESSONS = {"quickstart", "own_images", "arrays", "gate", "guard", "own_detector", "objects", "severity"}


def _words(notebook: dict[str, Any]) -> list[str]:
    """The output of each cell without numbers and spaces, and whether it has a picture."""
    found = []
    for output in (o for cell in notebook["cells"] for o in cell.get("outputs", ())):
        text = output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
        picture = "picture" if "image/png" in output.get("data", {}) else ""
        found.append(re.sub(r"[\s\d.]+", " ", "".join(text)) + picture)
    return found


def _store_output(notebook: Path) -> None:
    sys.argv = ["notebook_page.py", str(notebook)]
    runpy.run_path(str(DOCS / "site" / "notebook_page.py"), run_name="__main__")


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_output_is_current(file: Path, tmp_path: Path) -> None:
    """The script that stores the output runs in a separate process."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    copy = tmp_path / file.name
    shutil.copy(file, copy)
    check_ended(run_function(_store_output, copy, folder=tmp_path / "logs", each=[{}], timeout=300))
    assert _words(json.loads(copy.read_text(encoding="utf-8"))) == _words(kept)
    assert 1 <= sum("picture" in words for words in _words(kept)) <= 2


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
    assert 1 <= page.count("data:image/png;base64,") <= 2
    assert f"]({file.name})" in page
    assert f"](notebooks/{file.stem}.md)" in (DOCS / "lessons.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\((\.\./[^)#]+)", page):
        assert (file.parent / target).is_file(), target


def test_number_of_lessons() -> None:
    assert {file.stem for file in NOTEBOOKS} == LESSONS
