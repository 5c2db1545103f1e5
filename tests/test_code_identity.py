"""Custom code is the same if no file of its project differs."""

import subprocess
import sys
from pathlib import Path

import pytest

from oodlit.base.code_identity import code_digest
from oodlit.detectors import KNN, MSP

PROJECT = {
    "mine/__init__.py": "",
    "mine/detector.py": "from mine.formula import score\nimport settings\n\nclass Mine:\n    score = score\n",
    "mine/formula.py": "def score(x):\n    from mine import constants\n    return x * constants.SCALE\n",
    "mine/constants.py": "SCALE = 2\n",
    "settings.py": "from mine.unused import nothing\n",
    "mine/unused.py": "nothing = None\n",
    "mine/other.py": "unrelated = 1\n",
}
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from mine.detector import Mine
from oodlit.base.code_identity import code_digest
before = set(sys.modules)
print(code_digest([Mine()]))
assert "mine.constants" not in sys.modules
"""


def write(folder: Path, changed: str = "") -> Path:
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "# changed\n" * (name == changed))
    return folder


def digest(folder: Path) -> str:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    return run.stdout.strip()


def test_every_imported_file_of_the_project_counts(tmp_path):
    digests = {name: digest(write(tmp_path / str(place), name)) for place, name in enumerate(["", *PROJECT])}
    unchanged = digests.pop("")
    assert unchanged
    assert {name for name, found in digests.items() if found == unchanged} == {"mine/other.py"}


def test_code_of_the_package_has_a_version():
    assert code_digest([MSP, KNN(k=3), len, dict, Path]) == ""


def functions(scale: int):
    return lambda x: x * scale, lambda x: x + scale


def test_functions_of_one_name_differ_by_what_they_do():
    digests = [code_digest([function]) for scale in (1, 2) for function in functions(scale)]
    assert len(set(digests)) == 4
    assert digests == [code_digest([function]) for scale in (1, 2) for function in functions(scale)]


@pytest.mark.parametrize("formula", ["x + 1", "x + 2", "x in {'a', 'b', 'c'}"])
def test_code_without_a_file_is_identified_by_what_it_does(formula):
    text = f"class Own:\n    def score(self, x):\n        return {formula}\n"
    spaces = [{"__name__": "console"} for _ in range(2)]
    for space in spaces:
        exec(text, space)
    one, other = (code_digest([space["Own"]]) for space in spaces)
    assert one == other != ""
    other_space = {"__name__": "console"}
    exec(text.replace("return x", "return -x"), other_space)
    assert code_digest([other_space["Own"]]) != one
