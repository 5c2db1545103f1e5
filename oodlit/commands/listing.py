"""`oodlit list`: what there is."""

import inspect
from collections.abc import Iterable
from typing import Literal

__all__ = ["listing"]


def listing(kind: Literal["detectors", "datasets", "metrics"], *, verbose: bool = False) -> None:
    """List what this version knows, from the same registries that everything else uses.

    Args:
        kind: "detectors", "datasets" or "metrics"
        verbose: add settings, references, licences and layouts
    """
    from rich.table import Table
    from rich.text import Text

    from oodlit.console import console

    header, rows = {"detectors": _detectors, "datasets": _datasets, "metrics": _metrics}[kind](verbose)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(header):
        table.add_column(name, overflow="fold", no_wrap=index == 0)
    count = 0
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: names may hold markup
        count += 1
    console().print(table)
    console().print(f"{count} {kind}", style="dim", highlight=False)


_Listing = tuple[tuple[str, ...], Iterable[tuple[str, ...]]]


def _detectors(verbose: bool) -> _Listing:
    from oodlit.detectors import detectors

    def rows() -> Iterable[tuple[str, ...]]:
        for key, kind in sorted(detectors().items()):
            reference = kind.reference
            row: tuple[str, ...] = (
                key,
                kind.__name__,
                ", ".join(sorted(kind.needs)),
                "yes" if kind.statistics else "no",
            )
            row = (*row, f"{reference.authors}, {reference.venue} {reference.year}")
            if verbose:
                row = (*row, _settings(kind), reference.url, reference.deviations)
            yield row

    header = ("key", "class", "needs", "fit", "paper")
    return (*header, *(("settings", "url", "deviations") if verbose else ())), rows()


def _settings(kind: type) -> str:
    parameters = list(inspect.signature(kind).parameters.values())
    return ", ".join(str(p).split(":")[0] + (f"={p.default!r}" if p.default is not p.empty else "") for p in parameters)


def _datasets(verbose: bool) -> _Listing:
    from oodlit.datamodules import descriptions

    def rows() -> Iterable[tuple[str, ...]]:
        for name, d in sorted(descriptions().items()):
            count = "" if d.expected_count is None else str(d.expected_count)
            row: tuple[str, ...] = (name, str(d.role), str(len(d.class_names) or ""), count, d.licence)
            yield (*row, d.source, d.citation, d.layout) if verbose else row

    header = ("name", "role", "classes", "images", "licence")
    return (*header, *(("source", "citation", "layout") if verbose else ())), rows()


def _metrics(verbose: bool) -> _Listing:
    from oodlit import metrics

    def rows() -> Iterable[tuple[str, ...]]:
        for name in sorted(metrics.__all__, key=str.lower):
            item = getattr(metrics, name)
            paragraphs = (inspect.getdoc(item) or "").split("\n\n")
            what = "metric" if inspect.isclass(item) else "function"
            row: tuple[str, ...] = (name, what, " ".join(paragraphs[0].split()))
            yield (*row, " ".join(paragraphs[1].split()) if len(paragraphs) > 1 else "") if verbose else row

    return ("name", "kind", "what it is", *(("more",) if verbose else ())), rows()
