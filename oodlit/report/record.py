"""The record of a run on the page: data, detectors, remarks, versions."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from oodlit.detectors import Detector, Overview, Reference
from oodlit.detectors import detectors as known_detectors
from oodlit.report.headline import Lookup, interval_text, percent_text, share_text
from oodlit.results import Results
from oodlit.results.names import MODEL

_SHOWN_ELSEWHERE = {
    "datasets", "detectors", "settings", "counts", "thresholds", "undefined", "notes", "not_applicable", "caveat",
    "findings", "ms_per_image", "overview", "warnings", "fit_notes", "skipped", "detector_settings", "references",
    "config", "time", "format",
}  # fmt: skip
"""Entries of run.json that have a place of their own on the page; all others are listed under "Run"."""


def data_rows(results: Results, lookup: Lookup) -> list[dict[str, Any]]:
    """One row per data set: role, images, classes, accuracy, skipped samples."""
    skipped = Counter(image.key.partition("/")[0] for image in results.run.skipped)
    rows = []
    for info in results.datasets:
        accuracy = lookup(MODEL, info.name, "accuracy")
        text = "" if accuracy is None else f"{percent_text(accuracy.value)} {interval_text(accuracy)}"
        rows.append(
            {
                "name": info.name,
                "role": str(info.role),
                "images": results.run.counts.get(info.name, 0),
                "classes": len(info.class_names) or "",
                "accuracy": text,
                "skipped": skipped.get(info.name, "") or "",
            }
        )
    return rows


def catalogue_row(results: Results, name: str) -> dict[str, Any]:
    """Settings, needs, cost, threshold and paper of one detector."""
    config = results.run.detector_settings.get(name)
    paper = results.run.references.get(name) or _own_paper(results, name)
    threshold = results.threshold(name)
    return {
        "name": name,
        "settings": _settings(config.init_args) if config else "",
        **_overview(results, name),
        "ms": _cost(results, name),
        "threshold": "undefined" if math.isnan(threshold) else f"{threshold:.6g}",
        "source": f"{paper.authors}, {paper.title}, {paper.venue}, {paper.year}" if paper else "",
        "url": paper.url if paper and paper.url.startswith(("https://", "http://")) else "",
        "deviations": paper.deviations if paper else "",
    }


def own_kind(results: Results, name: str) -> tuple[str, type[Detector]] | None:
    """Key and class of a detector, if it is one of ours: by its class path, or by its name in older results."""
    config = results.run.detector_settings.get(name)
    package, _, kind_name = (config.class_path if config else name).partition("[")[0].rpartition(".")
    for key, kind in known_detectors().items():
        is_path = f"{package}.".startswith("oodlit.detectors.") and kind_name == kind.__name__
        if is_path or (package, kind_name) == ("", key):
            return key, kind
    return None


def _own_paper(results: Results, name: str) -> Reference | None:
    """The paper of a detector of ours, for results that do not hold it themselves."""
    own = own_kind(results, name)
    return own[1].reference if own else None


def _settings(arguments: Mapping[str, Any]) -> str:
    """Constructor arguments in one line, those of nested detectors included."""
    parts = []
    for name, value in arguments.items():
        if isinstance(value, Mapping) and "class_path" in value:
            inner = _settings(dict(value.get("init_args") or {}))
            parts.append(f"{name}={str(value['class_path']).rpartition('.')[2]}({inner})")
        elif value is not None:
            text = str(value)
            parts.append(f"{name}={text if len(text) <= 60 else text[:59] + '…'}")
    return ", ".join(parts)


def _overview(results: Results, name: str) -> dict[str, str]:
    """What it reads and costs and whose settings it has, in the words of `oodlit list`; empty in older results."""
    recorded = results.run.overview.get(name)
    if recorded is None:
        return {"needs": "", "cost": "", "tuned": ""}
    about = Overview(*structs.astuple(recorded))
    return {"needs": about.group, "cost": about.cost, "tuned": about.tuned}


def _cost(results: Results, name: str) -> str:
    """Milliseconds an image, without the pass of the network that all detectors share."""
    cost = results.run.ms_per_image.get(name)
    return "" if cost is None else f"{cost:.3g}"


def remarks(results: Results) -> list[dict[str, Any]]:
    """Warnings, notes, undefined values and skipped images, as far as there are any."""
    undefined = [
        f"{e.metric} of {e.detector} on {'/'.join(filter(None, (e.dataset, e.ood_class)))}: {e.reason}"
        for e in results.run.undefined
    ]
    fit_notes = results.run.fit_notes
    noted = tuple(line for lines in fit_notes.values() for line in lines)
    groups = {
        # Detectors also log their notes, which makes warnings of them; they have a heading of their own.
        "Warnings": [w for w in results.run.warnings or () if not (noted and w.endswith(noted))],
        "Notes of the fit": [f"{name}: {line}" for name, lines in fit_notes.items() for line in lines],
        "Not computed": results.run.notes,
        "Undefined values": undefined,
        "Skipped images": [f"{image.key}: {image.reason}" for image in results.run.skipped],
    }
    return [{"name": name, "lines": _at_most(lines, 20)} for name, lines in groups.items() if lines]


def _at_most(lines: Sequence[str], limit: int) -> list[str]:
    more = len(lines) - limit
    return [*lines[:limit], f"and {more} more, see run.json"] if more > 0 else list(lines)


def about(results: Results) -> list[tuple[str, str]]:
    """Settings of the evaluation and what else the run recorded, one line each."""
    settings = results.settings
    lines = [("threshold rule", f"{settings.rule}, TPR {share_text(settings.tpr)}")]
    lines += [("bootstrap", f"{settings.bootstrap} repetitions, seed {settings.seed}")] if settings.bootstrap else []
    for name, value in results.run.entries().items():
        if name in _SHOWN_ELSEWHERE or value in (None, "", [], {}):
            continue
        lines += [(name.replace("_", " "), text)] if (text := _line(value)) else []
    return lines


def _line(value: Any) -> str:
    if isinstance(value, Mapping):
        told = {k: v for k, v in value.items() if not isinstance(v, Mapping | list) and v not in (None, "")}
        return ", ".join(f"{k} {_line(v)}" for k, v in told.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) if len(value) <= 40 else f"{len(value)} entries, see run.json"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
