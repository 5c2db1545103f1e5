"""docs/conformance.md is executed, and its table of clauses is complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from oodlit.testing import checks
from oodlit.testing.rules import clause_of

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
BLOCKS = re.findall(r'```python(?: title="(.+?)")?\n(.+?)```', PAGE.read_text(), flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files of the page, as a user has it."""
    for title, code in BLOCKS:
        if title:
            (tmp_path / title).write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, folder):
    environment_path = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PYTHONPATH": environment_path, "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_detector_has_about_twenty_lines():
    code = dict(BLOCKS)["nearest_mean.py"]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


def test_page_and_shell_command_run(folder):
    """One process for both: the checks then start their own processes once."""
    code = "\n".join(code for title, code in BLOCKS if not title)
    (folder / "page.py").write_text(
        f"{code}\n"
        "assert report.passed\n"
        "assert {'msp', 'nearest_mean'} <= set(table['detector'])\n"
        "from oodlit.cli import main\n"
        "raise SystemExit(main(['check', 'nearest_mean.NearestMean']))\n"
    )
    assert "$ oodlit check nearest_mean.NearestMean\n" in PAGE.read_text()
    done = run("page.py", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "NearestMean()" in done.stdout
    assert re.search(r"passed +check_two_processes", done.stdout)


def test_pytest_file(folder):
    # The two checks that start processes run in the test above.
    options = ["-q", "-p", "no:cacheprovider", "-k", "not saved and not two_processes"]
    done = run("-m", "pytest", *options, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d\d passed, 2 deselected", done.stdout, flags=re.MULTILINE), done.stdout


def test_table_of_clauses_is_complete():
    rows = re.findall(r"^\| ([a-z-]+) \| (.+) \| `(check_\w+)` \|$", PAGE.read_text(), flags=re.MULTILINE)
    assert rows == [(clause_of(c).id, clause_of(c).text, name) for name, c in checks().items()]
