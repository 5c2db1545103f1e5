"""What one run asks of its module and its data module. They read it while the run lasts; nothing is set in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunPlan:
    """The choices of one `trainer.predict`; the callback that made them holds them as its attribute `plan`.

    Args:
        transform: From a decoded image to the network's input, for all streams.
        use_train: Whether the training streams are read.
        extra_outputs: What the module adds to logits and features: of "images", "hidden", "model".
        hidden_layers: Names in `Outputs.hidden`: submodules, or "feature_map".
        finished: Names of streams that are not read any more, as an earlier run has read them.
        done: Batches of other streams that an earlier run has read in this process, by name.
        asked: Called whenever the next batch is asked for.
    """

    transform: Callable[..., Any] | None = None
    use_train: bool = True
    extra_outputs: frozenset[str] = frozenset()
    hidden_layers: tuple[str, ...] = ()
    finished: frozenset[str] = frozenset()
    done: Mapping[str, int] = field(default_factory=dict)
    asked: Callable[[], None] | None = None


def plan_of(part: Any) -> RunPlan | None:
    """The plan of the run that a module or data module is part of; None outside of such a run."""
    try:
        trainer = part.trainer
    except RuntimeError:  # how a LightningModule says that it has no trainer
        return None
    plans = (getattr(callback, "plan", None) for callback in getattr(trainer, "callbacks", ()))
    return next((plan for plan in plans if isinstance(plan, RunPlan)), None)
