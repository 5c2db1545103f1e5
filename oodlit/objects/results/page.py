"""The HTML page of results of boxes: one file, no network."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from oodlit.base.atomic import write_bytes
from oodlit.base.json_files import to_json, to_plain
from oodlit.objects.metrics.registry import meaning
from oodlit.objects.published import fmiyc
from oodlit.objects.results.pictures import COLOURS, drawn_pictures, picture_keys
from oodlit.objects.results.results import ObjectResults
from oodlit.objects.results.summary import headline, headline_metrics, ranked
from oodlit.objects.results.tau_curve import CURVES, TauPoint, tau_curve

__all__ = ["write_object_report"]

_DRAWN = 3
"""Detectors whose pictures are shown: those with the largest AP_U on the first split."""

_SHOWN_ELSEWHERE = {
    "datasets",
    "detectors",
    "settings",
    "thresholds",
    "undefined",
    "notes",
    "id_quality",
    "not_applicable",
    "caveat",
    "findings",
    "format",
}


def render(results: ObjectResults, *, folder: Path | None = None) -> str:
    """The page as text; every name is escaped.

    Args:
        results: A run.
        folder: Where its pictures lie; None = none are shown.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("oodlit.objects", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(**_view(results, folder))


def write_object_report(
    results: ObjectResults, path: str | os.PathLike[str], *, folder: str | os.PathLike[str] | None = None
) -> Path:
    """Write the page: the old file or the new one, never half of either.

    Args:
        results: A run.
        path: File to write; its folder is made if need be.
        folder: Where the pictures of the run lie; None = beside the page.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    page = render(results, folder=Path(folder) if folder is not None else target.resolve().parent)
    write_bytes(target, page.encode("utf-8"))
    return target


def _view(results: ObjectResults, folder: Path | None) -> dict[str, Any]:
    settings = results.settings
    metrics = headline_metrics(settings)
    return {
        "title": results.run.title or results.run.model or "Object detector",
        "settings": settings,
        "t_star_rule": results.run.t_star_rule or "given",
        "id_name": results.id_dataset.name,
        "facts": _facts(results),
        "caveat": results.run.caveat,
        "findings": [finding.text for finding in results.run.findings],
        "notes": results.run.notes,
        "metrics": [(name, meaning(name, settings)) for name in metrics],
        "terms": [(name, meaning(name, settings)) for name in dict.fromkeys(results.table["metric"])],
        "splits": [_split(results, name) for name in results.splits],
        "pictures": _pictures(results, folder),
        "colours": {state: "rgb({}, {}, {})".format(*colour) for state, colour in COLOURS.items()},
        "quality": [(name.partition("/")[2], _percent(v)) for name, v in results.run.id_quality.items() if "/" in name],
        "not_applicable": sorted(results.run.not_applicable.items()),
        "undefined": results.run.undefined,
        "about": [
            (k.replace("_", " "), json.dumps(v))
            for k, v in to_plain(results.run.entries()).items()
            if k not in _SHOWN_ELSEWHERE and v
        ],
        "raw": to_json(results.run.entries()),
    }


def _facts(results: ObjectResults) -> list[tuple[str, str, str]]:
    settings, known = results.settings, results.row("no_boxes", dataset=results.id_dataset.name)
    quality = results.run.id_quality
    best = next(iter(ranked(results, results.splits[0])), "none") if results.splits else "none"
    facts = [
        ("cut t* on the confidence", f"{settings.t_star:.4g}", results.run.t_star_rule or "given"),
        ("cut tau on the OOD score", settings.rule, f"{settings.rules} rules, IoU {settings.iou:g}"),
        (f"boxes of {results.id_dataset.name}", str(known["n_id"]), f"in {known['n_images']} images, from t* on"),
        ("best AP_U", best, f"on {results.splits[0]}" if results.splits else ""),
    ]
    if "map" in quality:
        facts.insert(2, ("mean average precision", _percent(quality["map"]), f"{_percent(quality['map50'])} at IoU .5"))
    return facts


def _split(results: ObjectResults, name: str) -> dict[str, Any]:
    coverage = results.row("no_boxes", dataset=name)
    found = headline(results, name)
    return {
        "name": name,
        "coverage": coverage,
        "no_boxes": _percent(coverage["value"]),
        "rows": found,
        "curves": [
            (row.detector, curve_svg(tau_curve(results, row.detector, name), results.settings.tpr)) for row in found
        ],
        "published": _published(results, name),
    }


def _published(results: ObjectResults, name: str) -> dict[str, Any] | None:
    """What FMIYC prints for a split, beside ours; None if it is not one of its."""
    split = fmiyc.split_named(name)
    if split is None:
        return None
    architectures = list(dict.fromkeys(f.architecture for f in fmiyc.figures(split.name)))
    printed = {(f.architecture, f.method, f.metric): f.value for f in fmiyc.figures(split.name)}
    rows = []
    for method, key in fmiyc.METHODS.items():
        own = next((d for d in results.detectors if d.partition("[")[0] == key), None)
        for metric in fmiyc.METRICS.values():
            values = [printed.get((architecture, method, metric)) for architecture in architectures]
            ours = math.nan
            if own is not None and metric in set(results.table["metric"]):
                ours = results.value(metric, dataset=name, detector=own)
            if any(value is not None for value in values) and own is not None:
                rows.append((method, metric, _percent(ours), ["-" if v is None else _percent(v) for v in values]))
    n_images = int((results.images["dataset"] == name).sum())
    empty = fmiyc.images_without_boxes(split.name)
    return {
        "split": split,
        "same_size": n_images == split.n_images,
        "n_images": n_images,
        "architectures": architectures,
        "rows": rows,
        "empty": [_percent(empty[a]) if a in empty else "-" for a in architectures],
    }


def _pictures(results: ObjectResults, folder: Path | None) -> list[dict[str, Any]]:
    if folder is None or not results.splits:
        return []
    keys, groups = picture_keys(results), []
    for detector in ranked(results, results.splits[0])[:_DRAWN]:
        urls = drawn_pictures(results, detector, folder, keys)
        if urls:
            groups.append({"detector": detector, "images": list(urls.items())})
    return groups


def curve_svg(points: Sequence[TauPoint], tpr: float) -> Markup:
    """Metrics over the share of ID boxes that tau keeps, from all of them at the left to half at the right."""
    width, height, bottom = 340.0, 150.0, 30
    out = [Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="metrics over tau">').format(width, height + bottom)]
    for share in (0.0, 0.5, 1.0):
        y = height * (1 - share)
        out.append(Markup('<line x1="0" x2="{}" y1="{y}" y2="{y}" stroke="var(--line)"/>').format(width, y=y))
        out.append(Markup('<text x="2" y="{}" class="soft">{:.0f} %</text>').format(max(y - 3, 9), 100 * share))
    for index, metric in enumerate(CURVES):
        path, pen = [], "M"
        for point in points:
            value = point.values[metric]
            if math.isnan(value):
                pen = "M"
                continue
            path.append(f"{pen}{2 * (1 - point.kept) * width:.1f} {height * (1 - value):.1f}")
            pen = "L"
        style = '<path d="{}" fill="none" stroke="var(--s{})" stroke-width="2"><title>{}</title></path>'
        out.append(Markup(style).format(" ".join(path), index, metric))
    x = 2 * (1 - tpr) * width
    if 0 <= x <= width:
        dashed = '<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{h}" stroke="var(--ink)" stroke-dasharray="4 3"/>'
        out.append(Markup(dashed).format(x=x, h=height))
    for place, anchor, text in (
        (0.0, "start", "100 %"),
        (width / 2, "middle", "ID boxes kept"),
        (width, "end", "50 %"),
    ):
        label = '<text x="{}" y="{}" text-anchor="{}" class="soft">{}</text>'
        out.append(Markup(label).format(place, height + 16, anchor, text))
    return Markup("").join([*out, Markup("</svg>")])


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f}"
