"""The per-image table cut into its data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from oodlit.base.roles import KNOWN_CLASSES, NAMES_OF_LABELS, Role
from oodlit.metrics.settings import Settings
from oodlit.results.info import DatasetInfo, id_dataset


@dataclass(frozen=True, eq=False)
class ScoredSet:
    """The rows of one data set.

    Args:
        info: The data set.
        rows: Positions in the per-image table.
        members: Positions within the set of the images of every group to report, by its name.
        is_correct: Whether the prediction is the label; False without label.
        is_labelled: Whether there are a label and a prediction to compare; never for unknown classes.
        has_predictions: Whether any image has a prediction; False if the backbone returns no logits.
    """

    info: DatasetInfo
    rows: np.ndarray
    members: Mapping[str, np.ndarray]
    is_correct: np.ndarray
    is_labelled: np.ndarray
    has_predictions: bool = True

    def __len__(self) -> int:
        """Number of images."""
        return len(self.rows)

    @property
    def present(self) -> "ScoredSet":
        """The same rows without groups that have no images."""
        return replace(self, members={name: own for name, own in self.members.items() if len(own)})

    @property
    def missing(self) -> list[str]:
        """Names of the groups without images."""
        return [name for name, own in self.members.items() if not len(own)]


class ScoredSets:
    """All data sets of a run, with the scores of every detector.

    Args:
        scores: The result of `checked`.
        datasets: All streams of the run.
        settings: Settings, with the chosen classes.
    """

    def __init__(self, scores: pd.DataFrame, datasets: Sequence[DatasetInfo], settings: Settings) -> None:
        """Find the rows of every data set."""
        self.scores, self.settings = scores, settings
        names, labels, groups = (scores[name].to_numpy() for name in ("dataset", "label", "group"))
        predictions = scores["prediction"].to_numpy()
        is_correct = labels == predictions
        self.sets: dict[str, ScoredSet] = {}
        for info in datasets:
            rows = np.flatnonzero(names == info.name)
            predicted = predictions[rows] >= 0  # -1 if the backbone returns no logits
            labelled = (labels[rows] >= 0) & predicted & (info.role in KNOWN_CLASSES)
            # A pool is reported by level instead of by its thousands of classes.
            has_groups = info.role not in NAMES_OF_LABELS | {Role.POOL}
            chosen = settings.classes.get(info.name, info.class_names) if has_groups else ()
            members = {n: np.flatnonzero(groups[rows] == i) for i, n in enumerate(info.class_names) if n in chosen}
            self.sets[info.name] = ScoredSet(
                info, rows, members, is_correct[rows] & labelled, labelled, bool(predicted.any())
            )
        self.id = self.sets[id_dataset(datasets).name]
        self.tested = [s for s in self.sets.values() if s.info.role not in (Role.TRAIN, Role.POOL)]
        self.pools = self.of(Role.POOL)
        self.train = [scored for scored in self.of(Role.TRAIN) if len(scored) and scored.has_predictions]
        self.shifted = [scored for scored in self.of(Role.SHIFT) if len(scored)]

    def of(self, role: Role) -> list[ScoredSet]:
        """The sets with a role, in the order of the data sets."""
        return [scored for scored in self.sets.values() if scored.info.role is role]

    def values(self, detector: str, scored: ScoredSet, members: np.ndarray | None = None) -> Tensor:
        """Scores of a detector on a set, or on some of its members."""
        rows = scored.rows if members is None else scored.rows[members]
        return torch.from_numpy(self.scores[detector].to_numpy()[rows])
