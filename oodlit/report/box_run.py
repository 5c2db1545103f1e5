"""The run of boxes that sections show."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from oodlit.objects.results import ObjectResults, ranked


@dataclass(frozen=True)
class ShownBoxes:
    """The run of boxes that sections show, with values that several sections need.

    Args:
        results: The run.
        folder: Folder of its results, with the stored pictures; None = show none.
    """

    results: ObjectResults
    folder: Path | None = None

    @cached_property
    def detectors(self) -> list[str]:
        """Its detectors, the one with the largest AP_U on the first split first."""
        splits = self.results.splits
        return ranked(self.results, splits[0]) if splits else list(self.results.detectors)
