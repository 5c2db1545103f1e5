"""What defines a benchmark: data sets, lists of images, means over sets, and rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from oodlit.base.errors import UnknownNameError


@dataclass(frozen=True)
class BenchmarkSet:
    """A data set of a benchmark.

    Args:
        name: Name of the data set, as in `oodlit list datasets`.
        images: Number of images; None = not fixed.
        keep: Published list of the images that the benchmark uses; "" = all.
        drop: Published list of the images that it does not use; "" = none.
        is_optional: Whether the set is used only if it exists, or is named.
    """

    name: str
    images: int | None = None
    keep: str = ""
    drop: str = ""
    is_optional: bool = False


@dataclass(frozen=True)
class BenchmarkDescription:
    """Facts about a benchmark.

    Args:
        name: Name in configurations and on the command line.
        title: Name in prose.
        sets: The test sets in the order of results.
        id_set: The ID images.
        aggregates: Means over data sets by name of the mean; all images of a set count together.
        full_spectrum: The shifted sets that count as ID in the full-spectrum values; () = all of the run.
        rule: Threshold rule of the published FPR, "attained" or "interpolated".
        tables: Names of the published tables with its figures, as in `oodlit list published`.
        class_subset: Class indices of ImageNet-1k that count as known; empty = all.
        boxes: Whether it evaluates object detectors instead of classifiers.
        source: Where the benchmark is described.
        citation: Authors, title, venue, year.

    Raises:
        UnknownNameError: A mean or the full spectrum is over a set that the benchmark does not have.
    """

    name: str
    title: str
    sets: tuple[BenchmarkSet, ...]
    id_set: BenchmarkSet = BenchmarkSet("imagenet_val", 50_000)
    aggregates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    full_spectrum: tuple[str, ...] = ()
    rule: str = "attained"
    tables: tuple[str, ...] = ()
    class_subset: tuple[int, ...] = ()
    boxes: bool = False
    source: str = ""
    citation: str = ""

    def __post_init__(self) -> None:
        """Check that means are over sets of the benchmark."""
        for one in chain(self.full_spectrum, *self.aggregates.values()):
            UnknownNameError.check(f"set of {self.name!r}", one, [known.name for known in self.sets])

    @property
    def evaluation(self) -> dict[str, object]:
        """Settings of the metrics: threshold rule, means over sets, and sets of the full spectrum."""
        return {"rule": self.rule, "aggregates": dict(self.aggregates), "full_spectrum": self.full_spectrum}
