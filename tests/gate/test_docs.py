"""The code on the page about gates runs."""

import os
import re
import warnings
from pathlib import Path

import pytest

from tests.callbacks.processes import check_ended, run_function

PAGE = Path(__file__).parents[2] / "docs" / "gate.md"


def run_page(code: str, folder: Path) -> None:
    os.chdir(folder)
    warnings.simplefilter("default")
    exec(compile(code, "gate.md", "exec"), {"__name__": "__main__"})


@pytest.mark.integration
def test_code_of_the_page_runs(tmp_path: Path) -> None:
    """In another process: the type checks of the test suite do not work while tracing."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    done = run_function(run_page, "\n".join(blocks), tmp_path, folder=tmp_path / "logs", each=[{}], timeout=300)
    check_ended(done)
    assert (tmp_path / "gate" / "weights.safetensors").is_file()
    assert (tmp_path / "gate.pt2").is_file()
    assert (tmp_path / "gate.onnx").is_file()
    assert "refused: " in done[0].stdout
    assert "refused 10 of 10 images: 100.0 %" in done[0].stdout
    assert re.search("RefusalWarning: .*refused 10 of 10", done[0].stderr)
