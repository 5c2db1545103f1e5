"""The HTML page: one file, no network, for any results."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

from oodlit.atomic import write_bytes
from oodlit.errors import InvalidArgumentError
from oodlit.report.sections import OF_ALL_RUNS
from oodlit.report.templates import TEMPLATES
from oodlit.report.thumbnails import ThumbnailStyles, keys_to_show, load_thumbnails
from oodlit.report.view import view
from oodlit.results import Results


def render(results: Mapping[str, Results], *, folders: Mapping[str, Path] | None = None) -> str:
    """The page as text.

    Args:
        results: Runs by title, shown one below the other.
        folders: Where each run's results lie; thumbnails are read from there. None (default) = no thumbnails.

    Returns:
        HTML; every name is escaped.

    Raises:
        InvalidArgumentError: There is no run.
    """
    if not results:
        raise InvalidArgumentError("report: no results are given; pass at least one run")
    runs, css = [], []
    for index, (title, result) in enumerate(results.items()):
        folder = (folders or {}).get(title)
        thumbnails = ThumbnailStyles(load_thumbnails(folder, keys_to_show(result)), f"t{index}-")
        runs.append(view(title, result, thumbnails))
        css.append(thumbnails.css())
    models = Counter(run["title"] for run in runs)
    for title, run in zip(results, runs, strict=True):
        if models[run["title"]] > 1:  # several networks of one name
            run["title"] += f" ({title})"
    title = f"{runs[0]['title']} - oodlit report"
    return TEMPLATES.get_template("page.html").render(
        title=title,
        runs=runs,
        of_all=[section for sections in OF_ALL_RUNS for section in sections(results)],
        thumbnails_css=Markup("\n".join(css)),
    )


def write_report(
    results: Results | Mapping[str, Results],
    path: str | os.PathLike[str],
    *,
    folders: Mapping[str, Path] | None = None,
) -> Path:
    """Write the page: the old file or the new one, never half of either.

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
        results, folders = (
            {target.resolve().parent.name: results},
            {target.resolve().parent.name: target.resolve().parent},
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, render(results, folders=folders).encode("utf-8"))
    return target
