"""The examples on the page about backbones work."""

import re
from pathlib import Path

import oodlit.base.fingerprint

PAGE = Path(__file__).parents[2] / "docs" / "backbones.md"


def test_the_code_runs():
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S):
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert namespace["module"].head_layers == ("3",)


def test_the_tolerances_are_those_of_the_code():
    text = PAGE.read_text(encoding="utf-8")
    known = oodlit.base.fingerprint
    for number in (*known.TOLERANCES.values(), known.HALF_TOLERANCE, known.HALF_SIZE_TOLERANCE):
        assert str(number) in text
