"""The HTML page: one file without other files or a network, for results of any kind."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from oodlit.base.atomic import write_files
from oodlit.base.errors import InvalidArgumentError
from oodlit.objects.results import ObjectResults
from oodlit.report.box_view import box_title, box_view
from oodlit.report.pairs import pair_view
from oodlit.report.section import Section
from oodlit.report.sections import boxes, images
from oodlit.report.several import Several, titles
from oodlit.report.several_boxes import SeveralBoxes
from oodlit.report.templates import TEMPLATES
from oodlit.report.view import view
from oodlit.results import Results
from oodlit.results.displayed import displayed
from oodlit.results.files.storage import kind_of
from oodlit.results.names import distinct, safe
from oodlit.results.plots.select import model_name

AnyRun = Results | ObjectResults


class _Kind(NamedTuple):
    """How the page shows results of one kind.

    Args:
        title: Title of a run; empty if unknown.
        view: What the template needs of one run, from its title, results, folder and a prefix for CSS classes.
        several: What the sections that compare runs look at.
        comparing: These sections, before the runs.
        of_all: Sections of all runs together, after them.
    """

    title: Callable[[Any], str]
    view: Callable[[str, Any, Path | None, str], dict[str, Any]]
    several: type[Several]
    comparing: tuple[Callable[[Several], Iterable[Section]], ...]
    of_all: tuple[Callable[[Mapping[str, Any]], Iterable[Section]], ...] = ()


_IMAGES = _Kind(model_name, view, Several, images.SEVERAL, images.OF_ALL_RUNS)
_BOXES = _Kind(box_title, box_view, SeveralBoxes, boxes.SEVERAL)


def _kind(results: Mapping[str, AnyRun]) -> _Kind:
    """The kind of the runs.

    Raises:
        InvalidArgumentError: There is no run, or runs are of different kinds.
    """
    if not results:
        raise InvalidArgumentError("report: expected at least one run, got none")
    of_boxes = [name for name, result in results.items() if isinstance(result, ObjectResults)]
    if 0 < len(of_boxes) < len(results):
        other = next(name for name in results if name not in of_boxes)
        raise InvalidArgumentError(
            f"report: expected runs of one kind, got results of boxes ({of_boxes[0]!r}) and results of images"
            f" ({other!r}); write one page for each kind"
        )
    return _BOXES if of_boxes else _IMAGES


def load_results(directory: str | os.PathLike[str]) -> AnyRun:
    """Load saved results of images or of boxes.

    Raises:
        DataError: A file is missing, unreadable, or does not belong to the others.
    """
    return ObjectResults.load(directory) if kind_of(directory) == "objects" else Results.load(directory)


def render(
    results: Mapping[str, AnyRun],
    *,
    folders: Mapping[str, Path] | None = None,
    pages: Mapping[str, str] | None = None,
    say: Callable[[str], object] | None = None,
) -> str:
    """Render the page.

    Args:
        results: Runs by name. Several runs are compared first, and then shown one after the other.
        folders: Folder of the results of each run, with thumbnails. None (default) = no thumbnails.
        pages: Addresses of separate pages by name; the runs are then linked instead of shown. None (default) = show all
            runs on this page.
        say: Called with the first sentences of the comparison of several runs, for a terminal.

    Returns:
        HTML; names are escaped.

    Raises:
        InvalidArgumentError: There is no run, or runs are of different kinds.
    """
    kind = _kind(results)
    names = titles(results, kind.title)
    runs = [
        kind.view(names[name], result, (folders or {}).get(name), f"t{index}-")
        for index, (name, result) in enumerate(results.items() if pages is None else ())
    ]
    all_displayed = {name: displayed(result) for name, result in results.items()}
    several = _several(kind, {names[name]: result for name, result in all_displayed.items()}, names, pages)
    if say and several:
        for line in (*several["left_out"], *several["conclusions"], several["answers"][0]):
            say(line)
    return TEMPLATES.get_template("page.html").render(
        title=f"{several['title'] if several else runs[0]['title']} - oodlit report",
        several=several,
        runs=runs,
        of_all=[section for sections in kind.of_all for section in sections(all_displayed)],
        thumbnails_css=Markup("\n".join(entry["css"] for entry in runs)),
    )


def _several(
    kind: _Kind, runs: Mapping[str, AnyRun], names: Mapping[str, str], pages: Mapping[str, str] | None
) -> dict[str, Any]:
    """Content of the comparison; empty for a single run."""
    if len(runs) < 2:
        return {}
    links = {names[name]: quote(page) for name, page in pages.items()} if pages is not None else {}
    several = kind.several(runs, links or {title: f"#r{index}-top" for index, title in enumerate(runs)})
    return {
        "title": f"{len(runs)} runs compared",
        "subtitle": f"{', '.join(list(runs)[:6])}{' and others' if len(runs) > 6 else ''};"
        f" {len(several.detectors)} detectors.",
        **pair_view(several),
        "conclusions": several.conclusions,
        "left_out": several.alerts,
        "remarks": several.remarks,
        "links": several.links,
        "sections": [section for sections in kind.comparing for section in sections(several)],
    }


def write_report(
    results: AnyRun | Mapping[str, AnyRun],
    path: str | os.PathLike[str],
    *,
    folders: Mapping[str, Path] | None = None,
    say: Callable[[str], object] | None = None,
) -> Path:
    """Write the page atomically.

    Several runs also have separate pages beside the one that compares them: `report-A.html` for run A beside
    `report.html`. If one of the pages cannot be made, none is written.

    Args:
        results: One run, or several by name.
        path: File to write; its folder is created if needed. For one run without `folders`, thumbnails are read from
            this folder.
        folders: Folder of the results of each run.
        say: Called with the first sentences of the comparison of several runs, such as `print`.

    Returns:
        The path.
    """
    target = Path(path)
    if isinstance(results, Results | ObjectResults):
        name = target.resolve().parent.name
        results, folders = {name: results}, {name: target.resolve().parent}
    pages = page_names(target.stem, results) if len(results) > 1 else {}
    texts = {target.with_name(page): render({name: results[name]}, folders=folders) for name, page in pages.items()}
    texts[target] = render(results, folders=folders, pages=pages or None, say=say)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_files({file: text.encode("utf-8") for file, text in texts.items()})
    return target


def page_names(stem: str, names: Collection[str]) -> dict[str, str]:
    """Choose names for the pages of single runs; they are distinct, even if upper and lower case are equal.

    Example:
        >>> page_names("report", ["resnet50", "a/b", "a b"])
        {'resnet50': 'report-resnet50.html', 'a/b': 'report-a_b.html', 'a b': 'report-a_b_2.html'}
    """
    plain = [safe(name)[:100] for name in names]
    return {name: f"{stem}-{page}.html" for name, page in zip(names, distinct(plain, same=str.lower), strict=True)}
