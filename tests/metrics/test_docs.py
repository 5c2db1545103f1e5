"""The code on the page about metrics runs."""

import re
from pathlib import Path

import pytest
import pytorch_lightning as pl

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_code_of_the_page_on_metrics_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example with two data loaders in a custom `validation_step`."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    namespace: dict[str, object] = {"__name__": "metrics"}
    for body in blocks:
        exec(compile(body, "metrics.md", "exec"), namespace)
    trainer = namespace["trainer"]
    assert isinstance(trainer, pl.Trainer)
    assert set(trainer.callback_metrics) == {"auroc", "fpr95"}
    assert all(0 <= float(value) <= 1 for value in trainer.callback_metrics.values())
    assert "0.875 0.5" in capsys.readouterr().out
