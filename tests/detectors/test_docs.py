"""The page on detectors is complete, current and runs."""

import re
from pathlib import Path

import pytest

from oodlit.detectors import Detector, detectors

PAGE = Path(__file__).parents[2] / "docs" / "detectors.md"


def row(kind: type[Detector]) -> str:
    """Its line in the table."""
    assert kind.__doc__ is not None
    source = f"[{kind.reference.authors}, {kind.reference.venue} {kind.reference.year}]({kind.reference.url})"
    cells = (
        f"[`{kind.__name__}`](detectors/{kind.key()}.md)",
        kind.__doc__.split("\n")[0].rstrip(".").replace("|", "\\|"),
        ", ".join(sorted(kind.needs)),
        ", ".join(s.__name__ for s in kind.statistics) or "-",
        ", ".join(f"`{name}`" for name in kind.presets) or "-",
        source,
    )
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("kind", detectors().values(), ids=detectors())
def test_the_table_is_current(kind: type[Detector]) -> None:
    assert row(kind) in PAGE.read_text().splitlines()


def test_nothing_else_is_in_the_table() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| [`")]
    assert len(lines) == len(detectors())
    assert "oodlit contains 54 detectors" in PAGE.read_text()
    assert len(detectors()) == 54


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_code_runs(block: str) -> None:
    exec(compile(block, str(PAGE), "exec"), {})
