"""What is public is listed, and what is listed is documented."""

import importlib
import inspect
from pathlib import Path

import pytest

PACKAGES = (
    "oodlit",
    "oodlit.callbacks",
    "oodlit.datamodules",
    "oodlit.datamodules.shards",
    "oodlit.datamodules.generated.unit_test_source",
    "oodlit.datamodules.generated.unit_test_kinds",
    "oodlit.detectors",
    "oodlit.errors",
    "oodlit.gate",
    "oodlit.metrics",
    "oodlit.module",
    "oodlit.objects",
    "oodlit.outputs",
    "oodlit.report",
    "oodlit.results",
    "oodlit.roles",
    "oodlit.testing",
)
MINIMUM = 160
"""Public classes and functions that the sweep must at least see."""


def _exported(name: str) -> list[str]:
    module = importlib.import_module(name)
    own = [n for n, value in vars(module).items() if getattr(value, "__module__", None) == name and n[0] != "_"]
    return sorted(getattr(module, "__all__", own))


def _documented() -> list[tuple[str, str]]:
    return [(package, name) for package in PACKAGES for name in _exported(package)]


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_the_public_namespace(package: str) -> None:
    module = importlib.import_module(package)
    names = _exported(package)
    assert len(names) == len(set(names))
    for name in names:
        getattr(module, name)
    stray = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name not in names
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith(package)
    ]
    assert not stray, f"{package}: public, but not in __all__: {stray}"


def test_no_public_name_is_that_of_a_file() -> None:
    """A file of the package, once it is imported, would take the place of a name that is loaded on first use."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in _exported(package):
            assert not inspect.ismodule(getattr(module, name)), f"{package}.{name}"
        files = {file.stem for folder in getattr(module, "__path__", []) for file in Path(folder).glob("*.py")}
        if "__getattr__" in vars(module):
            assert not files & set(_exported(package)), package


def test_everything_public_is_documented() -> None:
    bare, seen = [], 0
    for package, name in _documented():
        value = getattr(importlib.import_module(package), name)
        if not (inspect.isclass(value) or inspect.isfunction(value)) or not value.__module__.startswith("oodlit"):
            continue
        seen += 1
        documented = bool(value.__doc__) and not str(value.__doc__).startswith(f"{name}(")
        bare += [] if documented else [f"{package}.{name}"]
        if inspect.isclass(value):
            methods = {n: m for n, m in vars(value).items() if inspect.isfunction(m) and not n.startswith("_")}
            bare += [f"{package}.{name}.{n}" for n, m in methods.items() if not inspect.getdoc(getattr(value, n))]
    assert not bare, "\n".join(bare)
    assert seen >= MINIMUM
