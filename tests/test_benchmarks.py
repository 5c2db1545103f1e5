"""The programs in benchmarks import what exists."""

from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
PROGRAMS = sorted(file.stem for file in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_benchmark_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))  # as for `python benchmarks/NAME.py`
    import_module(f"benchmarks.{name}")
