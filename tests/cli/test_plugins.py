"""Plug-ins: what an installed package adds, and what a broken one does not disturb."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oodlit.base import plugins as base
from oodlit.cli.main import main
from oodlit.datamodules import descriptions
from oodlit.datamodules.benchmarks.tables import benchmark_plugins, benchmarks
from oodlit.datamodules.sets import dataset_plugins
from oodlit.detectors import detectors
from oodlit.detectors.contract.registry import detector_plugins
from oodlit.results.published import published_plugins, published_tables

SOURCE = """
from pathlib import PurePosixPath

from oodlit.datamodules import DatasetDescription, DigitsBenchmark
from oodlit.detectors import MSP, Reference, TrainFreeDetector
from oodlit.datamodules.benchmarks.tables import NINCO as NINCO_BENCHMARK
from oodlit.results.published import NINCO
from oodlit.roles import Role
import dataclasses


def place(path: PurePosixPath):
    return None


class Mine(TrainFreeDetector):
    '''S = 0.'''

    needs = frozenset({"logits"})
    reference = Reference("t", "a", "v", 2026, "https://example.org")

    def _score(self, outputs):
        return outputs.max_logits


class Knn(Mine):
    '''A name of oodlit.'''


class Unset(Mine):
    '''Requires a setting.'''

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k


class MyDigits(DigitsBenchmark):
    '''My digits.'''


my_set = DatasetDescription("my_set", "Mine", Role.OOD, "<file>", place)
ninco = DatasetDescription("ninco", "Not NINCO", Role.OOD, "<file>", place)
mine = dataclasses.replace(NINCO_BENCHMARK, name="mine")
my_table = dataclasses.replace(NINCO, name="my_table")
number = 3
"""
ENTRIES = """
[oodlit.detectors]
Mine = thing:Mine
Knn = thing:Knn
Unset = thing:Unset
Other = thing:Mine
Number = thing:number
Nowhere = no_such_module:Nowhere
[oodlit.datasets]
my_set = thing:my_set
ninco = thing:ninco
[oodlit.benchmarks]
MyDigits = thing:MyDigits
Whatever = thing:Mine
mine = thing:mine
[oodlit.published]
my_table = thing:my_table
"""
CACHES: list[Callable[[], None]] = [base.plugins.cache_clear, base.working.cache_clear, descriptions.cache_clear]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `thing` on the path, as pip leaves it."""
    (tmp_path / "thing.py").write_text(SOURCE)
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    for clear in CACHES:
        clear()
    yield
    sys.modules.pop("thing", None)
    for clear in CACHES:
        clear()


def test_items_are_found_by_name(package: None) -> None:
    with pytest.warns(base.PluginWarning) as warned:
        found = detectors()
    oodlit_detectors = [kind for kind in found.values() if kind.__module__.startswith("oodlit.")]
    assert sum(one.category is base.PluginWarning for one in warned) == 5
    assert found["mine"].__name__ == "Mine"
    assert detectors() == found  # without another warning
    assert len(found) == len(oodlit_detectors) + 1
    with pytest.warns(base.PluginWarning, match="oodlit already uses this name"):
        assert descriptions()["my_set"].title == "Mine"
    assert descriptions()["ninco"].title != "Not NINCO"
    with pytest.warns(base.PluginWarning, match="expected a BenchmarkDescription or a subclass of oodlit"):
        assert "mine" in benchmarks()
    assert "my_table" in published_tables()
    assert published_plugins().packages == {"my_table": "thing"}
    assert (*dataset_plugins().items, *benchmark_plugins().items) == ("my_set", "MyDigits", "mine")


def test_every_problem_is_one_sentence_that_names_the_package(package: None) -> None:
    problems = detector_plugins().problems
    start = {name: f"plug-in {name!r} of thing (oodlit.detectors): " for name in problems}
    assert {name: text.removeprefix(start[name]) for name, text in problems.items()} == {
        "Knn": "oodlit already uses this name; choose another name",
        "Unset": "expected a default for every setting of a plug-in, got none for k",
        "Other": "expected the entry point to have the name of its item, 'Mine'; rename the entry point",
        "Number": "expected a subclass of oodlit.detectors.Detector without abstract methods, got 3",
        "Nowhere": "cannot load no_such_module:Nowhere (ModuleNotFoundError: No module named 'no_such_module')",
    }


def test_two_packages_with_one_name(package: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "zebra" / "zebra-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zebra\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[oodlit.datasets]\nmy_set = thing:my_set\n")
    monkeypatch.syspath_prepend(tmp_path / "zebra")
    found = dataset_plugins()
    assert len(found.items) == 1
    assert any("already has a plug-in of this name" in text for text in found.problems.values())


SCRIPT = """
import sys
from oodlit.cli.main import main

for words in {calls}:
    print("$", *words, flush=True)
    print("exit", main(words), flush=True)
"""


@pytest.mark.integration
def test_a_package_from_the_template_is_installed_and_used(tmp_path: Path) -> None:
    """Written by the command, installed by pip, then found by name; its own tests pass."""
    folder, target = tmp_path / "new", tmp_path / "installed"
    assert main(["new", "detector", "TopGap", "--out", str(folder)]) == 0
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", target, folder], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")])}
    (tmp_path / "run.yaml").write_text("backbone: resnet18\ndata: DigitsBenchmark\ndetectors: [TopGap, MSP]\n")
    calls = [
        ["list", "detectors"],
        ["evaluate", "--config", "run.yaml", "--print_config"],
        ["check", "--plugins", "--only", "check_half"],
    ]
    code = SCRIPT.format(calls=calls)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert done.stdout.count("exit 0") == 3, done.stdout + done.stderr
    assert "plug-in oodlit-top-gap" in done.stdout
    assert f"{len(detectors()) + 1} detectors" in done.stdout
    assert "class_path: oodlit_top_gap.TopGap" in done.stdout
    assert "oodlit.detectors: TopGap (from oodlit-top-gap)" in done.stdout
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "tests"]
    done = subprocess.run(pytest_, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "the reference is still that of the template" in done.stdout
    readme = (folder / "README.md").read_text()
    assert "$" not in readme.replace("```", "")
    for file in ("oodlit_top_gap.py", "tests/test_oodlit_top_gap.py", "docs/oodlit_top_gap.md", "pyproject.toml"):
        assert f"`{file}`" in readme
        assert (folder / file).is_file()
    fitted = tmp_path / "fitted"
    assert main(["new", "detector", "TopGap", "--fitted", "--out", str(fitted)]) == 0
    assert "--fitted" in readme
    assert "the mean of each class" in (fitted / "docs" / "oodlit_top_gap.md").read_text()
    module, tests = ((fitted / name).read_text() for name in ("oodlit_top_gap.py", "tests/test_oodlit_top_gap.py"))
    (folder / "oodlit_top_gap.py").write_text(module.replace("Title of the paper", "Nearest mean"))
    fast = [*pytest_, "-k", "formula or reference"]
    done = subprocess.run(fast, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout  # the formula was replaced, but not its test
    (folder / "tests" / "test_oodlit_top_gap.py").write_text(tests)
    done = subprocess.run(pytest_, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert "3 passed" in done.stdout, done.stdout
    assert {path.name for path in folder.glob("*/*.md")} == {"oodlit_top_gap.md"}


def test_names_of_new_detectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("my-score", "expected the name of a class"), ("Knn", "oodlit already has a detector 'knn'")):
        assert main(["new", "detector", name, "--out", str(tmp_path / "x")]) == 2
        assert text in capsys.readouterr().err
    assert main(["new", "detector", "TopGap", "--out", str(tmp_path)]) == 2
    assert "already exists; choose another folder with --out" in capsys.readouterr().err


def test_what_a_broken_plug_in_says_where_it_is_used(
    package: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from oodlit.configuration.lookup import short_names

    short_names.cache_clear()
    words = ["evaluate", "--backbone", "resnet18", "--data", "MyDigits", "--print_config", "--detectors"]
    assert main([*words, "[Mine]"]) == 0
    assert "class_path: thing.Mine" in capsys.readouterr().out
    assert main([*words, "[Nowhere]"]) == 2
    assert "cannot load no_such_module:Nowhere" in capsys.readouterr().err
    short_names.cache_clear()


def test_the_problems_make_the_check_fail(package: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--plugins", "--only", "check_half"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("FAILED plug-in") == 7
    assert "oodlit.datasets: my_set (from thing)" in shown
    assert main(["check"]) == 2
    assert "missing required argument: DETECTORS or --plugins" in capsys.readouterr().err
