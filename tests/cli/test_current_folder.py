"""Modules of the current folder run where a dotted path names them, and nowhere else."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oodlit import OODModule
from oodlit.base.code_identity import code_digest
from oodlit.base.current_folder import import_module, search_current_folder, shared_with_processes
from oodlit.base.lazy import import_object
from oodlit.errors import InvalidArgumentError, UnknownNameError

ROOT = Path(__file__).parents[2]
NAMED = """
import beside_here
import installed_there

WIDTH = beside_here.WIDTH

def later():
    import late_here
    return late_here.WIDTH
"""
MODULES = {
    "named_here": NAMED,
    "beside_here": "WIDTH = 3\n",
    "late_here": "WIDTH = 4\n",
    "package_here/__init__": "",
    "package_here/part": "WIDTH = 5\n",
    "optional_here": "raise SystemExit('ran')\n",
    "there/installed_there": "try:\n    import optional_here\nexcept ImportError:\n    pass\n",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in MODULES.items():
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("oodlit.base.current_folder._FINDER.folders", {})
    monkeypatch.setattr(sys, "path", [*(entry for entry in sys.path if entry), str(tmp_path / "there")])
    yield
    for name in MODULES:
        sys.modules.pop(name.partition("/")[0], None)
        sys.modules.pop(name.rpartition("/")[2], None)


def test_a_named_module_finds_its_neighbors_and_packages_find_nothing(tmp_path: Path) -> None:
    search_current_folder()
    before = list(sys.path)
    named = import_module("named_here")
    assert (named.WIDTH, named.later()) == (3, 4)
    assert import_object("package_here.part.WIDTH", "a width") == 5
    assert sys.path == before
    with pytest.raises(ModuleNotFoundError):
        __import__("optional_here")
    with shared_with_processes() as folders:
        assert folders == [str(tmp_path)] == sys.path[-1:]
    assert sys.path == before


def test_installed_modules_come_first() -> None:
    Path("installed_there.py").write_text("raise SystemExit('ran')\n")
    search_current_folder()
    assert str(import_module("installed_there").__file__).endswith("there/installed_there.py")


def test_a_module_of_another_folder_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search_current_folder()
    assert import_module("beside_here").WIDTH == 3
    del sys.modules["beside_here"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "beside_here.py").write_text("WIDTH = 30\n")
    monkeypatch.chdir(tmp_path / "other")
    assert import_module("beside_here").WIDTH == 30


def test_what_is_missing_is_an_error() -> None:
    search_current_folder()
    for path in ("nowhere_here.Net", "package_here.nothing.Net", "beside_here.Net"):
        with pytest.raises(InvalidArgumentError, match=f"{path!r} cannot be imported"):
            import_object(path, repr(path))


def test_late_imports_are_part_of_the_code() -> None:
    search_current_folder()
    named = import_module("named_here")
    sys.modules.pop("late_here", None)
    before = code_digest([named.later])
    Path("late_here.py").write_text("WIDTH = 6\n")
    assert code_digest([named.later]) != before


def test_late_imports_of_late_imports_are_part_of_the_code() -> None:
    Path("first_of_four.py").write_text("def later(x):\n    import second_of_four\n    return second_of_four.f(x)\n")
    Path("second_of_four.py").write_text("def f(x):\n    from third_of_four import g\n    return g(x)\n")
    Path("third_of_four.py").write_text("def g(x):\n    import fourth_of_four as h\n    return h.SCALE * x\n")
    Path("fourth_of_four.py").write_text("SCALE = 3\n")
    search_current_folder()
    function = import_module("first_of_four").later
    before = code_digest([function])
    for name in ("third_of_four", "fourth_of_four"):
        with Path(f"{name}.py").open("a") as file:
            file.write("# changed\n")
        changed = code_digest([function])
        assert changed != before
        before = changed
    assert function(2) == 6
    assert code_digest([function]) == before


def test_networks_are_found_by_dotted_path() -> None:
    Path("package_here", "net.py").write_text(
        "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(3, 2)\n"
    )
    Path("broken_here.py").write_text("import missing_package\n")
    Path("damaged_here.py").write_text("def (:\n")
    search_current_folder()
    assert OODModule("package_here.net.Net").name == "package_here.net.Net"
    for name, match in (("broken", "No module named 'missing_package'"), ("damaged", "invalid syntax")):
        with pytest.raises(InvalidArgumentError, match=f"'{name}_here.Net' cannot be imported: {match}"):
            OODModule(f"{name}_here.Net")
    with pytest.raises(UnknownNameError, match="unknown backbone"):
        OODModule("nowhere_here.Net")


DECOYS = ("bottleneck", "numexpr", "IPython", "opt_einsum", "sklearn", "tensorboard", "xarray", "yaml", "rich", "torch")


STARTS = {
    "module": ["-m", "oodlit"],
    "script": ["-c", "import sys; sys.path.remove(''); from oodlit.cli.main import main; sys.exit(main())"],
}


@pytest.mark.integration
@pytest.mark.parametrize("start", STARTS)
def test_decoys_in_the_folder_do_not_run(tmp_path: Path, start: str) -> None:
    for name in DECOYS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} ran')\n")
    (tmp_path / "own_here.py").write_text("import pandas\nfrom oodlit.detectors import MSP\nclass Mine(MSP): ...\n")
    words = ["evaluate", "--backbone", "resnet50", "--data", "DigitsBenchmark", "--detectors=[own_here.Mine]"]
    ended = subprocess.run(
        [sys.executable, *STARTS[start], *words, "--print_config"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "own_here.Mine" in ended.stdout
