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

    from oodlit.cli.console import console

    header, found = {"detectors": _detectors, "datasets": _datasets, "metrics": _metrics}[kind](verbose)
    rows, say = list(found), console()
    if verbose:
        for name, *facts in rows:
            say.print(Text(name, style="bold"))
            for title, fact in zip(header[1:], facts, strict=True):
                if fact:
                    say.print(Text(f"  {title}: {fact}"), soft_wrap=True)
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for index, title in enumerate(header):
            table.add_column(title, overflow="fold", no_wrap=index == 0)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))  # Text: names may hold markup
        say.print(table)
    say.print(f"{len(rows)} {kind}", style="dim", highlight=False)


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
                row = (*row, _settings(kind), ", ".join(kind.presets), reference.url, reference.deviations)
            yield row

    header = ("key", "class", "needs", "fit", "paper")
    return (*header, *(("settings", "presets", "url", "deviations") if verbose else ())), rows()


def _settings(kind: type) -> str:
    every = inspect.signature(kind).parameters.values()
    parameters = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
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
    from oodlit.results.glossary import PREFIXES, glossary

    rows = [
        (m.name, m.sets, m.entry.better, *((m.entry.function.__name__,) if verbose else ()), text)
        for m, text in glossary()
    ]
    rows += [
        (f"{prefix}NAME", "OOD", "as NAME", *(("",) if verbose else ()), text) for prefix, text in PREFIXES.items()
    ]
    return ("name in the table", "of sets", "better", *(("oodlit.metrics",) if verbose else ()), "what it is"), rows
