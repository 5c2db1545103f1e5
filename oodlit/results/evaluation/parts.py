"""The per-image table cut into its data sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from oodlit.results.info import DatasetInfo, Settings, id_dataset, percent
from oodlit.roles import Role

__all__ = ["Part", "Parts"]


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of one data set.

    Args:
        info: The data set.
        rows: Positions in the per-image table.
        groups: Group of every row.
        is_correct: Whether the prediction is the label; False without label.
        is_labelled: Whether there is a label.
    """

    info: DatasetInfo
    rows: np.ndarray
    groups: np.ndarray
    is_correct: np.ndarray
    is_labelled: np.ndarray

    def __len__(self) -> int:
        """Number of images."""
        return len(self.rows)

    def members(self, group: int | None) -> np.ndarray:
        """Positions within the part of one group, or all."""
        return np.arange(len(self.rows)) if group is None else np.flatnonzero(self.groups == group)


class Parts:
    """All data sets of a run, with the scores of every detector.

    Args:
        scores: As given by `checked`.
        datasets: All streams of the run.
        settings: Which OOD classes, which detection error rates.
    """

    def __init__(self, scores: pd.DataFrame, datasets: Sequence[DatasetInfo], settings: Settings) -> None:
        """Find the rows of every data set."""
        self.scores, self.settings = scores, settings
        names, labels = scores["dataset"].to_numpy(), scores["label"].to_numpy()
        groups, is_correct = scores["group"].to_numpy(), labels == scores["prediction"].to_numpy()
        self.parts: dict[str, Part] = {}
        for info in datasets:
            rows = np.flatnonzero(names == info.name)
            labelled = labels[rows] >= 0
            self.parts[info.name] = Part(info, rows, groups[rows], is_correct[rows] & labelled, labelled)
        self.id = self.parts[id_dataset(datasets).name]

    def of(self, *roles: Role) -> list[Part]:
        """The parts with one of the roles, in the order of the data sets."""
        return [part for part in self.parts.values() if part.info.role in roles]

    @cached_property
    def train(self) -> list[Part]:
        """Training sets with images."""
        return [part for part in self.of(Role.TRAIN) if len(part)]

    @cached_property
    def shifted(self) -> list[Part]:
        """Shifted sets with images."""
        return [part for part in self.of(Role.SHIFT) if len(part)]

    @property
    def der_names(self) -> list[str]:
        """Names of the detection error rates."""
        return [f"der{percent(share)}" for share in self.settings.der]

    def values(self, detector: str, part: Part, members: np.ndarray | None = None) -> Tensor:
        """Scores of a detector on a part, or on some of its members."""
        rows = part.rows if members is None else part.rows[members]
        return torch.from_numpy(self.scores[detector].to_numpy()[rows])

    def groups(self, info: DatasetInfo) -> list[tuple[int, str]]:
        """Index and name of the groups to report, restricted to the chosen classes."""
        chosen = self.settings.classes.get(info.name)
        return [(i, name) for i, name in enumerate(info.class_names) if chosen is None or name in chosen]
