"""A new detector costs one file in the folder of its family, and one line: everything else finds it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import oodlit

FILE = '''"""Gap between the two largest logits."""

from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from oodlit.detectors.contract import Reference, TrainFreeDetector
from oodlit.outputs import Outputs


@final
class LogitGap(TrainFreeDetector):
    """S = f (z_1 - z_2), the largest logits."""

    needs = frozenset({"logits"})
    invariances = frozenset({"logit_shift", "class_permutation"})
    presets: ClassVar = {"twice": {"factor": 2.0}}
    reference = Reference("An addition", "A. Nonymous", "example", 2026, "https://example.org")

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def _score(self, outputs: Outputs) -> Float[Tensor, " batch"]:
        first, second = outputs.require("logits").topk(2, dim=1).values.T
        return self.factor * (first - second)
'''
LINE = "    from oodlit.detectors.logits.logit_gap import LogitGap as LogitGap\n"

PROBE = """
import oodlit.detectors as d
from oodlit.detectors.contract.every import every_detector
from oodlit.cli.main import main
from oodlit.testing import check_detector
from tests.testing.test_all_detectors import SWEPT

kind = d.detectors()["logit_gap"]
assert kind is d.LogitGap is d.find("LogitGap") is d.find("logit-gap")
assert d.presets()["logit_gap"] == {"twice": {"factor": 2.0}}
assert repr(kind.preset("twice")) == "LogitGap(factor=2.0)"
assert [repr(f()) for f in SWEPT if isinstance(f(), kind)] == ["LogitGap()", "LogitGap(factor=2.0)"]
assert "logit_gap" in every_detector()[0]
check_detector(kind, examples=2, only="score").raise_if_failed()
raise SystemExit(main(["list", "detectors"]))
"""


@pytest.mark.integration
def test_one_file_and_one_line(tmp_path: Path) -> None:
    """In a copy of the package, in a separate process."""
    source = Path(oodlit.__file__).parent
    package = tmp_path / "oodlit"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "detectors" / "logits" / "logit_gap.py").write_text(FILE)
    exports = package / "detectors" / "__init__.py"
    last = "    from oodlit.detectors.logits.max_logit"
    assert exports.read_text().count(last) == 1
    exports.write_text(exports.read_text().replace(last, LINE + last))
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "logit_gap" in done.stdout
