"""The HTML page: one file, no network, for any results."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from oodlit.base.atomic import write_files
from oodlit.errors import InvalidArgumentError
from oodlit.report.sections import OF_ALL_RUNS, SEVERAL
from oodlit.report.several import Several, titles
from oodlit.report.templates import TEMPLATES
from oodlit.report.thumbnails import ThumbnailStyles, keys_to_show, load_thumbnails
from oodlit.report.view import view
from oodlit.results import Results
from oodlit.results.names import safe


def render(
    results: Mapping[str, Results],
    *,
    folders: Mapping[str, Path] | None = None,
    pages: Mapping[str, str] | None = None,
) -> str:
    """The page as text.

    Args:
        results: Runs by title. Several are compared first, and then shown one below the other.
        folders: Where each run's results lie; thumbnails are read from there. None (default) = no thumbnails.
        pages: Addresses of pages of their own by title; the runs are then linked and not shown. None (default) = all
            are on this page.

    Returns:
        HTML; every name is escaped.

    Raises:
        InvalidArgumentError: There is no run.
    """
    if not results:
        raise InvalidArgumentError("report: no results are given; pass at least one run")
    names = titles(results)
    runs, css = [], []
    for index, (name, result) in enumerate(results.items() if pages is None else ()):
        folder = (folders or {}).get(name)
        thumbnails = ThumbnailStyles(load_thumbnails(folder, keys_to_show(result)), f"t{index}-")
        runs.append(view(names[name], result, thumbnails))
        css.append(thumbnails.css())
    several = _several({names[name]: result for name, result in results.items()}, names, pages)
    return TEMPLATES.get_template("page.html").render(
        title=f"{several['title'] if several else runs[0]['title']} - oodlit report",
        several=several,
        runs=runs,
        of_all=[section for sections in OF_ALL_RUNS for section in sections(results)],
        thumbnails_css=Markup("\n".join(css)),
    )


def _several(runs: Mapping[str, Results], names: Mapping[str, str], pages: Mapping[str, str] | None) -> dict[str, Any]:
    """What the template needs of the comparison; nothing of a single run."""
    if len(runs) < 2:
        return {}
    links = {names[name]: quote(page) for name, page in pages.items()} if pages is not None else {}
    anchors = {title: f"#r{index}-top" for index, title in enumerate(runs)}
    several = Several(runs, links or anchors)
    return {
        "title": f"{len(runs)} runs compared",
        "subtitle": f"{', '.join(list(runs)[:6])}{' and others' if len(runs) > 6 else ''};"
        f" {len(several.detectors)} detectors.",
        "alerts": several.alerts,
        "remarks": several.remarks,
        "links": several.links,
        "sections": [section for sections in SEVERAL for section in sections(several)],
    }


def write_report(
    results: Results | Mapping[str, Results],
    path: str | os.PathLike[str],
    *,
    folders: Mapping[str, Path] | None = None,
) -> Path:
    """Write the page: the old file or the new one, never half of either.

    Several runs have a page of their own each, beside the one that compares them: `report-A.html` for run A beside
    `report.html`. Where one of the pages cannot be made, none is written.

    Args:
        results: One run, or several by title.
        path: File to write; its folder is made if need be. For one run without `folders`, thumbnails are looked for
            beside it.
        folders: Where each run's results lie.

    Returns:
        The path.
    """
    target = Path(path)
    if isinstance(results, Results):
        name = target.resolve().parent.name
        results, folders = {name: results}, {name: target.resolve().parent}
    pages = page_names(target.stem, results) if len(results) > 1 else {}
    texts = {target.with_name(page): render({name: results[name]}, folders=folders) for name, page in pages.items()}
    texts[target] = render(results, folders=folders, pages=pages or None)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_files({file: text.encode("utf-8") for file, text in texts.items()})
    return target


def page_names(stem: str, names: Iterable[str]) -> dict[str, str]:
    """Names of the files of single runs beside the page that compares them; all distinct, in upper and lower case too.

    Example:
        >>> page_names("report", ["resnet50", "a/b", "a b"])
        {'resnet50': 'report-resnet50.html', 'a/b': 'report-a_b.html', 'a b': 'report-a_b_2.html'}
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = safe(name)[:100]
        forms = (plain, *(f"{plain}_{count}" for count in range(2, len(taken) + 3)))
        chosen = next(form for form in forms if form.lower() not in taken)
        taken.add(chosen.lower())
        found[name] = f"{stem}-{chosen}.html"
    return found
