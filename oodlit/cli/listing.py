"""`oodlit list`: what there is."""

import inspect
from collections.abc import Iterator
from typing import Literal


def listing(kind: Literal["detectors", "datasets", "metrics"], *, verbose: bool = False) -> None:
    """List detectors, datasets or metrics.

    Args:
        kind: "detectors", "datasets" or "metrics"
        verbose: add settings, references, licences and layouts
    """
    from rich.table import Table
    from rich.text import Text

    from oodlit.cli.console import console

    rows_of, num_columns = _KINDS[kind]
    rows, out = list(rows_of()), console()
    if verbose:
        for row in rows:
            (_, name), *facts = row.items()
            out.print(Text(name, style="bold"))
            for title, fact in facts:
                if fact:
                    out.print(Text(f"  {title}: {fact}"), soft_wrap=True)
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for index, title in enumerate([*rows[0]][:num_columns]):
            table.add_column(title, overflow="fold", no_wrap=index == 0)
        for row in rows:
            table.add_row(*(Text(cell) for cell in [*row.values()][:num_columns]))  # Text: names may hold markup
        out.print(table)
    out.print(f"{len(rows)} {kind}", style="dim", highlight=False)


def _detectors() -> Iterator[dict[str, str]]:
    from oodlit.detectors import detectors

    for key, kind in sorted(detectors().items()):
        paper = kind.reference
        yield {
            "key": key,
            "class": kind.__name__,
            "needs": ", ".join(sorted(kind.needs)),
            "fit": "yes" if kind.statistics else "no",
            "paper": f"{paper.authors}, {paper.venue} {paper.year}",
            "settings": _settings(kind),
            "presets": ", ".join(f"{n} (tuned on OOD data)" if n in kind.tuned_presets else n for n in kind.presets),
            "url": paper.url,
            "deviations": paper.deviations,
        }


def _settings(kind: type) -> str:
    every = inspect.signature(kind).parameters.values()
    parameters = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return ", ".join(str(p).split(":")[0] + (f"={p.default!r}" if p.default is not p.empty else "") for p in parameters)


def _datasets() -> Iterator[dict[str, str]]:
    from oodlit.datamodules import descriptions

    for name, about in sorted(descriptions().items()):
        yield {
            "name": name,
            "role": str(about.role),
            "classes": str(len(about.class_names) or ""),
            "images": "" if about.expected_count is None else str(about.expected_count),
            "licence": about.licence,
            "source": about.source,
            "citation": about.citation,
            "layout": about.layout,
        }


def _metrics() -> Iterator[dict[str, str]]:
    from oodlit.results.glossary import PREFIXES, glossary

    columns = ("name in the table", "of sets", "better", "what it is", "oodlit.metrics")
    for metric, text in glossary():
        entry = metric.entry
        yield dict(zip(columns, (metric.name, metric.sets, entry.better, text, entry.function.__name__), strict=True))
    for prefix, text in PREFIXES.items():
        yield dict(zip(columns, (f"{prefix}NAME", "OOD", "as NAME", text, ""), strict=True))


_KINDS = {"detectors": (_detectors, 5), "datasets": (_datasets, 5), "metrics": (_metrics, 4)}
"""Rows of each kind, and how many of their columns the table shows; `--verbose` shows all of them."""
