"""The pair of network and detector to choose, on the page of several runs."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd
from msgspec import structs

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.report.box_view import box_choice
from oodlit.report.detector_choice import answer_tile, answers, choose
from oodlit.report.headline import partial_text, percent_text, share_text
from oodlit.report.section import Fact, Pairs, Shown, ShownBoxes, doubts, frame
from oodlit.report.several import Several, titles
from oodlit.report.thumbnails import ThumbnailStyles
from oodlit.results import Results
from oodlit.results.comparing.conclusion import UNITS
from oodlit.results.displayed import displayed, renamed
from oodlit.results.finding import Finding
from oodlit.results.names import MODEL, distinct
from oodlit.results.plots.select import model_name
from oodlit.results.views.paper import PaperTable, heading, paper_table
from oodlit.results.views.tables import summary

_TILE = "Network and detector to choose"
_BY_PAIR = ("thresholds", "detector_settings", "fit_notes")
_SETS = 4
"""Maximum number of OOD sets with a tile; the tables show all of them."""
_NONE = "No network and detector can be chosen: the runs have no OOD set whose values are defined and can be compared."


def pair_view(several: Several) -> dict[str, Any]:
    """The tiles and first sentences of the page of several runs, and the findings of these runs."""
    joined, pairs = join_pairs(several)
    is_image = isinstance(joined, Results)
    shown: Any = Shown(joined, ThumbnailStyles({}, ""), pairs=pairs) if is_image else ShownBoxes(joined, pairs=pairs)
    best, facts, sentences = _of_images(shown, several) if is_image else _of_boxes(shown)
    title, detector = pairs.get(best, ("", ""))
    alerts = [*filter(None, [partial_text(joined)])] if is_image else []
    texts = tuple(f": {finding.text}" for finding in doubts(several.runs[title], detector)) if title else ()
    own = {"doubts": [f for f in joined.findings if f.text.endswith(texts)], "about": "this pair"} if title else {}
    return frame(shown, ()) | {"alerts": alerts, "facts": facts, "answers": sentences or [_NONE]} | own


def pairs_table(runs: Mapping[str, Results], detectors: Collection[str] | None = None, **options: Any) -> PaperTable:
    """Collect the table of a paper for several runs of images, which share its tests; see `paper_table`.

    It has the OOD sets and unit tests that all runs have. The footnote names the columns that are left out.

    Args:
        runs: The runs by name.
        detectors: Detectors of each run; None = all.
        options: See `paper_table`.

    Raises:
        UnknownNameError: A run does not have a detector, or a metric is unknown.
        InvalidArgumentError: No FPR can be compared.
    """
    shown = titles(runs, model_name)
    several = Several({shown[name]: displayed(results) for name, results in runs.items()})
    joined, pairs = join_pairs(several)
    if not joined.datasets:
        start = "paper table: expected an OOD set whose FPR can be compared between these runs, found none."
        raise InvalidArgumentError(" ".join([start, *several.alerts]))
    rows = joined.table[joined.table["dataset"] != joined.id_dataset.name]  # predictions differ between networks
    known = {title: run.resolve_detectors(*detectors or run.detectors) for title, run in several.runs.items()}
    options["detectors"] = [pair for pair, (title, name) in pairs.items() if name in known[title]]
    table = paper_table(dataclasses.replace(joined, table=rows), **options)
    kept = {*zip(rows["dataset"], rows["metric"], strict=True), *(c[:2] for c in several.columns if c.reason)}
    wanted, own = options.get("metrics"), several.runs.values()
    places: Any = [summary(run, wanted and [m for m in wanted if m in set(run.table["metric"])]).columns for run in own]
    lost = dict.fromkeys(f"{n}: {heading(m)}" for found in places for n, m in found if (n, m) not in kept)
    notes = [f"Not compared: {', '.join(lost)} (predictions differ between networks)."] if lost else []
    return dataclasses.replace(table, notes=(*table.notes, *notes, *several.alerts))


def join_pairs(several: Several) -> tuple[Any, Pairs]:
    """Join runs into one whose detectors are pairs of network and detector; return it with its pairs by name."""
    every = [(title, name) for title, results in several.runs.items() for name in results.detectors]
    pairs = dict(zip(distinct(f"{title} with {name}" for title, name in every), every, strict=True))
    return _join(several, pairs, {column.dataset for column in several.like if "auroc" not in column.metric}), pairs


def _of_images(shown: Shown, several: Several) -> tuple[str, list[Fact], list[str]]:
    """The pair to choose, tiles and sentences; empty if there is no choice."""
    joined, choice = shown.results, choose(shown)
    if choice is None:
        return "", [], []
    place = joined.detectors.index(choice.detector)
    rates = [column for column in shown.columns if column.lower_is_better and not column.is_count]
    facts = [answer_tile(shown, rates)._replace(label=_TILE)]
    for column in rates[:_SETS] if len(rates) > 1 else ():
        cell = column.cells[place]
        facts.append(Fact(f"{column.label} of this pair on {column.dataset}", cell.text, cell.interval))
    if (quality := several.quality_of(shown.pairs[choice.detector][0])) == quality:
        facts.append(Fact("Accuracy of this network", percent_text(quality), joined.id_dataset.name))
    n, n_id = (sum(len(joined.images(info.name)) for info in shown.sets(role)) for role in (Role.OOD, Role.ID))
    test = (
        f"The tests above use the same {n:,} OOD and {n_id:,} ID images for all pairs. They are one-sided, with"
        f" Bonferroni's correction for the number of pairs, at {share_text(joined.settings.confidence)} confidence."
        f" Their conclusions apply to {UNITS['images']}."
    )
    return choice.detector, facts, [choice.sentence, *answers(shown), test]


def _of_boxes(shown: ShownBoxes) -> tuple[str, list[Fact], list[str]]:
    choice = box_choice(shown)
    return (choice.detector, [Fact(_TILE, *choice[:2])], [choice.sentence]) if choice else ("", [], [])


def _join(several: Several, pairs: Pairs, names: Collection[str]) -> Any:
    """Join runs into one whose detectors are the pairs, on data sets that can be compared, with all findings."""
    parts = [
        renamed(results, {name: pair for pair, (own, name) in pairs.items() if own == title})
        for title, results in several.runs.items()
    ]
    first = parts[0]
    wanted = {first.id_dataset.name, *names} if names else set()
    infos = [info for info in first.datasets if info.name in wanted and info.role is not Role.POOL]
    tables = [part.table[part.table["dataset"].isin(wanted) & (part.table["detector"] != MODEL)] for part in parts]
    found: dict[Finding, list[str]] = {}
    for title, results in several.runs.items():
        for finding in results.findings:
            found.setdefault(finding, []).append(title)
    run = structs.replace(
        first.run,
        detectors=list(pairs),
        datasets=infos,
        **{entry: {k: v for part in parts for k, v in getattr(part.run, entry).items()} for entry in _BY_PAIR},
        undefined=[entry for part in parts for entry in part.run.undefined],
        findings=[structs.replace(f, text=f"In {', '.join(of)}: {f.text}") for f, of in found.items() if not f.is_good],
        caveat=" ".join(dict.fromkeys(part.run.caveat for part in parts if part.run.caveat)),
    )
    changes: dict[str, Any] = {}
    if isinstance(first, Results) and infos:
        frames = [pd.concat([part.images(info.name) for info in infos], ignore_index=True) for part in parts]
        scores = [frame[list(part.detectors)] for frame, part in zip(frames, parts, strict=True)]
        changes["scores"] = pd.concat([frames[0].drop(columns=list(first.detectors)), *scores], axis=1)
        run = structs.replace(run, ms_per_image=_costs(parts))
    return dataclasses.replace(first, table=pd.concat(tables, ignore_index=True), run=run, **changes)


def _costs(parts: list[Any]) -> dict[str, float]:
    """Milliseconds per image of network and detector, if all runs measured them on the same device; else empty."""
    networks = [part.run.time.backbone_ms for part in parts]
    if None in networks or len({part.run.trainer.device for part in parts}) > 1:
        return {}
    every = zip(networks, parts, strict=True)
    return {name: cost + network for network, part in every for name, cost in part.run.ms_per_image.items()}
