"""MkDocs hooks: pages from other files of the repository, folders in the navigation, Markdown versions of all pages.

They also check that no page loads a file from another server.

Only MkDocs imports this file. It reads the package as text, so it requires no torch.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.append(str(Path(__file__).parent))
from markdown_twins import write as write_twins  # MkDocs runs this file by itself, not as part of a package
from notebook_page import as_page
from public_names import MODULES, ROOT, api_page

ADDED = {"security.md": "SECURITY.md", "changelog.md": "CHANGELOG.md", "conduct.md": "CODE_OF_CONDUCT.md"}
"""Page of the site -> file at the top of the repository."""
TEXTS: dict[str, str] = {}
"""Markdown of the pages by path, of the build that is running."""
NAV: list[Any] = []
"""Sections and pages of the navigation."""
FOREIGN = re.compile(
    r"""<(?:script|img|iframe)[^>]+src=["']?(?:https?:)?//|<link[^>]+stylesheet[^>]+href=["']?https?:"""
)
"""Files from other servers, which are missing offline."""


def on_config(config: MkDocsConfig) -> None:
    """Expand "folder/*" in the navigation into the pages of the folder, and "api/*" into the public modules."""
    config.nav = _expanded(config.nav)


def _expanded(nav: Any) -> Any:
    if isinstance(nav, dict):
        return {title: _expanded(inside) for title, inside in nav.items()}
    if isinstance(nav, list):
        return [_expanded(item) for item in nav]
    if nav == "api/*":
        return [{module: f"api/{module}.md"} for module in MODULES]
    if nav.endswith("/*"):
        return [file.relative_to(ROOT / "docs").as_posix() for file in sorted((ROOT / "docs").glob(f"{nav}.md"))]
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages for files of the repository, public modules, and notebooks."""
    for page, source in ADDED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        for other, name in ADDED.items():
            text = text.replace(f"]({name})", f"]({other})")
        files.append(File.generated(config, page, content=text))
    for module in MODULES:
        files.append(File.generated(config, f"api/{module}.md", content=api_page(module)))
    for file in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text = as_page(json.loads(file.read_text(encoding="utf-8")), file.name)
        files.append(File.generated(config, f"notebooks/{file.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Link the page of a detector to its class, whose page exists only in the site."""
    if not page.file.src_uri.startswith("detectors/"):
        return markdown
    title = markdown.partition("\n")[0].removeprefix("# ")
    return f"{markdown}\n[The class][oodlit.detectors.{title}]\n"


def on_env(env: Any, config: MkDocsConfig, files: Files) -> None:
    """Keep the Markdown of the pages, before they are rendered into HTML."""
    TEXTS.update({file.src_uri: file.page.markdown for file in files.documentation_pages() if file.page})


def on_nav(nav: Any, config: MkDocsConfig, files: Files) -> None:
    """Keep the navigation for the list of pages."""
    NAV[:] = nav.items


def on_post_build(config: MkDocsConfig) -> None:
    """Write the Markdown version of every page."""
    write_twins(
        Path(config.site_dir),
        NAV,
        TEXTS,
        title=config.site_name,
        description=config.site_description or config.site_name,
    )


def on_post_page(output: str, page: Any, config: MkDocsConfig) -> str:
    """Check that a page loads nothing from another server.

    Raises:
        PluginError: The page loads something.
    """
    if foreign := FOREIGN.search(output):
        raise PluginError(f"{page.file.src_uri} loads a file from another server: {output[foreign.start() :][:120]}")
    return output
