"""The tile of the unit tests where some of them have no images."""

import dataclasses
from pathlib import Path

import numpy as np

from oodlit.report import write_report
from tests.report.problems import make_results


def test_unknown_failures_are_no_number(tmp_path: Path) -> None:
    results = make_results(bootstrap=0)
    table = results.table.copy()
    is_count = table["metric"] == "unit_test_failures"
    assert is_count.any()
    table.loc[is_count, "value"] = np.nan
    write_report({"run": dataclasses.replace(results, table=table)}, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "some tests, or the ID set, have no images" in text
    assert "the best fails" not in text
