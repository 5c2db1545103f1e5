"""The pages of detectors are those that their classes make."""

import re

import pytest

from oodlit.detectors import detectors
from tests.docs.pages import DOCS, script

PAGES: dict[str, str] = script("detector_pages").pages()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    written = DOCS / "detectors" / name
    assert written.is_file(), f"docs/detectors/{name} is missing; run: python docs/site/detector_pages.py"
    assert written.read_text(encoding="utf-8") == PAGES[name], "stale; run: python docs/site/detector_pages.py"


def test_every_detector_has_one_page_and_no_other_has() -> None:
    assert set(PAGES) == {file.name for file in (DOCS / "detectors").glob("*.md")}
    assert set(PAGES) == {f"{key}.md" for key in detectors()}
    assert len(PAGES) == 54


def test_a_page_says_what_tables_say() -> None:
    """By hand for one of them: tuned presets are marked, a published figure is the package's."""
    page = PAGES["react.md"]
    assert "| `p90-val` | `ReAct(percentile=90.0)` |" in page
    assert "ResNet50 | near auroc 77.38, far auroc 93.67" in page
    assert "the head is not one linear layer: *needs the linear head;" in page
    assert "| `a-imagenet-regnet` (t) |" in PAGES["ada_scale.md"]
    assert "features have both signs: *" in PAGES["ash.md"]
    assert all(re.search(r"^\*\*S = ", text, re.MULTILINE) for text in PAGES.values())
