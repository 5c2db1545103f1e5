"""The code on the page about loggers runs."""

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

PAGE = Path(__file__).parents[2] / "docs" / "loggers.md"


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:.*undefined .NaN.", "ignore::oodlit.results.FindingWarning")
def test_code_of_the_page_on_loggers_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    namespace: dict[str, object] = {"__name__": "loggers"}
    for body in blocks:
        exec(compile(body, "loggers.md", "exec"), namespace)
    folder = tmp_path / "logs" / "lightning_logs" / "version_0"
    assert pd.read_csv(folder / "summary.csv")["detector"].tolist() == ["msp", "mahalanobis"]
    settings = yaml.safe_load((folder / "hparams.yaml").read_text())
    for name in ("detectors/mahalanobis/class", "evaluation/tpr", "trainer/precision", "versions/torch"):
        assert name in settings
    figures = {file.relative_to(folder).as_posix() for file in folder.rglob("*.png")}
    assert "figures/unit_tests/unit_tests.png" in figures
    assert {Path(name).parts[1] for name in figures} == {"roc", "unit_tests"}
    told = capsys.readouterr().out
    listed = re.search(r"^# (\[.*\])$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert listed is not None
    assert listed[1] in told
    assert "| detector |" in told
