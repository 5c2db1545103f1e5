"""The page on gates is real."""

import re
import warnings
from pathlib import Path

import pytest

from oodlit.gate import RefusalWarning
from oodlit.results import FindingWarning

PAGE = Path(__file__).parents[2] / "docs" / "gate.md"


def test_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    namespace: dict[str, object] = {"__name__": "gate"}
    for body in blocks:
        with warnings.catch_warnings():
            for kind in (FindingWarning, RefusalWarning):
                warnings.simplefilter("ignore", kind)
            exec(compile(body, "gate.md", "exec"), namespace)
    assert (tmp_path / "gate" / "weights.safetensors").is_file()
    assert (tmp_path / "gate.pt2").is_file()
    text = capsys.readouterr().out
    assert "refused: " in text
    assert "refused 10 of 10 images: 100.0 %" in text
