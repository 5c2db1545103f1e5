"""`oodlit export`: the table of a paper, and BibTeX of what it cites."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from oodlit.base.errors import UsageError
from oodlit.base.text.resolve import names_in

if TYPE_CHECKING:
    from oodlit.results import Results


def export(
    results: list[Path],
    *,
    latex: bool = False,
    markdown: bool = False,
    csv: bool = False,
    bibtex: bool = False,
    intervals: bool = False,
    detectors: list[str] | None = None,
    metrics: list[str] | None = None,
    prior: float | None = None,
    max_risk: float | None = None,
    coverage: float | None = None,
    out: Path | None = None,
) -> None:
    """Write saved results as a table for a paper.

    Rows are detectors. Columns are the headline metrics of each data set, and their average over OOD sets. The best
    values, and those that are not distinguishable from the best, are bold. The footnote states numbers of images,
    rules, and settings. For several runs, rows are pairs of network and detector, which are tested on the same images.

    Args:
        results: folders of results; several make one table
        latex: LaTeX; requires the package booktabs
        markdown: Markdown (default)
        csv: CSV
        bibtex: BibTeX of the detectors and data sets, no table
        intervals: add confidence intervals
        detectors: names, such as KNN,MSP (default: all)
        metrics: names, separated by commas (default: headline)
        prior: write operating points for this fraction of unknown images
        max_risk: largest error rate of accepted images; requires --prior
        coverage: smallest share of images to accept; requires --prior
        out: file to write (default: print)
    """
    chosen = [
        name for name, is_on in {"latex": latex, "markdown": markdown, "csv": csv, "bibtex": bibtex}.items() if is_on
    ]
    if len(results) > 1:
        if missing := [str(path) for path in results if not path.exists()]:
            raise UsageError(f"folder {missing[0]} does not exist; to choose detectors, write --detectors KNN,MSP")
        if bibtex or prior is not None:
            raise UsageError(f"--bibtex and --prior: expected one folder of results, got {len(results)}")
    if len(chosen) > 1:
        raise UsageError(f"expected one format, got {', '.join(f'--{name}' for name in chosen)}")
    if prior is None and (max_risk, coverage) != (None, None):
        raise UsageError("--max_risk and --coverage require --prior; add --prior FRACTION")
    if prior is not None and metrics:
        raise UsageError("pass --prior or --metrics, not both")
    detectors, metrics = (names and names_in(",".join(names)) for names in (detectors, metrics))
    from oodlit.cli.console import say
    from oodlit.cli.report import run_names
    from oodlit.report import pairs_table
    from oodlit.results import Results
    from oodlit.results.views.export import csv_of, latex_of, markdown_of, write_export
    from oodlit.results.views.risk_table import table_of

    write = latex_of if latex else csv_of if csv else markdown_of
    loaded = dict(zip(run_names(results), map(Results.load, results), strict=True))
    run, *others = loaded.values()
    options: dict[str, Any] = {"detectors": detectors, "intervals": intervals}
    if bibtex:
        text = _bibtex(run, detectors)
    elif others:
        text = write(pairs_table(loaded, metrics=metrics, **options))
    else:
        chosen_by = {"metrics": metrics} if prior is None else {"max_risk": max_risk, "coverage": coverage}
        text = write(table_of(run, prior=prior, **options, **chosen_by))
    if out is None:
        say(text.rstrip("\n"))
    else:
        write_export(out, text.encode())


def _bibtex(results: "Results", detectors: list[str] | None) -> str:
    """Entries of the detectors, and of the data sets that are known by name."""
    from oodlit.datamodules import descriptions
    from oodlit.results.display_names import display_names
    from oodlit.results.views.bibtex import citation, to_bibtex

    chosen = results.resolve_detectors(*detectors or results.detectors)
    names = {name: shown for name, shown in display_names(results.run).items() if name in chosen}
    papers = [(names[name], paper) for name, paper in results.run.references.items() if name in names]
    known = descriptions()
    for info in results.datasets:
        about = known.get(info.name)
        found = [citation(text, about.source) for text in about.citation.split("; protocol: ")] if about else []
        papers += [(info.name, paper) for paper in found if paper is not None]
    cited = {name for name, _ in papers}
    missing = [name for name in (*names.values(), *(info.name for info in results.datasets)) if name not in cited]
    return to_bibtex(papers) + (f"% No source is known for: {', '.join(missing)}\n" if missing else "")
