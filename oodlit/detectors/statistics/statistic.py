"""Base class of statistics: facts about the training set, accumulated once and shared."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, final

import torch
from torchmetrics import Metric

from oodlit.base.checks import check_finite, check_shapes, plain_mode, sizes_of, where_float64_is
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Memo, Outputs, version_of
from oodlit.base.processes.distributed import Group
from oodlit.detectors.statistics.class_labels import train_labels

S = TypeVar("S", bound="Statistic")


class Statistic(Metric):
    """One fact about the training set. Subclasses implement the abstract methods.

    `update(outputs)` adds a batch; `merge(other)` adds the data of another process or another part of the training set.
    The resulting state does not depend on order and batch sizes, up to rounding.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """Fields of `Outputs` that are read."""
    rows_at_a_time: ClassVar[int | None] = 4096
    """Larger batches, such as a whole training set, are processed in parts of this many images; None = never."""
    full_state_update = False
    counted_by: ClassVar[str] = "class_counts"
    """Name of the state that adds up to the number of training images seen."""

    def __init__(self, **states: torch.Tensor) -> None:
        """Register the initial states by name."""
        super().__init__(sync_on_compute=False)
        for name, state in states.items():
            self.add_state(name, state, dist_reduce_fx=None)

    @classmethod
    def for_detectors(cls: type[S], detectors: Iterable[Any]) -> S:
        """Create the statistic for all `detectors` that use it; subclasses may read their settings."""
        return cls()

    @abstractmethod
    def accumulate(self, outputs: Outputs) -> None:
        """Add one batch; called under no_grad and without autocast."""

    @abstractmethod
    def merge(self: S, other: S) -> None:
        """Add the data of `other`, which stays unchanged."""

    @abstractmethod
    def synchronize(self, group: Group) -> None:
        """Make the state equal to that of a single process that saw all batches of all processes in `group`."""

    @abstractmethod
    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the memory of the state, in bytes, for a training set of `num_train` images."""

    @property
    def num_samples(self) -> int:
        """Number of training images seen, which may be more than are kept."""
        return int(getattr(self, self.counted_by).sum())

    def finite_proxy(self, outputs: Outputs) -> dict[str, torch.Tensor]:
        """Return smaller tensors by field that are computed anyway and finite only if the field is finite."""
        return {}

    def shared_tensors(self) -> dict[str, torch.Tensor]:
        """Return the states, which properties may return without copying."""
        return {name: state for name in self._defaults if isinstance(state := getattr(self, name), torch.Tensor)}

    def changed_columns(self) -> list[str]:
        """Return the names of returned columns that were written to since."""
        return []

    def state(self) -> dict[str, Any]:
        """All that was accumulated, as plain values and tensors."""
        return {"states": {name: getattr(self, name) for name in self._defaults}, "store": None}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace what was accumulated by the return value of an earlier `state`."""
        for name, value in state["states"].items():
            setattr(self, name, value)

    @final
    def check(self, outputs: Outputs) -> None:
        """Refuse a batch with values that are not finite, or without labels if they are read.

        Called before anything is added: a refused batch leaves the state unchanged.
        """
        if len(outputs) == 0:
            return
        outputs = where_float64_is(outputs)
        with plain_mode(), torch.autocast(outputs.device.type, enabled=False):
            check_finite(self, outputs, self.needs, self.finite_proxy(outputs))
            if "labels" in self.needs:
                train_labels(outputs, outputs.require("logits").shape[1] if "logits" in self.needs else None)

    @final
    def update(self, outputs: Outputs) -> None:
        """Add one batch."""
        if len(outputs) == 0:
            return
        outputs = where_float64_is(outputs)
        self.check(outputs)
        with plain_mode(), torch.autocast(outputs.device.type, enabled=False):
            self._leave_inference_mode()
            size = self.rows_at_a_time or len(outputs)
            if len(outputs) <= size:
                self.accumulate(outputs)
                return
            for start in range(0, len(outputs), size):
                self.accumulate(outputs.select(slice(start, start + size)))

    @final
    def _leave_inference_mode(self) -> None:
        """Make states writable that were created or reset in inference mode, as within `trainer.predict`."""
        for name in self._defaults:
            state = getattr(self, name)
            if isinstance(state, torch.Tensor) and state.is_inference():
                setattr(self, name, state.clone())

    @final
    def compute(self) -> "Statistic":
        """Return the statistic itself; its facts are properties."""
        return self


class Statistics(Memo, Mapping[type[Statistic], Statistic]):
    """The statistics of one fit, by type; at most one of each type.

    Example:
        >>> from oodlit.detectors.statistics import ClassMoments
        >>> moments = ClassMoments()
        >>> moments.update(Outputs(features=torch.eye(3), labels=torch.tensor([0, 0, 2])))
        >>> Statistics([moments])[ClassMoments].counts.tolist()
        [2, 0, 1]
    """

    def __init__(self, statistics: Iterable[Statistic] = ()) -> None:
        self._by_type = {type(s): s for s in statistics}
        self.memoized, self._versions = {}, {}
        self._spoilt: list[str] = []
        self.shapes: dict[str, int] = {}
        """Numbers of logits and features of the batches so far, if a statistic reads them."""
        self.sizes: dict[str, int] = {}
        """Numbers of logits and features of the batches so far, also of fields that only detectors read."""

    def __getitem__(self, kind: type[S]) -> S:
        """Return the statistic of type `kind`."""
        try:
            value = self._by_type[kind]
        except KeyError:
            raise InvalidArgumentError(
                f"the statistic {kind.__name__} was not accumulated; list it in the detector's `statistics`"
            ) from None
        assert isinstance(value, kind)
        return value

    def __contains__(self, kind: object) -> bool:
        """Return whether there is a statistic of type `kind`."""
        return kind in self._by_type

    def __iter__(self) -> Iterator[type[Statistic]]:
        """Iterate over the types of the statistics."""
        return iter(self._by_type)

    def __len__(self) -> int:
        """Return the number of statistics."""
        return len(self._by_type)

    def __repr__(self) -> str:
        """Return the names of the statistics."""
        return f"Statistics({', '.join(kind.__name__ for kind in self)})"

    @property
    def num_samples(self) -> int:
        """Number of training images seen; 0 without statistics."""
        return max((s.num_samples for s in self.values()), default=0)

    def check_unchanged(self) -> None:
        """Start counting writes, for `changed`.

        Raises:
            InvalidArgumentError: A detector has written to a statistic, which would falsify further fits.
        """
        if self._spoilt:
            raise InvalidArgumentError(
                f"a detector wrote to {', '.join(self._spoilt)}, which all detectors share; let it copy tensors before"
                " it changes them, and compute the statistics again"
            )
        for kind, statistic in self.items():
            self._versions |= {(kind, name): version_of(tensor) for name, tensor in statistic.shared_tensors().items()}

    def changed(self) -> list[str]:
        """Return what was written to since `check_unchanged`; cached values are then discarded."""
        stale = self.stale_keys()
        self._spoilt = [
            f"{kind.__name__}.{name}"
            for kind, statistic in self.items()
            for name, tensor in statistic.shared_tensors().items()
            if self._versions.get((kind, name), version_of(tensor)) != version_of(tensor)
        ] + [f"{kind.__name__}.{name}" for kind, statistic in self.items() for name in statistic.changed_columns()]
        if stale or self._spoilt:
            self.memoized.clear()
        return [*self._spoilt, *stale]

    def update(self, outputs: Outputs) -> None:
        """Add one batch."""
        self.memoized.clear()
        if len(outputs):
            found = sizes_of(outputs, frozenset().union(*(s.needs for s in self.values())))
            check_shapes(self, found, self.shapes, "a training batch has", "earlier batches have")
            for statistic in self.values():  # no statistic changes until all have accepted the batch
                statistic.check(outputs)
            self.shapes |= found
            self.sizes |= sizes_of(outputs, ("logits", "features"))
        for statistic in self.values():
            statistic.update(outputs)

    @property
    def can_be_saved(self) -> bool:
        """Whether `state` is complete: custom statistics may keep more than their registered states."""
        return all(kind.__module__.startswith("oodlit.") for kind in self)

    def state(self) -> dict[str, Any]:
        """All that was accumulated, as plain values and tensors."""
        states = {_key(kind): statistic.state() for kind, statistic in self.items()}
        return {"statistics": states, "shapes": dict(self.shapes), "sizes": dict(self.sizes)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace what was accumulated by the return value of an earlier `state`.

        Raises:
            InvalidArgumentError: An earlier version saved several statistics under one name.
        """
        for kind, statistic in self.items():
            key = _key(kind) if _key(kind) in state["statistics"] else kind.__name__  # as earlier versions wrote it
            if key != _key(kind) and [other.__name__ for other in self].count(key) > 1:
                raise InvalidArgumentError(
                    f"this run was started with an earlier version of oodlit, and its saved statistics ({key}) are"
                    " ambiguous; repeat the run with resume=False (--again)"
                )
            statistic.restore(state["statistics"][key])
        self.shapes |= state["shapes"]
        self.sizes |= state["sizes"]


def _key(kind: type[Statistic]) -> str:
    """Return the name of a statistic in saved states; with its settings if a function created the class."""
    function, settings = getattr(kind, "made_by", (kind, ""))
    return f"{function.__name__}{settings}"


def synchronize(statistics: Iterable[Statistic], group: Group = None) -> None:
    """Give every process of `group` the statistics of all. Each calls it exactly once, even without batches."""
    with plain_mode():
        for statistic in statistics:
            statistic._leave_inference_mode()
            statistic.synchronize(group)
