"""Benchmarks as data: one file and one line of the export list each."""

from typing import TYPE_CHECKING

from oodlit.base import lazy
from oodlit.base.errors import UnknownNameError
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

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)


def benchmarks() -> dict[str, BenchmarkDescription]:
    """All benchmarks by name, sorted.

    Example:
        >>> benchmarks()["openood-v1.5"].aggregates["near"]
        ('ssb_hard', 'ninco')
    """
    found = [value for name in __all__ if isinstance(value := __getattr__(name), BenchmarkDescription)]
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}


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
