"""CONTRIBUTING.md speaks of what is there: the walk from the command line to the table, and the cost of an addition."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_walk_names_functions_that_exist_and_describes_no_room_twice() -> None:
    walk = section("From `oodlit evaluate` to a row of `table.csv`")
    stations = re.findall(r"`(oodlit[\w.]*):([\w.]+)`", walk)
    assert len(stations) >= 20
    rooms = []
    for module, path in stations:
        found: object = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        assert callable(found), f"{module}:{path}"
        rooms.append(module.split(".")[1])
    entered = [room for room, before in zip(rooms, ["", *rooms], strict=False) if room not in (before, "outputs")]
    assert len(entered) == len(set(entered)) == 8, entered
    assert (entered[0], entered[-1]) == ("cli", "results")


def test_files_that_are_named_exist() -> None:
    named = re.findall(r"`((?:oodlit|tests|docs)/[\w/]+(?:\.\w+)?)`", TEXT)
    assert len(named) > 20
    missing = [name for name in named if not (ROOT / name).exists() and not list(ROOT.glob(f"{name}*"))]
    assert not missing
