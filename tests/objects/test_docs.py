"""The page on objects is executed, and names every metric of the table."""

import re
from pathlib import Path

import pytest

from oodlit.objects import ObjectSettings
from oodlit.objects.metrics.registry import box_metrics

PAGE = (Path(__file__).parents[2] / "docs" / "objects.md").read_text("utf-8")


def test_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"(<!-- not run.*?-->\n)?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    namespace: dict[str, object] = {"__name__": "objects"}
    for skip, body in blocks:
        code = compile(body, "objects.md", "exec")
        if not skip:
            exec(code, namespace)
    told = capsys.readouterr().out
    assert "normal" in told
    assert "mahalanobis" in told
    assert "0.5 0.5 0.5" in told
    assert "dismissed" in told  # the own network in a run


def test_every_metric_is_explained() -> None:
    named = set(re.findall(r"`([a-z0-9_]+)`", PAGE))
    assert set(box_metrics(ObjectSettings())) <= named
