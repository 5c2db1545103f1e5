"""The page on gates is real."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "gate.md"


def test_code_of_the_page_runs(tmp_path: Path) -> None:
    """In a process of its own: the types that the suite checks are not those of a trace."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    (tmp_path / "page.py").write_text("\n".join(blocks))
    environment = {**os.environ, "PYTHONPATH": str(PAGE.parents[1])}
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "gate" / "weights.safetensors").is_file()
    assert (tmp_path / "gate.pt2").is_file()
    assert (tmp_path / "gate.onnx").is_file()
    assert "refused: " in done.stdout
    assert "refused 10 of 10 images: 100.0 %" in done.stdout
    assert "RefusalWarning: refused 10 of 10" in done.stderr
