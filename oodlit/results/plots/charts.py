"""Content of figures as plain numbers and labels, drawn as SVG on the page and by matplotlib in files."""

import math
from dataclasses import dataclass
from typing import NamedTuple


class Estimate(NamedTuple):
    """A value of the table with its interval and the number of images behind it; NaN = undefined, or no interval."""

    value: float = math.nan
    ci_low: float = math.nan
    ci_high: float = math.nan
    n: int = 0


@dataclass(frozen=True)
class Grid:
    """One value per class and detector: bars with intervals, or a table of colours.

    Args:
        title: Title of the figure.
        classes: Names of the rows.
        detectors: Names of the columns.
        cells: One row of estimates per class.
        totals: One estimate per detector: the mean over classes, or with a limit the number of classes that fail.
        limit: Largest value that passes; None = no limit.
    """

    title: str
    classes: tuple[str, ...]
    detectors: tuple[str, ...]
    cells: tuple[tuple[Estimate, ...], ...]
    totals: tuple[Estimate, ...]
    limit: float | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of images of every class."""
        return tuple(row[0].n for row in self.cells)


@dataclass(frozen=True)
class Histogram:
    """Distribution of the scores of one detector in several data sets.

    The bins are equally wide on an axis from 0 to 1; see `ScoreAxis`.

    Args:
        detector: Name of the detector.
        datasets: Names of the data sets; the ID set is the first.
        shares: The share of images in every bin, one row per data set; an empty row = no image.
        accepted: The share of images that are accepted, one per data set; NaN = no image.
        threshold: The acceptance threshold.
        position: Its position on the axis; NaN = not finite.
        labels: Labels of the left end, the middle and the right end of the axis.
    """

    detector: str
    datasets: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]
    accepted: tuple[float, ...]
    threshold: float
    position: float
    labels: tuple[str, str, str]


@dataclass(frozen=True)
class Histograms:
    """One histogram per detector."""

    panels: tuple[Histogram, ...]


@dataclass(frozen=True)
class Line:
    """One line of a diagram, with its marked points."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dots: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Band:
    """The band between two lines, drawn behind the other lines of a diagram."""

    label: str
    x: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Curves:
    """Lines between two axes of shares.

    Args:
        title: What the lines are.
        x_label: What goes to the right.
        y_label: What goes up.
        lines: The lines.
        legend: Heading of the list of their labels.
        steps: Whether a line keeps its height up to the next point.
        whole: Whether both axes go from 0 to 1.
        near_zero: Whether the x axis gives more room to small shares (square roots).
        level: Height of a line across; None = none.
        names: Names of some places on the x axis, written above.
        bands: Bands behind the lines, the widest first.
        ticks: Places on the x axis with what is written below them; empty = shares in percent.
        bottom: Lower end of the y axis.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    legend: str = ""
    steps: bool = False
    whole: bool = True
    near_zero: bool = False
    level: float | None = None
    names: tuple[tuple[float, str], ...] = ()
    bands: tuple[Band, ...] = ()
    ticks: tuple[tuple[float, str], ...] = ()
    bottom: float = 0.0


@dataclass(frozen=True)
class Matrix:
    """A symmetric table of correlations.

    Args:
        title: What is correlated.
        names: Of rows and columns.
        cells: Row by row, -1..1; NaN = undefined.
    """

    title: str
    names: tuple[str, ...]
    cells: tuple[tuple[float, ...], ...]


Chart = Grid | Histograms | Curves | Matrix
