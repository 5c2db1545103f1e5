"""A section of the page: a file in `sections`, a template of the same name in `html`, and a line in `SECTIONS`."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.metrics.numerics.ranking import SortedScores, as_sorted
from oodlit.objects.results import ObjectResults
from oodlit.report.headline import Column, Place, headline_columns, of_sets, ranked_detectors, share_text
from oodlit.report.thumbnails import ThumbnailStyles
from oodlit.results import DatasetInfo, Results
from oodlit.results.any_results import AnyResults
from oodlit.results.comparing.same_order import SameOrder, same_order
from oodlit.results.files.image_features import ImageFeatures
from oodlit.results.finding import Finding
from oodlit.results.glossary import MEAN
from oodlit.results.run_record import RunRecord

VISIBLE = 10
"""Number of the best detectors that are visible; twice as many are not worth folding."""
USUAL = {"msp", "maxlogit", "energy", "odin", "react", "mahalanobis", "knn", "vim"}
"""Names of the usual baselines, in lower case."""


class Section(NamedTuple):
    """One part of the page.

    Args:
        key: Last part of the anchor, unique within a run and the same for all runs.
        title: Heading.
        entry: Title in the table of contents.
        template: A file of `html` with the variables `own` for the content, `here` for the anchor, and `shared` for
            words of all sections of a run.
        content: Plain values for the template.
        is_folded: Whether one click opens the section; for details that do not help to choose a detector.
    """

    key: str
    title: str
    entry: str
    template: str
    content: Mapping[str, Any]
    is_folded: bool = False


Pairs = Mapping[str, tuple[str, str]]
MANY = 8
"""Maximum number of names in a sentence; the table marks all of them."""


class Named:
    """How sentences name the detectors of a run, or pairs of a run and a detector."""

    pairs: Pairs

    @property
    def unit(self) -> str:
        """What is chosen."""
        return "pair" if self.pairs else "detector"

    def listed(self, names: Sequence[str]) -> str:
        """Join names for a sentence, at most a few of them; pairs by run."""
        by_run: dict[str, list[str]] = {}
        for name in names:
            title, detector = self.pairs.get(name, ("", name))
            by_run.setdefault(title, []).append(detector)
        return "; ".join(f"{title} with {listed(own)}" if title else listed(own) for title, own in by_run.items())


def listed(names: Sequence[str]) -> str:
    """Join names for a sentence, at most a few of them.

    Example:
        >>> listed(["a", "b", "c"]), listed([str(i) for i in range(20)])
        ('a, b and c', '0, 1, 2, 3, 4, 5, 6, 7 and 12 more')
    """
    if len(names) > MANY + 1:
        return f"{', '.join(names[:MANY])} and {len(names) - MANY} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


@dataclass(frozen=True)
class Shown(Named):
    """The run that sections show, with values that several sections need.

    Args:
        results: The run, with display names of detectors.
        thumbnails: Pictures of the run.
        record: The record of the run as it was stored; None = that of the results.
        features: Neighbors and map of images.
        pairs: On the page of several runs, title of the run and detector by name of the pair.
    """

    results: Results
    thumbnails: ThumbnailStyles
    record: RunRecord | None = None
    features: ImageFeatures = field(default_factory=ImageFeatures)
    pairs: Pairs = field(default_factory=dict)

    @cached_property
    def rows(self) -> dict[Place, Any]:
        """Table rows that cover complete data sets."""
        return of_sets(self.results)

    @cached_property
    def columns(self) -> list[Column]:
        """Columns of the headline."""
        return headline_columns(self.results)

    @cached_property
    def detectors(self) -> list[str]:
        """Detectors of the run, the best first."""
        return ranked_detectors(self.results, self.columns)

    @cached_property
    def inside(self) -> DatasetInfo:
        """The ID set."""
        return self.results.id_dataset

    def group(self, metric: str, *datasets: str) -> pd.DataFrame | None:
        """Compare all detectors with the best one; None if the metric is not compared over images."""
        if metric.removeprefix(MEAN) not in (self.results.settings.fpr_name, "auroc", "id_auroc"):
            return None
        place = (metric, *datasets)
        if place not in self._groups:
            try:
                self._groups[place] = self.results.group_of_best(datasets, metric)
            except InvalidArgumentError:  # a pool, or no image of one kind, which the table shows
                self._groups[place] = None
        return self._groups[place]

    @cached_property
    def _groups(self) -> dict[tuple[str, ...], pd.DataFrame | None]:
        return {}

    @cached_property
    def id_scores(self) -> dict[str, SortedScores]:
        """Scores of the ID images by detector, sorted once."""
        rows = self.results.images(self.inside.name)
        return {name: as_sorted(rows[name].to_numpy()) for name in self.detectors}

    @cached_property
    def same(self) -> list[SameOrder]:
        """Pairs of detectors that order images alike."""
        return same_order(self.results)

    def sets(self, *roles: Role) -> list[DatasetInfo]:
        """Data sets of the run with these roles, in the order of the run."""
        return [info for role in roles for info in self.results.datasets if info.role is role]


@dataclass(frozen=True)
class ShownBoxes(Named):
    """The run of boxes that sections show.

    Args:
        results: The run, with display names of detectors.
        folder: Folder of its results, with the stored pictures; None = show none.
        record: The record of the run as it was stored; None = that of the results.
        pairs: As in `Shown`.
    """

    results: ObjectResults
    folder: Path | None = None
    record: RunRecord | None = None
    pairs: Pairs = field(default_factory=dict)

    @cached_property
    def detectors(self) -> list[str]:
        """Names of the detectors, sorted by their mean AP_U over the splits, largest first; undefined values last."""
        return sorted(self.means, key=lambda name: math.inf if math.isnan(self.means[name]) else -self.means[name])

    @cached_property
    def means(self) -> dict[str, float]:
        """Mean AP_U over the splits, by detector."""
        splits, value = self.results.splits, self.results.value
        sums = {name: sum(value("ap_u", dataset=s, detector=name) for s in splits) for name in self.results.detectors}
        return {name: total / len(splits) if splits else math.nan for name, total in sums.items()}


class ChosenDetector(NamedTuple):
    """The detector to choose.

    Args:
        detector: Its name.
        short: Why, in a few words after its FPR.
        sentence: Why, in a sentence.
        others: Which others are among the best, in a sentence; empty if none are.
    """

    detector: str
    short: str
    sentence: str
    others: str = ""


class Fact(NamedTuple):
    """One of the most important numbers of a run, at the top of its page."""

    label: str
    value: str
    detail: str


def frame(
    shown: Shown | ShownBoxes,
    sections: Iterable[Callable[[Any], Iterable[Section]]],
    choice: ChosenDetector | None = None,
) -> dict[str, Any]:
    """What the pages of runs of every kind show: first the `choice`, which is never folded."""
    findings, chosen = shown.results.findings, choice.detector if choice else ""
    return {
        "answers": [choice.sentence] if choice else [],
        "findings": [found for found in findings if not found.is_of_detectors],
        "details": [found for found in findings if found.is_of_detectors],
        "doubts": doubts(shown.results, chosen),
        "about": chosen,
        "caveat": shown.results.run.caveat,
        "sections": [section for of in sections for section in of(shown)],
        "words": words(shown.results, shown.detectors) | {"rest": folded(shown.detectors, [chosen])},
    }


def doubts(results: AnyResults, detector: str) -> list[Finding]:
    """Select the findings that are reasons to doubt the numbers of a detector; of all detectors if it is empty."""
    names = "|".join(map(re.escape, sorted(results.detectors, key=len, reverse=True)))  # longest first
    mentioned = re.compile(rf"(?<![\w+])(?:{names})(?![\w+])")
    doubtful = [found for found in results.findings if not found.is_good]
    return [f for f in doubtful if not (detector and f.is_of_detectors) or detector in mentioned.findall(f.text)]


def words(results: AnyResults, detectors: Sequence[str]) -> dict[str, Any]:
    """Text and numbers that all sections of a run share: `shared` in the templates."""
    return {
        "detectors": detectors,
        "tpr": share_text(results.settings.tpr),
        "confidence": share_text(results.settings.confidence),
        "tall": tall(detectors),
    }


def folded(detectors: Sequence[str], kept: Collection[str] = ()) -> list[str]:
    """Detectors in rows and panels that open with one click: many, neither among the best nor usual baselines.

    Args:
        detectors: Names of all detectors, the best first.
        kept: Names that are always visible.

    Example:
        >>> len(folded([f"d{i}" for i in range(20)])), folded([f"d{i}" for i in range(20)] + ["KNN", "last"])[-1]
        (0, 'last')
    """
    if len(detectors) <= 2 * VISIBLE:
        return []
    return [name for name in detectors[VISIBLE:] if name not in kept and name.lower() not in USUAL]


def tall(names: Sequence[str]) -> int:
    """Height of vertical headings in pixels."""
    return min(190, 16 + 7 * max(map(len, names), default=0))
