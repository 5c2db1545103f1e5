"""docs/conformance.md is executed, and its table of clauses is complete."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from oodlit.detectors import BackboneFacts, Detector, fit, statistics
from oodlit.detectors.contract.class_paths import snake_case
from oodlit.outputs import NEEDS, Outputs
from oodlit.testing import checks
from oodlit.testing.clauses import clause_of
from oodlit.testing.contract.invariances import INVARIANCES

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


@pytest.mark.integration
def test_page_and_shell_command_run(folder):
    """One process for both: the checks of both detectors then start their own processes once."""
    code = "\n".join(code for title, code in BLOCKS if not title)
    (folder / "page.py").write_text(
        "from oodlit.testing.clauses import peers\n"
        "from near_sample import NearSample\n"
        "from nearest_mean import NearestMean\n"
        "together = peers((NearestMean, NearSample))\n"
        "together.__enter__()\n"
        f"{code}\n"
        "assert report.passed\n"
        "assert {'msp', 'nearest_mean'} <= set(table['detector'])\n"
        "from oodlit.cli.main import main\n"
        "assert repr(NearSample.preset('nearest')) == 'NearSample(k=1)'\n"
        "assert NearSample.preset('paper', k=20).min_train == 20\n"
        "raise SystemExit(main(['check', 'nearest_mean.NearestMean', 'near_sample.NearSample']))\n"
    )
    assert "$ oodlit check nearest_mean.NearestMean\n" in PAGE.read_text()
    done = run("page.py", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "NearestMean()" in done.stdout
    assert "NearSample()" in done.stdout
    assert len(re.findall(r"passed +check_two_processes", done.stdout)) == 2


@pytest.mark.integration
def test_pytest_file(folder):
    # The two checks that start processes run in the test above.
    options = ["-q", "-p", "no:cacheprovider", "-k", "not saved and not two_processes"]
    done = run("-m", "pytest", *options, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d\d passed, 3 deselected, 1 xfailed", done.stdout, flags=re.MULTILINE), done.stdout


def test_note_of_the_example_is_kept():
    namespace = {"__name__": "near_sample"}
    exec(dict(BLOCKS)["near_sample.py"], namespace)
    detector = namespace["NearSample"](k=1)
    fit([detector], [Outputs(features=torch.ones(3, 2))])
    assert detector.notes == ("2 of 3 training images repeat the features of another one",)
    assert "has 1" in detector.why_not(BackboneFacts(width=1, num_train=9))


def test_declarations_are_explained():
    ours = [kind for kind in Detector.__mro__ if kind.__module__.startswith("oodlit")]
    declared = {name for kind in ours for name in inspect.get_annotations(kind) if not name.startswith("_")}
    named = declared - {"fitted_on", "fit_id"}  # set by a fit
    assert named == set(re.findall(r"^\| `([a-z_]+)` \|", section("# Write a detector"), flags=re.MULTILINE))
    for need in NEEDS:
        assert f"`{need}`" in section("# Write a detector")
    keys = re.findall(r"`(\w+)` -> `(\w+)`", section("# Write a detector"))
    assert len(keys) == 3
    assert [(kind, snake_case(kind)) for kind, _ in keys] == keys


def test_table_of_statistics_is_complete():
    exported = {n: k for n in statistics.__all__ if isinstance(k := getattr(statistics, n), type)}
    kinds = {n: k for n, k in exported.items() if issubclass(k, statistics.Statistic) and k is not statistics.Statistic}
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", section("## Statistics"), flags=re.MULTILINE)
    assert {name for name, _ in rows} == set(kinds)
    for name, text in rows:
        named = set(re.findall(r"`(\w+)`", text)) - {"sample_fields"}
        own = {a for a in vars(kinds[name]) if isinstance(vars(kinds[name])[a], property)} - {"num_samples"}
        assert own <= named, f"{name}: {own - named}"
        assert all(hasattr(kinds[name], a) for a in named), f"{name}: {named}"


def test_table_of_invariances_is_complete():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section("## Invariances"), flags=re.MULTILINE)
    assert dict(rows) == INVARIANCES


def section(title):
    """The text below a heading, up to the next."""
    return re.split(r"^## ", PAGE.read_text().split(title + "\n" if title[1] == "#" else title)[1], flags=re.MULTILINE)[
        0
    ]


def test_table_of_clauses_is_complete():
    rows = re.findall(r"^\| ([a-z-]+) \| (.+) \| `(check_\w+)` \|$", PAGE.read_text(), flags=re.MULTILINE)
    assert rows == [(clause_of(c).id, clause_of(c).text, name) for name, c in checks().items()]
