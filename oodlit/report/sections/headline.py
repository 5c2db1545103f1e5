"""The headline: every detector against FPR and AUROC of every set."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from oodlit.report.headline import Column, Lookup, scored_images
from oodlit.report.section import Section, Shown
from oodlit.results import DatasetInfo, Results
from oodlit.results.names import MODEL
from oodlit.roles import Role


def sections(shown: Shown) -> Iterator[Section]:
    """One, of every run."""
    content = _headline(shown.results, shown.lookup, shown.columns, shown.detectors)
    yield Section("headline", "Which detector refuses what it should?", "detectors", "headline.html", content)


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
