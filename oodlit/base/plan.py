"""The plan of a run: choices that its module and data module read during the run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunPlan:
    """The choices of one `trainer.predict`; its callback provides them as the attribute `plan`.

    Args:
        transform: From a decoded image to the network's input, for all streams.
        use_train: Whether to read the training streams.
        extra_outputs: Fields that the module adds to logits and features: of "images", "hidden", "model".
        hidden_layers: Names in `Outputs.hidden`: submodules, or "feature_map".
        finished: Names of streams that an earlier run has already read.
        done: Batches of other streams that an earlier run has read in this process, by name.
        asked: Called whenever the next batch is requested.
    """

    transform: Callable[..., Any] | None = None
    use_train: bool = True
    extra_outputs: frozenset[str] = frozenset()
    hidden_layers: tuple[str, ...] = ()
    finished: frozenset[str] = frozenset()
    done: Mapping[str, int] = field(default_factory=dict)
    asked: Callable[[], None] | None = None


def plan_of(part: Any) -> RunPlan | None:
    """Return the plan of the run that a module or data module is part of; None outside such a run."""
    try:
        trainer = part.trainer
    except RuntimeError:  # raised by a LightningModule without a trainer
        return None
    plans = (getattr(callback, "plan", None) for callback in getattr(trainer, "callbacks", ()))
    return next((plan for plan in plans if isinstance(plan, RunPlan)), None)
