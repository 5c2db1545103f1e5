"""CONTRIBUTING.md and docs/extending.md name files, functions, and dependency groups that exist."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_table_of_a_run_names_functions_in_their_rooms() -> None:
    rows = re.findall(r"^\| [^|]+ \| (\w+) \| (`[^|]+) \|$", section("How a run works"), re.MULTILINE)
    rooms = [room for room, _ in rows]
    assert len(rooms) == len(set(rooms)) == 8
    assert (rooms[0], rooms[-1]) == ("cli", "results")
    for room, functions in rows:
        stations = re.findall(r"`(oodlit[\w.]*):([\w.]+)`", functions)
        assert stations, room
        for module, path in stations:
            found: object = importlib.import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
            assert callable(found), f"{module}:{path}"
            assert module.split(".")[1] == room


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/extending.md"])
def test_files_that_are_named_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"`((?:oodlit|tests|docs)/[\w/]+(?:\.\w+)?)`", text)
    assert len(named) > 8
    assert not [path for path in named if not (ROOT / path).exists()]


def test_one_command_installs_what_tests_and_lint_require() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m pip install -e '\.\[(.*)\]' (.*)$", TEXT, re.MULTILINE)
    extras, groups = command[0].split(","), re.findall(r"--group (\w+)", command[1])
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    assert f"extras = {', '.join(extras)}\n" in tox.split("[testenv:test]")[1]
    assert groups == ["test", "lint"]
    for name in [*extras, *groups]:
        assert re.search(rf"^{name} = \[", pyproject, re.MULTILINE), name
    listed = pyproject.split("\n[dependency-groups]\n")[1].split("\n[")[0].split("\ntest = [")[1]
    assert {"pytest", "pytest-timeout", "beartype", "mypy"} <= set(re.findall(r'"([\w-]+)', listed))


def test_pip_reads_the_group_of_the_tests_and_this_environment_has_all_of_it() -> None:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--disable-pip-version-check"]
    tried = subprocess.run([*command, "--group", "test"], cwd=ROOT, capture_output=True, text=True, check=False)
    if "no such option: --group" in tried.stderr or "No module named pip" in tried.stderr:
        pytest.skip("pip 25.1 or later is required, as CONTRIBUTING states")
    assert tried.returncode == 0, tried.stderr
    assert "Requirement already satisfied: pytest-timeout" in tried.stdout
