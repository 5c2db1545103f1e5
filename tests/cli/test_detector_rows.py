"""`oodlit list detectors` shows what the classes say, and needs no torch for it."""

import json
import subprocess
import sys

import pytest
from rich.console import Console

from oodlit.cli.detector_rows import FILE, detector_rows, text
from oodlit.cli.listing import listing
from oodlit.cli.main import main
from oodlit.detectors import detectors


def test_the_rows_are_current() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "stale; run: python docs/site/detector_pages.py"
    assert {row["key"] for row in json.loads(text())["rows"]} == set(detectors())


@pytest.mark.parametrize("verbose", [[], ["--verbose"]])
def test_the_list_needs_no_torch(verbose: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys\n"
        "from oodlit.cli.main import main\n"
        f"assert main(['list', 'detectors', *{verbose!r}]) == 0\n"
        "sys.exit(','.join(m for m in ('torch', 'numpy', 'pandas') if m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "\n"
    assert main(["list", "detectors", *verbose]) == 0
    assert done.stdout == capsys.readouterr().out


def test_with_other_names_the_list_is_rebuilt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody has added a detector: what was written down does not know it."""
    row = next(detector_rows()) | {"key": "newcomer"}
    monkeypatch.setattr("oodlit.detectors.__all__", [])
    monkeypatch.setattr("oodlit.cli.detector_rows.detector_rows", lambda: iter([row]))
    assert main(["list", "detectors"]) == 0
    shown = capsys.readouterr().out
    assert "newcomer" in shown
    assert "1 detector" in shown


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_every_detector_has_one_line_in_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("oodlit.cli.console.console", lambda: Console(width=width))
    listing("detectors")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    for kind in detectors().values():
        names = [kind.key(), kind.__name__] if width > 60 else [kind.key()]
        assert sum(line.split()[: len(names)] == names for line in lines) == 1
    headings = len({row["group"] for row in detector_rows()})
    assert len(lines) == 1 + headings + len(detectors()) + 1
