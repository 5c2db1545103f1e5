"""The images of a pool: one row per test image, and sums over the estimation images, which show how hard a class is."""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodlit.base.errors import DataError, NonFiniteScoreError
from oodlit.base.outputs import Outputs
from oodlit.base.processes.distributed import Group, gather_objects, gather_rows
from oodlit.datamodules.keys import key_digest
from oodlit.datamodules.severity.split import Part
from oodlit.datamodules.stream import Stream
from oodlit.results.files.class_sums import ClassSums
from oodlit.runs.images.rows import ImageRows

_COUNTED = ("num_unused", "first_unused", "num_used")


@dataclass
class PoolRows(ImageRows):
    """Rows of the test images of a pool on this process, and sums of the confidences of its estimation images.

    Args:
        stream: The pool.
        confidences: By detector, what gives confidences from scores.
    """

    stream: Stream = field(kw_only=True)
    confidences: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    num_unused: int = 0
    """Number of images that the split does not list."""
    first_unused: str = ""
    """First key of these images in sorted order; empty if there are none."""
    num_used: int = 0
    """Number of images in both parts of the split."""
    estimated: "array[int]" = field(default_factory=lambda: array("Q"))
    """A 64-bit hash of the key of every estimation image, which has no row."""
    sums: ClassSums = field(init=False)

    def __post_init__(self) -> None:
        """Make room for the classes."""
        self.sums = ClassSums(self.detectors, len(self.stream.class_names))

    def state(self) -> dict[str, Any]:
        """All collected rows and sums, as plain values and tensors."""
        counted = {name: getattr(self, name) for name in _COUNTED}
        return {**super().state(), **counted, "sums": self.sums.state(), "estimated": self._estimated()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace rows and sums by those that `state` returned."""
        super().restore(state)
        for name in _COUNTED:
            setattr(self, name, state[name])
        self.sums.restore(state["sums"])
        self.estimated = array("Q", state["estimated"].numpy().tobytes())

    def add(self, outputs: Outputs, scores: Mapping[str, Tensor]) -> dict[str, NonFiniteScoreError]:
        """Add one batch; see `ImageRows.add`."""
        assert self.stream.split is not None
        assert outputs.keys is not None
        assert outputs.groups is not None  # streams always give both
        keys = [key.removeprefix(f"{self.dataset}/") for key in outputs.keys]
        parts = [self.stream.split(key) for key in keys]
        if unused := [key for key, part in zip(outputs.keys, parts, strict=True) if part is None]:
            self.num_unused += len(unused)
            self.first_unused = min(filter(None, (self.first_unused, *unused)))
        rows = {part: [i for i, found in enumerate(parts) if found is part] for part in Part}
        groups = outputs.groups.cpu()
        for part, chosen in rows.items():
            digests = [key_digest(f"{part}\0{keys[i]}") for i in chosen]
            self.sums.add_digests(groups[chosen], digests)
            self.num_used += len(chosen)
            if part is Part.ESTIMATION:
                self.estimated.extend(digests)
        errors: dict[str, NonFiniteScoreError] = {}
        if chosen := rows[Part.TEST]:
            index = torch.tensor(chosen, device=outputs.device)
            # Scores may lie on the CPU where the device has no float64.
            errors = super().add(outputs.select(index), {n: s[index.to(s.device)] for n, s in scores.items()})
        chosen = rows[Part.ESTIMATION]
        values = {name: score.cpu()[chosen] for name, score in scores.items()}
        for name, value in values.items():
            if bad := value.isnan().nonzero().flatten().tolist():
                errors.setdefault(name, self._nan_error(name, bad, [outputs.keys[i] for i in chosen]))
        good = {name: self.confidences[name](value) for name, value in values.items() if name not in errors}
        self.sums.add(groups[chosen], good)
        return errors

    def check_once(self, group: Group) -> None:
        """Check that all processes together have read every estimation image once; rows show it for test images.

        Raises:
            DataError: Some came more than once.
        """
        mine = self._estimated()
        seen = gather_rows(group, mine, gather_objects(group, len(mine)))
        if repeated := len(seen) - len(seen.unique()):  # type: ignore[no-untyped-call]
            raise DataError(
                f"pool {self.dataset!r}: estimation images must have distinct keys; repeated: {repeated} of"
                f" {len(seen)}. Check that no shard is listed twice or read by two processes"
            )

    def _estimated(self) -> Tensor:
        return torch.from_numpy(np.array(self.estimated, dtype=np.uint64).view(np.int64))
