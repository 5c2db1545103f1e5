"""Base classes of streaming metrics: typed per-image values that are synchronized across processes."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torchmetrics
from jaxtyping import Float
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError, OodlitError
from oodlit.metrics.numerics.ranking import ArrayConvertible, Ranking, ScoreLike, as_flags, as_numbers, rank


class StreamMetric(torchmetrics.Metric):
    """A metric over per-image values, gathered from all processes in `compute`.

    A subclass declares the types of its streams (`streams`), appends to them in `update` (`append`) and reads them in
    `result` (`stream`). This class ensures that:

    - a process without images takes part in the gathering with an empty tensor of the right type (torchmetrics uses
      float32, which does not match int64 or float64 values of the other processes), without a warning;
    - an error raised by `result` leaves the metric usable, and every process raises it;
    - `merge_state` after `compute` does not return the earlier value.

    Values are moved to the metric's own device, so that a metric on the CPU accepts scores from a GPU.
    """

    full_state_update = False
    is_differentiable = False
    plot_lower_bound: float | None = 0.0
    plot_upper_bound: float | None = 1.0
    streams: ClassVar[Mapping[str, torch.dtype]] = {}

    def __init__(self, **kwargs: Any) -> None:
        """Start with empty streams."""
        super().__init__(**kwargs)
        for name in self.streams:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def append(self, name: str, values: Tensor) -> None:
        """Append one batch to a stream; nothing for an empty batch."""
        if len(values):
            getattr(self, name).append(values.detach().to(self._empty(name).device).to(self.streams[name]))

    def stream(self, name: str) -> Tensor:
        """Return all values of a stream, of all processes after gathering."""
        state = getattr(self, name)
        if isinstance(state, Tensor):
            return state
        return torch.cat(state) if state else self._empty(name)

    @abstractmethod
    def result(self) -> Tensor | dict[str, Tensor]:
        """Return the value of the complete streams."""

    def compute(self) -> Tensor | dict[str, Tensor]:
        """Return the value of all images of all processes; every process must call it."""
        try:
            return self.result()
        except OodlitError:
            # torchmetrics leaves a metric in its gathered state if compute raises; the next call would fail.
            if self._is_synced:
                self.unsync()
            raise

    @property
    def update_called(self) -> bool:
        """Always true: a metric without images is undefined rather than unused."""
        return True

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> None:
        """Gather the streams of all processes; empty ones get an entry of the declared type."""
        for name in self.streams:
            if isinstance(state := getattr(self, name), list) and not state:
                state.append(self._empty(name))
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)

    def merge_state(self, incoming_state: "dict[str, Any] | torchmetrics.Metric") -> None:
        """Add the state of another metric of this class, or a dictionary of its states.

        Raises:
            InvalidArgumentError: Another class, or a state is missing.
        """
        # Reimplemented: torchmetrics 1.5 has no such method, and that of 1.9 keeps returning the cached value.
        if isinstance(incoming_state, torchmetrics.Metric) and type(incoming_state) is not type(self):
            raise InvalidArgumentError(
                f"{type(self).__name__}: only a metric of this type can be merged, got {type(incoming_state).__name__}"
            )
        names = list(self.streams)
        found = incoming_state if isinstance(incoming_state, dict) else {n: getattr(incoming_state, n) for n in names}
        if missing := [name for name in names if name not in found]:
            raise InvalidArgumentError(f"{type(self).__name__}: missing states {', '.join(missing)}")
        for name in names:
            for values in found[name] if isinstance(found[name], list) else [found[name]]:
                self.append(name, values)
        self._computed = None

    def plot(self, val: Tensor | None = None, ax: Any | None = None) -> Any:
        """Plot the value with torchmetrics; return figure and axes."""
        return self._plot(val, ax)

    def _empty(self, name: str) -> Tensor:
        return torch.empty(0, dtype=self.streams[name], device="cpu" if self._is_narrow else self.device)

    @property
    def _is_narrow(self) -> bool:
        """Whether the device has no float64; scores then stay on the CPU."""
        return self.device.type == "mps"

    def _float(self, value: float | list[float]) -> Tensor:
        dtype = torch.float32 if self._is_narrow else torch.float64
        return torch.tensor(value, dtype=dtype, device=self.device)


class RankingMetric(StreamMetric):
    """A metric of ID scores against OOD scores; a subclass implements `value(ranking)`."""

    streams: ClassVar = {"id_scores": torch.float64, "ood_scores": torch.float64}

    def update(self, scores: Tensor, is_ood: Tensor) -> None:
        """Add one batch with any mixture of ID and OOD images.

        Args:
            scores: Higher = more in-distribution, shape (batch,).
            is_ood: True for OOD images, boolean, shape (batch,).

        Raises:
            InvalidArgumentError: Shapes or types do not match.
        """
        scores, (is_ood,) = check_batch(scores, is_ood=is_ood)
        self.append("id_scores", scores[~is_ood])
        self.append("ood_scores", scores[is_ood])

    @property
    def n_id(self) -> int:
        """Number of ID scores seen by this process."""
        return len(self.stream("id_scores"))

    @property
    def n_ood(self) -> int:
        """Number of OOD scores seen by this process."""
        return len(self.stream("ood_scores"))

    @abstractmethod
    def value(self, ranking: Ranking) -> float:
        """Return the value for the ranking of all scores."""

    def result(self) -> Tensor:
        """Return the value of all scores."""
        return self._float(self.value(rank(self.stream("id_scores"), self.stream("ood_scores"))))


class SelectiveMetric(StreamMetric):
    """A metric of scores against the correctness of predictions; a subclass implements `value(scores, is_correct)`."""

    streams: ClassVar = {"scores": torch.float64, "is_correct": torch.bool}

    def update(self, scores: Tensor, is_correct: Tensor) -> None:
        """Add one batch.

        Args:
            scores: Higher = more in-distribution, shape (batch,).
            is_correct: True where the prediction equals the label, boolean, shape (batch,).

        Raises:
            InvalidArgumentError: Shapes or types do not match.
        """
        scores, (is_correct,) = check_batch(scores, is_correct=is_correct)
        self.append("scores", scores)
        self.append("is_correct", is_correct)

    @abstractmethod
    def value(self, scores: Float[Tensor, " n"], is_correct: Tensor) -> float:
        """Return the value for all images."""

    def result(self) -> Tensor:
        """Return the value of all images."""
        return self._float(self.value(self.stream("scores"), self.stream("is_correct")))


def check_batch(scores: ScoreLike, **flags: ArrayConvertible | Tensor) -> tuple[Tensor, list[Tensor]]:
    """Convert scores of one batch and their flags to tensors on one device, with one boolean per score.

    NaN is allowed here and raises in `compute`, on all processes alike.
    """
    values = as_numbers(scores)
    return values, [as_flags(flag, name, like=values) for name, flag in flags.items()]
