"""Unit tests: synthetic images that no detector should accept."""

import math
from collections.abc import Iterator
from typing import Any

from oodlit.base.roles import Role
from oodlit.report.headline import Cell, fpr_text, share_text
from oodlit.report.section import Section, Shown
from oodlit.results import DatasetInfo
from oodlit.results.plots import unit_tests
from oodlit.results.plots.charts import Estimate


def sections(shown: Shown) -> Iterator[Section]:
    """Yield one section for each set of unit tests."""
    for number, info in enumerate(shown.sets(Role.UNIT_TEST)):
        if shown.detectors:
            content = _unit_tests(shown, info)
            yield Section(f"tests{number}", f"{info.name}: which tests fail?", info.name, "unit_tests.html", content)


def _unit_tests(shown: Shown, info: DatasetInfo) -> dict[str, Any]:
    results, detectors = shown.results, shown.detectors
    grid, limit = unit_tests.describe(results, info.name, detectors=detectors), results.settings.unit_test_limit
    examples = results.scores[results.scores["dataset"] == info.name].groupby("group")["key"].min()
    rows = []
    for name, n, shares in zip(grid.classes, grid.sizes, grid.cells, strict=True):
        cells = [_verdict(d, name, share, limit) for d, share in zip(detectors, shares, strict=True)]
        shot = shown.thumbnails.classes(str(examples.get(info.class_names.index(name) if info.class_names else -1, "")))
        rows.append({"name": name, "n": n, "kind": "", "cells": cells, "shot": shot})
    failures = [Cell("?" if math.isnan(total.value) else f"{total.value:.0f}") for total in grid.totals]
    rows.append({"name": "failed", "n": f"of {len(rows)}", "kind": "sum", "cells": failures, "shot": ""})
    return {"rows": rows, "rule": f"A test fails if more than {share_text(limit)} of its images are accepted."}


def _verdict(detector: str, name: str, share: Estimate, limit: float) -> Cell:
    if math.isnan(share.value):
        return Cell("?", title=f"{detector}: undefined")
    failed = share.value > limit
    return Cell(f"{100 * share.value:.0f}", title=fpr_text(detector, name, share), kind="fail" if failed else "pass")
