"""Exact sums of the confidences of estimation images of a pool, by detector and class."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.metrics.numerics.exact_sums import COUNT, ExactSums
from oodlit.results.info import DatasetInfo

ESTIMATES = ("dataset", "ood_class", "detector", "confidence", "severity", "standard_error", "n_estimation", "digest")
"""Columns of the table of estimates; see `RunResults`."""
_PREFIXES = {"sums": "sum ", "squares": "square "}


class ClassSums:
    """Sums over the estimation images of one pool on one process; nothing else is kept of these images.

    Args:
        detectors: Their names.
        num_classes: Classes of the pool.
    """

    def __init__(self, detectors: Sequence[str], num_classes: int) -> None:
        """Start at zero."""
        self.detectors, self.num_classes = tuple(detectors), num_classes
        self._sums = {kind: ExactSums(len(self.detectors) * num_classes) for kind in _PREFIXES}
        self._digests = torch.zeros(num_classes, dtype=torch.int64)

    def add(self, groups: Int[Tensor, " n"], confidences: Mapping[str, Float[Tensor, " n"]]) -> None:
        """Add a batch; detectors may be missing.

        Args:
            groups: Class of every image.
            confidences: By detector, without NaN.
        """
        if not confidences:
            return
        cells = torch.cat([groups + self.detectors.index(name) * self.num_classes for name in confidences])
        values = torch.cat([value.double() for value in confidences.values()])
        self._sums["sums"].add(cells, values)
        self._sums["squares"].add(cells, values.square())

    def add_digests(self, groups: Int[Tensor, " n"], digests: Sequence[int]) -> None:
        """Add 64-bit digests of images, estimation or test, to their classes, independently of their order."""
        signed = np.array([digest % 2**64 for digest in digests], dtype=np.uint64).view(np.int64)
        self._digests.index_add_(0, groups, torch.from_numpy(signed))

    def state(self) -> dict[str, Any]:
        """All sums, as plain tensors."""
        tensors = {kind: {n: torch.from_numpy(v) for n, v in s.to_columns().items()} for kind, s in self._sums.items()}
        return {**tensors, "digests": self._digests}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace all sums by the sums in `state`."""
        for kind in self._sums:
            self._sums[kind] = ExactSums.from_columns({n: v.numpy() for n, v in state[kind].items()})
        self._digests = state["digests"]

    def frame(self, *, detectors: Sequence[str]) -> pd.DataFrame:
        """One row of integers per detector and class; rows of several processes can be added, see `estimates`."""
        columns: dict[str, object] = {
            "detector": np.repeat(np.array(self.detectors, dtype=object), self.num_classes),
            "group": np.tile(np.arange(self.num_classes), len(self.detectors)),
            "digest": np.tile(self._digests.numpy(), len(self.detectors)),
        }
        for kind, sums in self._sums.items():
            columns |= {f"{_PREFIXES[kind]}{name}": values for name, values in sums.to_columns().items()}
        frame = pd.DataFrame(columns)
        return frame[frame["detector"].isin(detectors)].reset_index(drop=True)


def estimates(
    parts: Sequence[pd.DataFrame], info: DatasetInfo, detectors: Sequence[str], kinds: Mapping[str, str]
) -> pd.DataFrame:
    """Mean confidence of every class and detector, with its standard error.

    Args:
        parts: The result of `ClassSums.frame` on every process.
        info: The pool.
        detectors: Their names.
        kinds: By detector, the averaged quantity, such as "exp(score)".

    Returns:
        Columns `ESTIMATES`. A class without images has NaN, as has a class with infinities of both signs, and the
        standard error of a single image.
    """
    names = list(dict.fromkeys(name for part in parts for name in part.columns if name not in ("detector", "group")))
    rows = []
    for detector in detectors:
        own = [part[part["detector"] == detector].reindex(columns=names, fill_value=0) for part in parts]
        total = {name: sum((part[name].to_numpy() for part in own[1:]), own[0][name].to_numpy()) for name in names}
        sums, squares = (
            ExactSums.from_columns({n.removeprefix(kind): v for n, v in total.items() if n.startswith(kind)})
            for kind in _PREFIXES.values()
        )
        counts = total[f"{_PREFIXES['sums']}{COUNT}"]
        columns = {
            "dataset": info.name,
            "ood_class": list(info.class_names),
            "detector": detector,
            "confidence": kinds[detector],
            "severity": sums.means().numpy(),
            "standard_error": _standard_errors(counts, sums.sums().numpy(), squares.sums().numpy()),
            "n_estimation": counts,
            "digest": total["digest"],
        }
        rows.append(pd.DataFrame(columns))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=list(ESTIMATES))


def _standard_errors(counts: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Standard errors of means of `counts` values; NaN for fewer than two, or if a value is infinite."""
    n = np.where(counts > 1, counts, np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        variance = np.maximum(squares - sums * (sums / n), 0) / (n - 1)
    return np.sqrt(np.where(np.isfinite(variance), variance, np.nan) / n)
