"""What the HTML page shows, as plain values: every number is read from a `Results`, nothing is computed anew."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from oodlit.report.headline import (
    Cell,
    Column,
    Lookup,
    fpr_text,
    headline_columns,
    partial_text,
    percent_text,
    ranked_detectors,
    scored_images,
    share_text,
)
from oodlit.report.pools import pool_view
from oodlit.report.record import about, catalogue_row, data_rows, remarks
from oodlit.report.svg import interval_bars, score_histogram
from oodlit.report.terms import readable, terms
from oodlit.report.time import time_view
from oodlit.results import DatasetInfo, Results
from oodlit.results.info import id_dataset
from oodlit.results.names import MODEL
from oodlit.results.plots import fpr_per_class, unit_tests
from oodlit.results.plots.charts import Estimate
from oodlit.results.plots.score_histograms import histogram
from oodlit.results.plots.select import evaluated_images, model_name
from oodlit.roles import NAMES_OF_LABELS, Role

_MAX_OUTLINES = 5
"""More OOD sets than this are not told apart in one histogram; the page has as many colours, `--s1` to `--s5`."""


class ThumbnailStyles:
    """Thumbnails by key, each stored once on the page as a CSS class, however often it is shown."""

    def __init__(self, urls: Mapping[str, str], prefix: str) -> None:
        self._urls = urls
        self._names = {key: f"{prefix}{index}" for index, key in enumerate(urls)}

    def css(self) -> str:
        """One rule per image; base64 holds nothing that could leave the rule."""
        return "\n".join(f".{self._names[key]} {{ background-image: url({url}) }}" for key, url in self._urls.items())

    def classes(self, key: str) -> str:
        """CSS classes that show the image; empty if there is none."""
        if key not in self._names:
            return ""
        return self._names[key] + (" tiny" if self._urls[key].startswith("data:image/png") else "")


def view(title: str, results: Results, thumbnails: ThumbnailStyles) -> dict[str, Any]:
    """Everything that the template needs of one run."""
    lookup = Lookup(results)
    columns = headline_columns(results)
    detectors = ranked_detectors(results, columns)
    sets = [d for d in results.datasets if d.role is Role.OOD]
    pools = [d for d in results.datasets if d.role is Role.POOL]
    inside = id_dataset(results.datasets)
    shown = [inside, *[*sets, *pools][:_MAX_OUTLINES]]
    return {
        "title": model_name(results) or title,
        "subtitle": _subtitle(results, inside),
        "alert": partial_text(results),
        "findings": results.findings,
        "caveat": str(results.run.get("caveat") or ""),
        "tpr": share_text(results.settings.tpr),
        "confidence": share_text(results.settings.confidence),
        "facts": _facts(results, lookup, columns, detectors, inside),
        "headline": _headline(results, lookup, columns, detectors),
        "detectors": detectors,
        "tall": min(190, 16 + 7 * max(map(len, detectors), default=0)),
        "class_sets": [_class_set(results, info, detectors) for info in sets if info.class_names and detectors],
        "pools": [pool_view(results, info, detectors, thumbnails.classes) for info in pools if detectors],
        "histograms": _histograms(results, detectors, shown),
        "num_outlines": _MAX_OUTLINES,
        "num_ood_sets": len(sets) + len(pools),
        "legend": [{"name": info.name, "colour": f"--s{index}"} for index, info in enumerate(shown)],
        "unit_tests": [
            _unit_tests(results, info, detectors, thumbnails)
            for info in results.datasets
            if info.role is Role.UNIT_TEST and detectors
        ],
        "accepted": [_accepted(results, name, inside, thumbnails) for name in detectors] if sets else [],
        "has_pictures": bool(thumbnails.css()),
        "not_applicable": sorted(dict(results.run.get("not_applicable") or {}).items()),
        "data": data_rows(results, lookup),
        "catalogue": [catalogue_row(results, name) for name in detectors],
        "remarks": remarks(results),
        "about": about(results),
        "raw": json.dumps(results.run, indent=1, default=str, ensure_ascii=False),
        "terms": terms(results),
        "time": time_view(results),
        "settings": results.settings,
    }


def _headline(results: Results, lookup: Lookup, columns: Sequence[Column], detectors: Sequence[str]) -> dict[str, Any]:
    position = {name: index for index, name in enumerate(results.detectors)}
    names = list(dict.fromkeys(column.dataset for column in columns))
    sets = []
    for name in names:
        info, n = results.dataset(name), scored_images(results, name)
        kind = {Role.OOD: "classes", Role.POOL: "classes", Role.UNIT_TEST: "tests", Role.SHIFT: "shifts"}.get(
            info.role, ""
        )
        detail = f"{n} {'test ' if info.role is Role.POOL else ''}images" + (
            f", {len(info.class_names)} {kind}" if kind and info.class_names else ""
        )
        detail += _right_and_wrong(lookup, info)
        sets.append({"name": name, "detail": detail, "columns": sum(c.dataset == name for c in columns)})
    rows = [{"detector": name, "cells": [column.cells[position[name]] for column in columns]} for name in detectors]
    return {"sets": sets, "columns": columns, "rows": rows}


def _right_and_wrong(lookup: Lookup, info: DatasetInfo) -> str:
    """Numbers behind the ID-AUROC: the smaller of the two decides how much it can say."""
    row = lookup(MODEL, info.name, "accuracy")
    if info.role is not Role.ID or row is None or math.isnan(row.value):
        return ""
    right = round(row.value * row.n_id)
    return f", {right} right, {row.n_id - right} wrong"


def _facts(
    results: Results, lookup: Lookup, columns: Sequence[Column], detectors: Sequence[str], inside: DatasetInfo
) -> list[dict[str, str]]:
    facts = []
    accuracy = lookup(MODEL, inside.name, "accuracy")
    if accuracy is not None and not math.isnan(accuracy.value):
        facts.append(
            _fact("Accuracy of the classifier", percent_text(accuracy.value), f"{inside.name}, n = {accuracy.n_id}")
        )
    rates = [c for c in columns if c.lower_is_better and not c.is_count]
    if rates and detectors:
        facts.append(_lowest_rate(results, rates, detectors))
    count = next((c for c in columns if c.is_count), None)
    if count is not None:
        total = len(results.dataset(count.dataset).class_names) or 1
        least = min((c.sort for c in count.cells if not math.isnan(c.sort)), default=math.nan)
        clean = sum(c.sort == 0 for c in count.cells)
        text = f"{clean} of {len(count.cells)} detectors"
        facts.append(_fact("Pass all unit tests", text, f"fewest failures: {least:.0f} of {total}"))
    images = sum(results.run["counts"].values())
    facts.append(_fact("Images scored", f"{images:,}".replace(",", " "), f"by {len(detectors)} detectors"))
    return facts


def _lowest_rate(results: Results, rates: Sequence[Column], detectors: Sequence[str]) -> dict[str, str]:
    """The first of the ranked detectors, with its FPR on the OOD set, or its mean FPR over several."""
    means = {name: float(np.mean([c.cells[i].sort for c in rates])) for i, name in enumerate(results.detectors)}
    first = detectors[0]
    equal = sum(means[name] == means[first] for name in detectors) - 1
    value = f"{first} and {equal} equal" if equal > 0 else first
    if len(rates) == 1:
        cell = rates[0].cells[results.detectors.index(first)]
        return _fact("Lowest FPR", value, f"{cell.text} {cell.interval} on {rates[0].dataset}")
    return _fact("Lowest FPR", value, f"{percent_text(means[first])}, mean of {len(rates)} OOD sets")


def _fact(label: str, value: str, detail: str) -> dict[str, str]:
    return {"label": label, "value": value, "detail": detail}


def _class_set(results: Results, info: DatasetInfo, detectors: Sequence[str]) -> dict[str, Any]:
    grid = fpr_per_class.describe(results, info.name, detectors=detectors)
    rows = [
        {"name": name, "n": n, "kind": "", "cells": [_heat(d, name, e) for d, e in zip(detectors, cells, strict=True)]}
        for name, n, cells in zip(grid.classes, grid.sizes, grid.cells, strict=True)
    ]
    means = [_heat(d, "mean", e) for d, e in zip(detectors, grid.totals, strict=True)]
    rows.append({"name": "mean over classes", "n": "", "kind": "sum", "cells": means})
    return {
        "name": info.name,
        "detail": f"{results.run['counts'].get(info.name, 0)} images, {len(grid.classes)} classes",
        "sizes": _sizes(grid.sizes),
        "rows": rows,
        "charts": [{"detector": name, "svg": interval_bars(grid, name)} for name in detectors],
    }


def _sizes(sizes: Sequence[int]) -> str:
    """What the sizes of the classes mean for their values."""
    least, most = min(sizes), max(sizes)
    if not least:
        return ""
    span = f"{least} images" if least == most else f"{least} to {most} images"
    return f"Classes have {span}: one image is {percent_text(1 / least)} of the smallest, so see the intervals."


def _heat(detector: str, name: str, share: Estimate) -> Cell:
    title = fpr_text(detector, name, share)
    if math.isnan(share.value):
        return Cell("?", title=title)
    return Cell(f"{100 * share.value:.0f}", share.value, round(100 * share.value, 1), title=title)


def _histograms(results: Results, detectors: Sequence[str], datasets: Sequence[DatasetInfo]) -> list[dict[str, Any]]:
    images = {info.name: evaluated_images(results, info) for info in datasets}
    charts = [
        histogram(name, {key: rows[name].to_numpy() for key, rows in images.items()}, results.threshold(name))
        for name in detectors
    ]
    return [
        {"detector": chart.detector, "detail": f"threshold {chart.threshold:.5g}", "svg": score_histogram(chart)}
        for chart in charts
    ]


def _unit_tests(
    results: Results, info: DatasetInfo, detectors: Sequence[str], thumbnails: ThumbnailStyles
) -> dict[str, Any]:
    grid, limit = unit_tests.describe(results, info.name, detectors=detectors), results.settings.unit_test_limit
    examples = results.scores[results.scores["dataset"] == info.name].groupby("group")["key"].min()
    rows = []
    for name, n, shares in zip(grid.classes, grid.sizes, grid.cells, strict=True):
        cells = [_verdict(d, name, share, limit) for d, share in zip(detectors, shares, strict=True)]
        shot = thumbnails.classes(str(examples.get(info.class_names.index(name) if info.class_names else -1, "")))
        rows.append({"name": name, "n": n, "kind": "", "cells": cells, "shot": shot})
    failures = [Cell("?" if math.isnan(total.value) else f"{total.value:.0f}") for total in grid.totals]
    rows.append({"name": "failed", "n": f"of {len(rows)}", "kind": "sum", "cells": failures, "shot": ""})
    rule = f"A test fails if more than {share_text(limit)} of its images are accepted."
    return {"name": info.name, "rows": rows, "rule": rule}


def _verdict(detector: str, name: str, share: Estimate, limit: float) -> Cell:
    if math.isnan(share.value):
        return Cell("?", title=f"{detector}: undefined")
    failed = share.value > limit
    text = f"{'✗' if failed else '✓'}\u2009{100 * share.value:.0f}"
    return Cell(text, title=fpr_text(detector, name, share), kind="fail" if failed else "pass")


def _accepted(results: Results, detector: str, inside: DatasetInfo, thumbnails: ThumbnailStyles) -> dict[str, Any]:
    rows, total = results.accepted(detector)
    reference = np.sort(results.scores.loc[results.scores["dataset"] == inside.name, detector].to_numpy())
    images = []
    for row in rows.to_dict("records"):
        info = results.dataset(row["dataset"])
        group, prediction, score = int(row["group"]), int(row["prediction"]), float(row[detector])
        name = info.class_names[group] if 0 <= group < len(info.class_names) else info.name
        above = np.searchsorted(reference, row[detector], side="left") / max(len(reference), 1)
        images.append(
            {
                "path": readable(row["key"]),
                "name": name,
                "prediction": _class_name(inside, prediction),
                "detail": f"score {score:.4g}, above {100 * above:.0f} % of ID",
                "shot": thumbnails.classes(row["key"]),
            }
        )
    total_ood = sum(results.run["counts"].get(d.name, 0) for d in results.datasets if d.role is Role.OOD)
    detail = f"{detector} accepts {total} of {total_ood} OOD images" + (
        f"; the first {len(images)}:" if images else "."
    )
    return {"detector": detector, "detail": detail, "images": images}


def _class_name(inside: DatasetInfo, index: int) -> str:
    if index < 0:
        return ""
    return inside.class_names[index] if index < len(inside.class_names) else f"class {index}"


def _subtitle(results: Results, inside: DatasetInfo) -> str:
    others = [d.name for d in results.datasets if d.role not in NAMES_OF_LABELS]
    trained = [d.name for d in results.datasets if d.role is Role.TRAIN]
    text = (
        f"Out-of-distribution report. In-distribution: {inside.name}. Tested on: {', '.join(others) or 'nothing else'}."
    )
    return text + (f" Detectors fitted on: {', '.join(trained)}." if trained else "")
