"""Per-image rows of a run: collected on every process, joined by key at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from oodlit.datamodules.stream import Stream
from oodlit.distributed import Group, gather_objects, gather_rows
from oodlit.errors import DataError, NonFiniteScoreError
from oodlit.outputs import Outputs
from oodlit.roles import KNOWN_CLASSES

__all__ = ["ImageRows", "check_labels", "check_scores", "gather"]

NONE = -1


@dataclass
class ImageRows:
    """ImageRows of one data set on this process.

    Args:
        dataset: Name of the stream.
        detectors: Names of the score columns.
    """

    dataset: str
    detectors: Sequence[str]
    keys: list[str] = field(default_factory=list)
    integers: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)

    def add(self, outputs: Outputs, scores: Sequence[Tensor]) -> None:
        """Take in one batch; only small CPU tensors are kept.

        Args:
            outputs: The batch, with keys.
            scores: Per detector, shape (batch,).

        Raises:
            NonFiniteScoreError: A score is NaN.
        """
        assert outputs.keys is not None  # streams always give keys
        none = torch.full((len(outputs),), NONE, device=outputs.device)
        columns = [
            none if outputs.groups is None else outputs.groups,
            none if outputs.labels is None else outputs.labels,
            none if outputs.logits is None else outputs.predictions,
        ]
        values = torch.stack([s.double() for s in scores], dim=1).cpu()
        check_scores(values, self.detectors, self.dataset, outputs.keys)
        self.keys += outputs.keys
        self.integers.append(torch.stack(columns, dim=1).cpu())
        self.scores.append(values)


def check_labels(outputs: Outputs, stream: Stream) -> None:
    """Refuse labels that the network has no logit for, at the first batch that has them.

    Raises:
        DataError: Names stream, key, value and range.
    """
    if stream.role not in KNOWN_CLASSES or outputs.labels is None or outputs.logits is None:
        return
    classes = outputs.logits.shape[1]
    bad = (outputs.labels >= classes).nonzero().flatten().tolist()
    if bad:
        key = bad[0] if outputs.keys is None else outputs.keys[bad[0]]
        raise DataError(
            f"stream {stream.name!r}: label {int(outputs.labels[bad[0]])} of {key!r}, but the network has {classes}"
            f" classes, 0..{classes - 1}; check the order of classes of the data, or take its own network"
        )


def check_scores(values: Tensor, detectors: Sequence[str], dataset: str, keys: Sequence[str]) -> None:
    """Refuse NaN scores, shape (batch, detectors).

    Raises:
        NonFiniteScoreError: Names detector, data set, count and first keys.
    """
    bad = values.isnan()
    if not bad.any():
        return
    for column, name in enumerate(detectors):
        rows = bad[:, column].nonzero().flatten().tolist()
        if rows:
            raise NonFiniteScoreError(
                f"detector {name!r} gave NaN for {len(rows)} of {len(keys)} images of a batch of {dataset!r},"
                f" first keys: {', '.join(keys[i] for i in rows[:3])};"
                " look at these images and at the logits and features of the backbone for them"
            )


def gather(rows: ImageRows, group: Group, *, float32: Sequence[str] = ()) -> pd.DataFrame:
    """ImageRows of all processes, sorted by key. Every process calls it and gets the same table.

    Args:
        rows: The rows of this process; may be empty.
        group: Processes that move CPU tensors.
        float32: Columns whose detector scores in float32; they are stored as such.

    Returns:
        Columns key, dataset, group, label, prediction, and one per detector.
    """
    keys = gather_objects(group, rows.keys)
    sizes = [len(k) for k in keys]
    integers = gather_rows(group, torch.cat([torch.zeros(0, 3, dtype=torch.int64), *rows.integers]), sizes)
    empty = torch.zeros(0, len(rows.detectors), dtype=torch.float64)
    scores = gather_rows(group, torch.cat([empty, *rows.scores]), sizes)
    table: dict[str, object] = {"key": [k for part in keys for k in part], "dataset": rows.dataset}
    table |= {n: integers[:, i].numpy() for i, n in enumerate(("group", "label", "prediction"))}
    for i, name in enumerate(rows.detectors):
        column = scores[:, i].numpy()
        table[name] = column.astype(np.float32) if name in float32 else column
    return pd.DataFrame(table).sort_values("key", kind="stable", ignore_index=True)
