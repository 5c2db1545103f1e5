"""The record of a run on the page: detectors, remarks, versions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from oodlit.base.json_files import to_json
from oodlit.base.secrets import mask_text
from oodlit.base.text.readable import readable
from oodlit.report.headline import share_text
from oodlit.report.section import Shown, ShownBoxes
from oodlit.results.any_results import AnyResults
from oodlit.results.display_names import display_names
from oodlit.results.names import settings_text, unused_heading

_SHOWN_ELSEWHERE = {
    "datasets", "detectors", "settings", "counts", "thresholds", "undefined", "notes", "not_applicable", "caveat",
    "findings", "ms_per_image", "overview", "warnings", "fit_notes", "skipped", "detector_settings", "references",
    "config", "time", "format", "kind", "fit", "id_quality", "ms_per_box", "part_checksums", "entry_checksums",
    "started_in",
}  # fmt: skip
"""Entries of run.json that the page shows elsewhere; the remaining ones are listed under "Run"."""


def record_content(
    shown: Shown | ShownBoxes, data: Mapping[str, Any], ms: Mapping[str, float], lists: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Content of the template `measured.html`.

    Args:
        shown: A run.
        data: The table of data sets: names of columns as `counts` and `texts`, and `rows`.
        ms: Milliseconds per image or box by detector.
        lists: Further lists, each with `name` and `entries` of names and texts.
    """
    results, record = shown.results, shown.record or shown.results.run
    keys = {name: key for key, name in display_names(record).items()}
    unused: dict[str, list[tuple[str, str]]] = {}
    for name, reason in sorted(results.run.not_applicable.items()):
        unused.setdefault(unused_heading(reason), []).append((name, reason))
    return {
        "lists": [*({"name": name, "entries": entries} for name, entries in unused.items()), *lists],
        "data": data,
        "catalogue": [_catalogue_row(results, name, keys.get(name, name), ms) for name in shown.detectors],
        "remarks": _remarks(results),
        "about": _about(results),
        "raw": to_json(record.entries()),
    }


def _catalogue_row(results: AnyResults, name: str, key: str, ms: Mapping[str, float]) -> dict[str, Any]:
    """Settings, needs, cost, threshold and paper of one detector, as far as the run recorded them."""
    config, paper = results.run.detector_settings.get(name), results.run.references.get(name)
    overview = results.run.overview.get(name)
    threshold = results.threshold(name)
    fit = "fitted" if overview and overview.is_fitted else "no fit"
    return {
        "name": name,
        "key": "" if key == name else key,
        "settings": settings_text(config.init_args) if config else "",
        "needs": f"{overview.reads}, {fit}" if overview else "",
        "cost": overview.cost if overview else "",
        "tuned": overview.tuned if overview else "",
        "ms": f"{ms[name]:.3g}" if name in ms else "",
        "threshold": "undefined" if math.isnan(threshold) else f"{threshold:.6g}",
        "source": f"{paper.authors}, {paper.title}, {paper.venue}, {paper.year}" if paper else "",
        "url": paper.url if paper and paper.url.startswith(("https://", "http://")) else "",
        "deviations": paper.deviations if paper else "",
    }


def _remarks(results: AnyResults) -> list[dict[str, Any]]:
    """Lists of warnings, notes, undefined values and skipped images that are not empty."""
    undefined = [
        f"{e.metric} of {e.detector} on {'/'.join(filter(None, (e.dataset, e.ood_class)))}: {e.reason}"
        for e in results.run.undefined
    ]
    fit_notes = results.run.fit_notes
    noted = tuple(line for lines in fit_notes.values() for line in lines)
    groups = {
        # Detectors log their notes as warnings, too; notes have a separate heading.
        "Warnings": [w for w in results.run.warnings or () if not (noted and w.endswith(noted))],
        "Notes of the fit": [f"{name}: {line}" for name, lines in fit_notes.items() for line in lines],
        "Notes": results.run.notes,
        "Undefined values": undefined,
        "Skipped images": [readable(f"{image.key}: {image.reason}") for image in results.run.skipped],
    }
    return [{"name": name, "lines": _at_most(lines, 20)} for name, lines in groups.items() if lines]


def _at_most(lines: Sequence[str], limit: int) -> list[str]:
    more = len(lines) - limit
    lines = [mask_text(line) for line in lines[:limit]]
    return [*lines, f"and {more} more, see run.json"] if more > 0 else lines


def _about(results: AnyResults) -> list[tuple[str, str]]:
    """Settings of the evaluation and further entries of the record, one line each."""
    settings = results.settings
    lines = [("threshold rule", f"{settings.rule}, TPR {share_text(settings.tpr)}")]
    lines += [("bootstrap", f"{settings.bootstrap} repetitions, seed {settings.seed}")] if settings.bootstrap else []
    for name, value in results.run.entries().items():
        if name not in _SHOWN_ELSEWHERE and value not in (None, "", [], {}) and (text := _line(value)):
            lines.append((name.replace("_", " "), text))
    return lines


def _line(value: Any) -> str:
    if isinstance(value, Mapping):
        shown = {k: v for k, v in value.items() if not isinstance(v, Mapping | list) and v not in (None, "")}
        return ", ".join(f"{k} {_line(v)}" for k, v in shown.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) if len(value) <= 40 else f"{len(value)} entries, see run.json"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
