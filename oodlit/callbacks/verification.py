"""Whether a faster way to the outputs leads to the same outputs: compared on the first batches."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oodlit.detectors import Detector
from oodlit.errors import RequirementError
from oodlit.module import OODModule
from oodlit.outputs import Outputs

MOST_OF_LOGITS = {False: 0.01, True: 0.1}
"""Largest deviation of the logits, in units of their spread; False: in float32, True: where 16 bits are involved."""
MOST_OF_SCORES = {False: 0.05, True: 0.5}
"""Likewise of the scores of any detector, in units of their spread over the images of the batch."""
LEAST_IMAGES = 2
"""A batch of fewer has no spread."""


class Verification:
    """Compares the outputs of a run with those of the plain network, on one batch each for logits and for scores.

    It does nothing for a network that runs plainly in the precision of its weights.

    Args:
        module: The backbone.
        precision: Lightning's name of the precision of the run.
    """

    def __init__(self, module: OODModule, precision: str) -> None:
        self._module = module
        self._is_cut = "16" in precision
        self.options = module.acceleration.options | ({"precision": precision} if precision in MIXED else {})
        self._has_logits = self._has_scores = not self.options
        self._found: dict[str, Any] = {}

    @property
    def record(self) -> dict[str, Any]:
        """What was asked for, and how far it is from the plain network; empty where nothing was."""
        return {**self.options, **self._found} if self.options else {}

    def check_logits(self, outputs: Outputs, batch: Any) -> None:
        """Compare logits, or features where there are none, of the first batch that has a spread.

        Raises:
            RequirementError: They deviate by too much; says by how much, and what to leave out.
        """
        if self._has_logits or len(outputs) < LEAST_IMAGES:
            return
        self._has_logits = True
        exact = self._module.exact_outputs(batch)
        name = "logits" if outputs.logits is not None and exact.logits is not None else "features"
        deviation = relative_deviation(outputs.require(name), exact.require(name))
        self._found[f"deviation_of_{name}"] = round(deviation, 6)
        allowed = MOST_OF_LOGITS[self._is_cut]
        if not deviation <= allowed:
            again = relative_deviation(self._module.exact_outputs(batch).require(name), exact.require(name))
            if not again <= allowed:
                raise RequirementError(
                    f"{self._module.name}: the {name} of the same images differ from pass to pass by {again:.2g} of"
                    f" their spread, without {self._asked} as well; something in the network is random, such as"
                    " dropout that is active: switch it off"
                )
        self._check(f"the {name}", deviation, allowed)

    def check_scores(self, scores: Mapping[str, Tensor], batch: Any, detectors: Mapping[str, Detector]) -> None:
        """Compare the scores of the first test batch that has a spread.

        Raises:
            RequirementError: Those of a detector deviate by too much.
        """
        if self._has_scores or not scores or len(next(iter(scores.values()))) < LEAST_IMAGES:
            return
        self._has_scores = True
        exact = self._module.exact_outputs(batch)
        with self._module.acceleration.eager():
            plain = {name: detectors[name].score(exact) for name in scores}
        found = {name: relative_deviation(score, plain[name]) for name, score in scores.items()}
        self._found["deviation_of_scores"] = {name: round(value, 6) for name, value in found.items()}
        for name, value in found.items():
            self._check(f"the scores of {name!r}", value, MOST_OF_SCORES[self._is_cut])

    @property
    def _asked(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.options.items())

    def _check(self, what: str, deviation: float, allowed: float) -> None:
        if not deviation <= allowed:
            raise RequirementError(
                f"{self._module.name} with {self._asked}: {what} of the first images deviate from those of the plain"
                f" network by {deviation:.2g} of their spread, at most {allowed:g} is allowed; leave the option out"
            )


MIXED = ("bf16-mixed", "16-mixed")
"""Precisions of which the plain network is at hand: its weights stay in float32."""


def relative_deviation(values: Tensor, exact: Tensor) -> float:
    """Root mean square of the differences, in units of the standard deviation of the exact values.

    Values that are equal count as no difference, infinite ones included. NaN on one side alone is infinitely far.

    Example:
        >>> relative_deviation(torch.tensor([1.0, 3.1]), torch.tensor([1.0, 3.0]))
        0.0707...
        >>> relative_deviation(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 3.0]))
        inf
    """
    one, other = (value.detach().cpu().double() for value in (values, exact))
    equal = (one == other) | (one.isnan() & other.isnan())
    difference = torch.where(equal, torch.zeros_like(one), one - other)
    if not bool(difference.isfinite().all()):
        return math.inf
    size = float(difference.square().mean().sqrt())
    known = other[other.isfinite()]
    spread = float(known.std(correction=0)) if len(known) else 0.0
    return size / spread if spread else (0.0 if size == 0 else math.inf)


def leave_as_it_was(module: object) -> None:
    """Switch off what makes a network faster, after a run that failed: Lightning does not ask modules to."""
    if isinstance(module, OODModule):
        module.acceleration.stop()
