"""A failed clause names file and line of the detector."""

import os
from pathlib import Path

import pytest

from oodlit.cli.main import main

SOURCE = '''
import functools

from oodlit.detectors import Reference, TrainFreeDetector

PAPER = Reference("A first detector", "A. Nonymous", "example", 2024, "https://example.org")


@functools.cache
def unrelated():
    return 1


class Crashes(TrainFreeDetector):
    needs = frozenset({"logits"})
    reference = PAPER

    def _score(self, outputs):
        return self.helper(outputs.require("logits"))

    def helper(self, logits):
        return logits.max(dim=1).values + missing_name  # the line


class OfBatch(TrainFreeDetector):
    needs = frozenset({"logits"})
    reference = PAPER

    def _score(self, outputs):
        logits = outputs.require("logits")
        return (logits - logits.mean(dim=0)).max(dim=1).values


class Inherits(Crashes):
    """Its own code is in the base."""
'''


@pytest.mark.parametrize(
    ("name", "place"),
    [("Crashes", "{line}, in helper"), ("Inherits", "{line}, in helper"), ("OfBatch", "{of_batch}, in class OfBatch")],
)
def test_a_failed_clause_names_file_and_line(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module = f"places_{name.lower()}"
    Path(f"{module}.py").write_text(SOURCE)
    lines = SOURCE.splitlines()
    numbers = {"line": 1 + next(i for i, text in enumerate(lines) if "the line" in text)}
    numbers["of_batch"] = 1 + lines.index("class OfBatch(TrainFreeDetector):")
    assert main(["check", f"{module}.{name}", "--only", "batch"]) == 1
    told = capsys.readouterr().out
    assert f"where: {module}.py:{place.format(**numbers)}" in told
    assert os.sep not in told.partition("where: ")[2].splitlines()[0]
