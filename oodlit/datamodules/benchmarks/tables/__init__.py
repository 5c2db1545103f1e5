"""Benchmarks as data: one file and one line of the export list each."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from oodlit.base import lazy
from oodlit.base.errors import UnknownNameError
from oodlit.base.plugins import BENCHMARKS, Plugins, name_problem, plugins, working
from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription

if TYPE_CHECKING:
    from oodlit.datamodules.benchmarks.tables.clip_four import CLIP_FOUR as CLIP_FOUR
    from oodlit.datamodules.benchmarks.tables.cood import COOD as COOD
    from oodlit.datamodules.benchmarks.tables.fmiyc import FMIYC as FMIYC
    from oodlit.datamodules.benchmarks.tables.human_centric import HUMAN_CENTRIC as HUMAN_CENTRIC
    from oodlit.datamodules.benchmarks.tables.imagenet_ood import IMAGENET_OOD as IMAGENET_OOD
    from oodlit.datamodules.benchmarks.tables.ninco import NINCO as NINCO
    from oodlit.datamodules.benchmarks.tables.openood import OPENOOD as OPENOOD
    from oodlit.datamodules.benchmarks.tables.openood_200 import OPENOOD_200 as OPENOOD_200
    from oodlit.datamodules.benchmarks.tables.openood_val import OPENOOD_VAL as OPENOOD_VAL

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)


def benchmarks() -> dict[str, BenchmarkDescription]:
    """All benchmarks by name, sorted, with those of plug-ins.

    Warns:
        PluginWarning: A plug-in cannot be used, once per process.

    Example:
        >>> benchmarks()["openood-v1.5"].aggregates["near"]
        ('ssb_hard', 'ninco')
    """
    of_plugins = {n: one for n, one in working(BENCHMARKS, _problem).items() if isinstance(one, BenchmarkDescription)}
    return dict(sorted({**_built_in(), **of_plugins}.items()))


def benchmark_plugins() -> Plugins:
    """The benchmarks of plug-ins: descriptions, and data classes by the name of the class."""
    return plugins(BENCHMARKS, _problem)


def _problem(name: str, item: Any) -> str:
    if isinstance(item, BenchmarkDescription):
        return name_problem(name, item.name, _built_in())
    rooms = import_module("oodlit.datamodules")
    if isinstance(item, type) and issubclass(item, rooms.OODDataModule):
        return name_problem(name, item.__name__, dict.fromkeys(rooms.__all__))
    return f"expected a BenchmarkDescription or a subclass of oodlit.datamodules.OODDataModule, got {item!r}"


def _built_in() -> dict[str, BenchmarkDescription]:
    found = [value for name in __all__ if isinstance(value := __getattr__(name), BenchmarkDescription)]
    return {one.name: one for one in found}


def describe_benchmark(name: str) -> BenchmarkDescription:
    """The benchmark with this name.

    Raises:
        UnknownNameError: There is none; the message suggests similar names.

    Example:
        >>> describe_benchmark("ninco").rule
        'interpolated'
    """
    known = benchmarks()
    UnknownNameError.check("benchmark", name, known)
    return known[name]
