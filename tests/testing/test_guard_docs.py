"""The code on the page about the guard runs."""

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from oodlit import datamodules, detectors
from oodlit.results import Limit
from oodlit.results.limits import read_limits
from oodlit.testing import pytest_run

pytest_plugins = ["pytester"]
# A run of pytest within this one forgets what it imports: what is there before stays, and classes are the same ones.
LOADED = (pytest_run, datamodules.DigitsBenchmark, datamodules.MemorySource, detectors.MSP)
PAGE = Path(__file__).parents[2] / "docs" / "guard.md"
PLUGIN = () if any(e.value == "oodlit_pytest" for e in entry_points(group="pytest11")) else ("-p", "oodlit_pytest")


def _block(kind: str, after: str = "") -> str:
    text = PAGE.read_text("utf-8")
    (found, *_) = re.findall(rf"^```{kind}\n(.*?)^```$", text[text.index(after) :], re.MULTILINE | re.DOTALL)
    return str(found)


def test_limits_of_the_page_are_limits(tmp_path: Path) -> None:
    rows = re.findall(r"^\| `(.+? [<>]=? \S+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 7
    for row in rows:
        assert Limit.of(row).number >= 0
    (tmp_path / "limits.yaml").write_text(_block("text", "<!-- limits -->"))
    assert [limit.detector for limit in read_limits(tmp_path / "limits.yaml")] == ["mahalanobis", "msp"]


def test_the_test_of_the_page_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(_block("python"))
    pytester.runpytest(*PLUGIN, "-W", "ignore").assert_outcomes(passed=1)
