"""Per-image rows of a run: every process collects them, and the end of the run joins them by key."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from oodlit.base.errors import DataError, NonFiniteScoreError
from oodlit.base.outputs import Outputs
from oodlit.base.processes.distributed import Group, gather_objects, gather_rows
from oodlit.base.roles import KNOWN_CLASSES
from oodlit.datamodules.stream import Stream

NONE = -1


@dataclass
class ImageRows:
    """Rows of one data set on this process.

    Args:
        dataset: Name of the stream.
        detectors: Names of the score columns.
        subset: Classes that occur in the set, where they are a part of the network's; None = all.
        what: What messages call the rows.
    """

    dataset: str
    detectors: Sequence[str]
    subset: Tensor | None = None
    what: str = "images"
    keys: list[str] = field(default_factory=list)
    integers: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    masked_correct: int = 0
    """Number of correct predictions if only the classes in `subset` are considered."""

    def add(self, outputs: Outputs, scores: Mapping[str, Tensor]) -> dict[str, NonFiniteScoreError]:
        """Add one batch; only small CPU tensors are kept.

        Args:
            outputs: The batch, with keys.
            scores: Of each active detector, shape (batch,); the others have NaN from here on.

        Returns:
            For detectors that gave NaN, the error that names the images.
        """
        assert outputs.keys is not None  # streams always give keys
        none = torch.full((len(outputs),), NONE, device=outputs.device)
        columns = [
            none if outputs.groups is None else outputs.groups,
            none if outputs.labels is None else outputs.labels,
            none if outputs.logits is None else outputs.predictions,
        ]
        values = torch.full((len(outputs), len(self.detectors)), math.nan, dtype=torch.float64)
        places = {name: self.detectors.index(name) for name in scores}
        for dtype in {value.dtype for value in scores.values()}:  # to the CPU first: not every device has float64
            of_one = [name for name, value in scores.items() if value.dtype == dtype]
            values[:, [places[name] for name in of_one]] = (
                torch.stack([scores[n] for n in of_one], dim=1).cpu().double()
            )
        self.keys += outputs.keys
        self.integers.append(torch.stack(columns, dim=1).cpu())
        self.scores.append(values)
        if self.subset is not None and outputs.logits is not None and outputs.labels is not None:
            subset = self.subset.to(outputs.device)
            masked = subset[outputs.logits[:, subset].argmax(dim=1)]
            self.masked_correct += int((masked == outputs.labels).sum())
        bad = values.isnan()
        found = {name: bad[:, place].nonzero().flatten().tolist() for name, place in places.items()}
        return {name: self._nan_error(name, rows, outputs.keys) for name, rows in found.items() if rows}

    def _nan_error(self, name: str, rows: Sequence[int], keys: Sequence[str]) -> NonFiniteScoreError:
        return NonFiniteScoreError(
            f"detector {name!r} returned NaN for {len(rows)} of {len(keys)} {self.what} of a batch of {self.dataset!r}"
            f" (first: {', '.join(keys[i] for i in rows[:3])}); check these {self.what}, and the logits and features"
            " that the backbone returns for them"
        )

    def state(self) -> dict[str, Any]:
        """All collected rows, as plain values and tensors."""
        integers, scores = self._joined()
        return {"keys": self.keys, "integers": integers, "scores": scores, "masked_correct": self.masked_correct}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the rows by those that `state` returned."""
        self.keys, self.masked_correct = list(state["keys"]), state["masked_correct"]
        self.integers, self.scores = [state["integers"]], [state["scores"]]

    def frame(self, *, detectors: Sequence[str], float32: Collection[str] = ()) -> pd.DataFrame:
        """The rows of this process in the order of arrival.

        Args:
            detectors: Which score columns.
            float32: Columns whose detector scores in float32; they are stored as such.

        Returns:
            Columns key, dataset, group, label, prediction, and one per detector.
        """
        integers, scores = self._joined()
        table: dict[str, object] = {"key": self.keys, "dataset": self.dataset}
        table |= {n: integers[:, i].numpy() for i, n in enumerate(("group", "label", "prediction"))}
        for name in detectors:
            is_known = name in self.detectors
            column = scores[:, self.detectors.index(name)].numpy() if is_known else np.full(len(scores), np.nan)
            table[name] = column.astype(np.float32) if name in float32 else column
        return pd.DataFrame(table)

    def _joined(self) -> tuple[Tensor, Tensor]:
        if len(self.scores) == 1:  # nothing is copied
            return self.integers[0], self.scores[0]
        nothing = torch.zeros(0, len(self.detectors), dtype=torch.float64)
        return torch.cat([torch.zeros(0, 3, dtype=torch.int64), *self.integers]), torch.cat([nothing, *self.scores])


def check_labels(outputs: Outputs, stream: Stream) -> None:
    """Check that the network has a logit for every label of a batch.

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
            f"data set {stream.name!r}: {key!r} has label {int(outputs.labels[bad[0]])}, but the network has {classes}"
            f" classes, 0..{classes - 1}; check the class list of the data, or use another network"
        )


def gather(rows: ImageRows, group: Group, *, detectors: Sequence[str], float32: Collection[str] = ()) -> pd.DataFrame:
    """Join the rows of all processes, sorted by key. Every process must call it and gets the same table.

    Args:
        rows: The rows of this process; may be empty.
        group: Processes that move CPU tensors.
        detectors: See `ImageRows.frame`.
        float32: See `ImageRows.frame`.
    """
    keys = gather_objects(group, rows.keys)
    integers, scores = (gather_rows(group, part, [len(k) for k in keys]) for part in rows._joined())
    everyone = replace(rows, keys=[k for part in keys for k in part], integers=[integers], scores=[scores])
    return everyone.frame(detectors=detectors, float32=float32).sort_values("key", kind="stable", ignore_index=True)
