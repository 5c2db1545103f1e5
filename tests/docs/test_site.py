"""The site has a page for every public name. `tox -e docs` builds it, strictly and without torch."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import DOCS, PAGES, ROOT
from tests.test_exports import PACKAGES, _exported

sys.path.append(str(DOCS / "site"))
public_names = importlib.import_module("public_names")
sys.path.remove(str(DOCS / "site"))
LESSONS = {f"notebooks/{file.stem}.md" for file in (DOCS / "notebooks").glob("*.ipynb")}
MADE = {"security.md", "changelog.md", "conduct.md", *LESSONS}
"""Pages that the site generates from other files."""
NAMES = 300
"""Smallest number of public names on the pages."""


@pytest.mark.parametrize("module", public_names.MODULES)
def test_every_public_name_is_on_a_page(module: str) -> None:
    """Names read from the sources are those of the imported package."""
    page = public_names.api_page(module)
    for name in _exported(module):
        (path,) = re.findall(rf"^::: ({module}(?:\.\w+)?\.{name})$", page, re.MULTILINE)
        home, _, last = path.rpartition(".")
        assert getattr(importlib.import_module(home), last) is getattr(importlib.import_module(module), name)
    assert public_names.public_names(module) == _exported(module)


def test_no_public_package_is_left_out() -> None:
    assert set(PACKAGES) <= set(public_names.MODULES)
    assert sum(len(public_names.public_names(module)) for module in public_names.MODULES) >= NAMES


def _nav(item: object) -> list[str]:
    if isinstance(item, dict):
        return [page for inside in item.values() for page in _nav(inside)]
    return [page for inside in item for page in _nav(inside)] if isinstance(item, list) else [str(item)]


def test_every_page_is_in_the_navigation_once() -> None:
    """MkDocs checks this too; this test runs without MkDocs."""
    pages = _nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert len(pages) == len(set(pages))
    written = {page for page in pages if not page.endswith("/*")} - MADE
    assert written == {page.name for page in PAGES}, "one line in `nav` of mkdocs.yml for each page"
    folders = {page.removesuffix("/*") for page in pages if page.endswith("/*")}
    assert folders == {"adr", "api", "detectors"}


def test_the_site_loads_nothing_from_other_servers() -> None:
    """As far as the settings show; docs/site/hooks.py checks every page that is built."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["theme"]["font"] is False
    assert settings["use_directory_urls"] is False
    own = [*settings["extra_css"], *settings["extra"]["polyfills"], *settings.get("extra_javascript", [])]
    assert all((DOCS / path).is_file() for path in own)
    assert "https://" not in Path(DOCS / "site" / "extra.css").read_text(encoding="utf-8")
