"""Generate a page for each detector from its class: `python docs/site/detector_pages.py` writes docs/detectors/.

It also writes the rows of `oodlit list detectors`.

The pages are checked in, because the environment of the site has no torch; tests/docs/test_detector_pages.py compares
them with the classes. Each statement has one source: the docstring, the declarations, the published tables, and
the points of docs/detectors.md and docs/detector_notes.md that begin with the detector's name.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from docstring_parser import Docstring, DocstringStyle, parse

from oodlit.cli import detector_rows
from oodlit.detectors import BackboneFacts, Detector, detectors, overview
from oodlit.results.published import ADASCALE, MAHALANOBIS_PLUS_PLUS, NINCO, OPENOOD, PublishedTable

DOCS = Path(__file__).parents[1]
FOLDER = DOCS / "detectors"
ABLE = BackboneFacts(
    name="the network", width=2048, num_classes=1000, has_dropout=True, feature_map=True, num_train=10**6
)
"""A network to which every detector applies."""
UNABLE = {
    "the head is not one linear layer": replace(ABLE, head_problem="the logits do not follow from the features"),
    "features have both signs": replace(ABLE, signed_features=True),
    "there are no training images": replace(ABLE, num_train=0),
    "there is no dropout": replace(ABLE, has_dropout=False),
    "there is no feature map before the head": replace(ABLE, feature_map=False),
    "the network has no classifier": replace(ABLE, num_classes=0, available=ABLE.available - {"logits", "head"}),
    "there are recorded features, but no images": replace(
        ABLE,
        available=ABLE.available - {"images", "model", "hidden"},
        hint="; recorded features contain neither images nor the network",
    ),
}
"""What may be missing, in the order of the pages."""


def pages() -> dict[str, str]:
    """Text of every page by its file name."""
    return {f"{kind.key()}.md": page(kind) for kind in detectors().values()}


def page(kind: type[Detector]) -> str:
    """The page of a detector."""
    text = parse(inspect.getdoc(kind) or "", DocstringStyle.GOOGLE)
    parts = [
        f"# {kind.__name__}",
        f"**{_line(text.short_description)}**",
        text.long_description or "",
        _paper(kind),
        "## What it needs",
        *_needs(kind),
        "## Settings",
        *_settings(kind, text),
        "## When it is skipped, and errors",
        *_failures(kind, text),
        *_remarks(kind.__name__),
        *_published(kind.__name__),
        "## Example",
        _example(kind),
        "See also: [which detector when](../detectors.md#which-detector-when).",
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _paper(kind: type[Detector]) -> str:
    paper = kind.reference
    deviations = f"\n\nDeviations: {paper.deviations}." if paper.deviations else ""
    return f"{paper.authors}: [{paper.title}]({paper.url}), {paper.venue} {paper.year}.{deviations}"


def _needs(kind: type[Detector]) -> Iterator[str]:
    detector = kind()
    about = overview(detector)
    yield (
        f"| reads | training statistics | cost besides the one pass | invariant to |\n|---|---|---|---|\n"
        f"| {', '.join(sorted(detector.required_needs))} |"
        f" {', '.join(s.__name__ for s in detector.required_statistics) or 'none'} |"
        f" {about.cost} | {', '.join(sorted(detector.invariances)).replace('_', ' ') or '-'} |"
    )
    if detector.assumes_non_negative:
        yield "It is designed for features after a ReLU. With negative features, a run skips it or adds a note."
    if detector.log_probability:
        yield "The score is the logarithm of a probability."


def _settings(kind: type[Detector], text: Docstring) -> Iterator[str]:
    signature = inspect.signature(kind).parameters
    parameters = {name: p for name, p in signature.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if not parameters:
        yield "None."
        return
    described = {entry.arg_name: _line(entry.description) for entry in text.params}
    yield "\n".join(
        [
            "| setting | default | meaning |",
            "|---|---|---|",
            *(f"| `{name}` | `{p.default!r}` | {_cell(described.get(name, ''))} |" for name, p in parameters.items()),
        ]
    )
    if kind.presets:
        marked = {name: f"`{name}`{' (t)' if name in kind.tuned_presets else ''}" for name in kind.presets}
        yield "\n".join(
            [
                f"| `{kind.__name__}.preset(...)` | equals |",
                "|---|---|",
                *(f"| {marked[name]} | `{kind.preset(name)!r}` |" for name in kind.presets),
            ]
        )
    if kind.tuned_presets:
        yield "(t): tuned on OOD data, or possibly so. Expect worse numbers on new kinds of OOD data."
    if tuned := overview(kind()).tuned:
        yield f"The default has the settings of `{tuned}`, so it is tuned as well."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _failures(kind: type[Detector], text: Docstring) -> Iterator[str]:
    detector = kind()
    by_default = detector.why_not(ABLE)
    reasons = [f"- the settings are the default: *{by_default}*"] if by_default else []
    reasons += [
        f"- {what}: *{why}*"
        for what, facts in UNABLE.items()
        if (why := detector.why_not(facts)) not in ("", by_default)
    ]
    raised = [f"- `{entry.type_name}`: {_line(entry.description)}" for entry in text.raises]
    if reasons:
        yield "A run skips it, with the reason, if\n\n" + "\n".join(reasons)
    if raised:
        yield "Errors:\n\n" + "\n".join(raised)
    if not reasons and not raised:
        yield "It works with every classifier that returns logits."


@cache
def _lines_by_name() -> dict[str, list[str]]:
    """Points of the pages on all detectors that begin with bold names of detectors, by name."""
    text = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in ("detectors.md", "detector_notes.md"))
    points = re.findall(r"^- ((?:.|\n(?!\n|- ))+)", text, re.MULTILINE)
    found: dict[str, list[str]] = {}
    alias = {"Mahalanobis++": "MahalanobisPlusPlus", "MC-dropout": "MCDropout", "fDBD": "FDBD"}
    for point in points:
        opening = re.match(r"\*\*[^*]+\*\*", point)
        for name in re.split(r", ", opening[0].strip("*")) if opening else ():
            found.setdefault(alias.get(name, name), []).append(_line(point))
    return found


def _remarks(name: str) -> Iterator[str]:
    if lines := _lines_by_name().get(name):
        yield "## Notes"
        yield "\n".join(f"- {line}" for line in lines).replace("](", "](../")


def _published(name: str) -> Iterator[str]:
    rows = [row for table in (OPENOOD, NINCO, MAHALANOBIS_PLUS_PLUS, ADASCALE) for row in _figures(table, name)]
    yield "## Published numbers"
    if not rows:
        yield "None in the tables of `oodlit.results.published`."
        return
    yield "| table | name there | network | values in % |\n|---|---|---|---|\n" + "\n".join(rows)
    yield (
        "These numbers come from other programs, partly with other settings. Do not compare numbers of different"
        " tables. FPR95: lower is better; AUROC: higher is better."
    )


def _figures(table: PublishedTable, name: str) -> Iterator[str]:
    """Rows of one table, a network each; of NINCO the means over its classifiers."""
    for printed in table.printed_as(name):
        by_network: dict[str, list[str]] = {}
        if table is NINCO:
            network = f"mean of {len(table.models())}"
            for metric in ("mean_fpr95", "mean_auroc"):
                value = table.value(printed, "ninco", metric)
                by_network.setdefault(network, []).extend([] if value is None else [_figure("ninco", metric, value)])
        else:
            for figure in table.figures():
                if figure.detector == printed:
                    text = _figure(figure.dataset, figure.metric, figure.value)
                    by_network.setdefault(figure.model, []).append(text)
        for network, figures in by_network.items():
            if figures:
                yield f"| [{table.name}]({table.url}) | {printed} | {network} | {', '.join(figures)} |"


def _figure(dataset: str, metric: str, value: float) -> str:
    return f"{dataset} {metric.replace('_', ' ')} {100 * value:.2f}"


def _example(kind: type[Detector]) -> str:
    document = inspect.getdoc(kind) or ""
    body = re.search(r"^Example:\n((?:    .*\n?|\n)+)", document, re.MULTILINE)
    assert body is not None, f"{kind.__name__} has no example"
    return f"```pycon\n{inspect.cleandoc(body[1])}\n```"


def main() -> None:
    """Write all pages, and remove those of detectors that are gone."""
    texts = pages()
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.md"):
        if file.name not in texts:
            file.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    detector_rows.FILE.write_text(detector_rows.text(), encoding="utf-8")


if __name__ == "__main__":
    main()
