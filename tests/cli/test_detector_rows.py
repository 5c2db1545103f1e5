"""`oodlit list detectors` shows what the classes say, and needs no torch for it."""

import json
import subprocess
import sys

import pytest
from rich.console import Console

from oodlit.cli.detector_rows import FILE, detector_rows, text
from oodlit.cli.listing import listing
from oodlit.cli.main import main
from oodlit.detectors import detectors, overview


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


def test_tuned_presets_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """A setting that was chosen on OOD data makes numbers look better than a new kind of OOD data will have them."""
    assert main(["list", "detectors", "--verbose"]) == 0
    text = capsys.readouterr().out
    for kind in detectors().values():
        lines = text.split(f"\n{kind.key()}\n")[1].split("\n")
        for name in kind.presets:
            mark = " (tuned on OOD data)" if name in kind.tuned_presets else ""
            assert any(line.startswith(f"  preset {name}{mark}: ") for line in lines), (kind, name)
    assert "preset imagenet-resnet50 (tuned on OOD data): strength=2.4, bins=100, softmax_weight=0.25, " in text
    assert "preset dice: threshold=1.0, then=DICE(percentile=10.0)\n" in text
    assert "  settings: spread=1.05, then=None (settings of preset imagenet)\n" in text
    assert "steepness=None, images=1000 (settings of preset imagenet-resnet50, except steepness)\n" in text


def test_detectors_are_listed_by_what_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    """Every detector stands under its group, with its cost."""
    assert main(["list", "detectors"]) == 0
    groups: dict[str, list[list[str]]] = {}
    for line in capsys.readouterr().out.splitlines()[1:-1]:
        if line.startswith("  "):
            groups[[*groups][-1]].append(line.split(maxsplit=2))
        else:
            groups[line.strip()] = []
    assert next(iter(groups)) == "logits, no fit"
    assert [*groups][-1].startswith("images")
    shown = {row[0]: (group, row[2]) for group, rows in groups.items() for row in rows}
    assert shown.keys() == detectors().keys()
    for key, kind in detectors().items():
        about = overview(kind())
        assert shown[key][0] == about.group
        assert shown[key][1].split("  ")[0] == about.cost
        assert ("  default  " in shown[key][1]) is bool(about.tuned)
