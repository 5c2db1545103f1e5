"""`oodlit list`: detectors, data sets, benchmarks, metrics and published tables, with those of plug-ins."""

import inspect
import json
from collections.abc import Iterator
from importlib import resources
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Literal

from oodlit.base.plugins import DETECTORS, Plugins
from oodlit.base.text.singular import singular

if TYPE_CHECKING:
    from rich.table import Table

Kind = Literal["detectors", "datasets", "benchmarks", "metrics", "published"]


def listing(kind: Kind, *, verbose: bool = False) -> None:
    """List detectors, data, benchmarks, metrics, or tables.

    Items of installed plug-ins are listed by package.

    Args:
        kind: detectors, datasets, benchmarks, metrics or published
        verbose: add settings, references, licenses, layouts and rules
    """
    rows_of, num_columns = _KINDS[kind]
    fewest = 1 if kind == "detectors" else num_columns  # one line each, in any width
    print_rows(rows_of(), num_columns, kind.replace("published", "published tables"), verbose=verbose, fewest=fewest)


def print_rows(
    rows: Iterator[dict[str, str]], num_columns: int, things: str, *, verbose: bool, fewest: int | None = None
) -> None:
    """Print rows as a table, or all their facts.

    Args:
        rows: Texts by title; the entry "group" is a heading.
        num_columns: Number of columns of the table.
        things: What a row is, for the last line.
        verbose: Whether to print all facts.
        fewest: Smallest number of columns, on narrow screens; None = all.
    """
    from rich.text import Text

    from oodlit.cli.console import console
    from oodlit.results.views.terminal import FirstFitting

    groups, out = _grouped(rows), console()
    if verbose:
        for group, own in groups.items():
            if group:
                out.print(Text(f"-- {group} --", style="bold"))
            for row in own:
                (_, name), *facts = row.items()
                out.print(Text(name, style="bold"))
                for title, fact in facts:
                    if fact:
                        out.print(Text(f"  {title}: {fact}"), soft_wrap=True)
    else:
        numbers = range(num_columns, (fewest or num_columns) - 1, -1)
        out.print(FirstFitting([_table(groups, number) for number in numbers]))
    out.print(singular(f"{sum(map(len, groups.values()))} {things}"), style="dim", highlight=False)


def _table(groups: dict[str, list[dict[str, str]]], num_columns: int) -> "Table":
    """A table of the first columns."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, title in enumerate([*next(iter(groups.values()))[0]][:num_columns]):
        table.add_column(title, overflow="fold", no_wrap=index == 0)
    for group, rows in groups.items():
        if group:
            table.add_row(Text(group, style="bold"))
        for row in rows:
            name, *cells = [*row.values()][:num_columns]
            # Text: names may hold markup
            table.add_row(Text(f"  {name}" if group else name), *map(Text, cells))
    return table


def _grouped(rows: Iterator[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """Rows by their heading, in order of first appearance."""
    groups: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(row.pop("group", ""), []).append(row)
    return groups


def _detectors() -> Iterator[dict[str, str]]:
    """Read the rows from the packaged file; rebuild them if the set of detectors has changed."""
    import oodlit.detectors

    written = json.loads((resources.files("oodlit.cli") / "detectors.json").read_text(encoding="utf-8"))
    if written["names"] == oodlit.detectors.__all__ and not entry_points(group=DETECTORS):
        return iter(written["rows"])
    from oodlit.cli.detector_rows import detector_rows

    return detector_rows()


def _datasets() -> Iterator[dict[str, str]]:
    from oodlit.datamodules import descriptions
    from oodlit.datamodules.sets import dataset_plugins

    for name, about in sorted(descriptions().items()):
        yield {
            "group": heading(dataset_plugins(), name),
            "name": name,
            "role": str(about.role),
            "classes": str(len(about.class_names) or ""),
            "images": "" if about.expected_count is None else str(about.expected_count),
            "licence": about.licence,
            "source": about.source,
            "citation": about.citation,
            "layout": about.layout,
        }


def _benchmarks() -> Iterator[dict[str, str]]:
    from oodlit.datamodules.benchmarks.tables import benchmark_plugins, benchmarks

    for name, about in benchmarks().items():
        sets = [f"{one.name} {one.images or ''}".rstrip() + " (optional)" * one.is_optional for one in about.sets]
        yield {
            "group": heading(benchmark_plugins(), name),
            "name": name,
            "what it is": about.title,
            "ID set": f"{about.id_set.name} {about.id_set.images or ''}".rstrip(),
            "test sets": ", ".join(sets),
            "means over sets": "; ".join(f"{mean}: {', '.join(of)}" for mean, of in about.aggregates.items()),
            "classes": str(len(about.class_subset) or ""),
            "threshold rule": about.rule,
            "lists": ", ".join(filter(None, (one.keep or one.drop for one in (about.id_set, *about.sets)))),
            "published tables": ", ".join(about.tables),
            "source": about.source,
            "citation": about.citation,
        }
    for name, kind in benchmark_plugins().items.items():
        if name not in benchmarks():  # a class
            first = (inspect.getdoc(kind) or "").partition("\n")[0]
            group = heading(benchmark_plugins(), name)
            yield {"group": group, "name": name, "what it is": first, "ID set": "", "test sets": ""}


def heading(found: Plugins, name: str) -> str:
    """The heading of an item: its package; empty for those of oodlit."""
    return f"plug-in {found.packages[name]}" if name in found.packages else ""


def _metrics() -> Iterator[dict[str, str]]:
    from oodlit.objects.metrics.registry import box_metrics, meaning
    from oodlit.objects.metrics.settings import ObjectSettings
    from oodlit.results.glossary import PREFIXES, glossary, sets_of

    def row(group: str, *cells: str) -> dict[str, str]:
        columns = ("group", "metric", "of data sets", "better", "meaning", "oodlit.metrics")
        return dict(zip(columns, (group, *cells), strict=True))

    for metric, text in glossary():
        entry = metric.entry
        yield row("metrics of images", metric.name, metric.sets, entry.better, text, entry.function.__name__)
    for prefix, text in PREFIXES.items():
        yield row("metrics of images", f"{prefix}NAME", "OOD", "as NAME", text, "")
    settings = ObjectSettings()
    for name, entry in box_metrics(settings).items():
        yield row("metrics of boxes (oodlit objects)", name, sets_of(entry), entry.better, meaning(name, settings), "")


def _published() -> Iterator[dict[str, str]]:
    from oodlit.objects.published import fmiyc
    from oodlit.results.published import cood, published_plugins, published_tables

    def row(name: str, **facts: object) -> dict[str, str]:
        group = heading(published_plugins(), name)
        return {"group": group, "name": name, **{column.replace("_", " "): str(fact) for column, fact in facts.items()}}

    for table in published_tables().values():
        figures = [*table.figures(), *table.class_figures()]
        yield row(
            table.name,
            models=len({figure.model for figure in figures}),
            detectors=len({figure.detector for figure in figures} - {""}) or "",
            values_for=", ".join(dict.fromkeys(figure.dataset for figure in figures)),
            source=table.source,
            networks="; ".join(f"{table.name}:{name} is {own}" for name, own in table.weights.items()),
            content=table.tables,
            rule=table.rule,
            url=table.url,
        )
    curves = cood.published_curves()
    yield row(
        "cood",
        models=len({curve.model for curve in curves}),
        detectors=len(cood.kappas()),
        values_for="levels of severity",
        source="I. Galil et al., A framework for benchmarking class-out-of-distribution detection, ICLR, 2023",
        content="severity curves, in reports of runs with severity levels and in oodlit.results.published.cood",
        rule="AUROC of eleven levels, easiest classes first; classes are ordered separately for every model",
        url="https://github.com/mdabbah/COOD_benchmarking",
    )
    boxes = [figure for split in fmiyc.splits() for figure in fmiyc.figures(split)]
    yield row(
        "fmiyc",
        models=len({figure.architecture for figure in boxes}),
        detectors=len({figure.method for figure in boxes}),
        values_for=", ".join(dict.fromkeys(figure.split for figure in boxes)),
        source="FindMeIfYouCan: Bringing Open Set Metrics to near, far and farther OOD Object Detection",
        content="tables 2, 3 and 12-30, in the report on object detectors and in oodlit.objects.published.fmiyc",
        rule="of boxes, see docs/objects.md",
        url="",
    )


_KINDS = {
    "detectors": (_detectors, 5),
    "datasets": (_datasets, 5),
    "benchmarks": (_benchmarks, 4),
    "metrics": (_metrics, 4),
    "published": (_published, 5),
}
"""Rows of each kind, and the number of columns without `--verbose`."""
