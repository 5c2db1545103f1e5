"""Check on the first batches that options which speed up a network do not change its outputs."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oodlit.backbones.acceleration import Acceleration
from oodlit.base.errors import RequirementError
from oodlit.base.json_files import as_type, to_plain
from oodlit.base.outputs import Outputs
from oodlit.base.processes.distributed import Group, gather_objects
from oodlit.detectors import Detector
from oodlit.results.record_parts import AccelerationRecord

MOST_OF_LOGITS = {False: 0.01, True: 0.1}
"""Largest accepted deviation of the logits, in units of their spread; by whether 16 bits are involved, or a device
decoded JPEGs to other pixels."""
MOST_OF_SCORES = {False: 0.05, True: 0.5}
"""Largest accepted deviation of the scores of any detector, in units of their spread over the batch."""
LEAST_IMAGES = 2
"""Smaller batches are compared together with the next one, since so few images have no spread."""


class Matched(NamedTuple):
    """Rows of a run, and the same rows of the plain network.

    Args:
        rows: Which rows of the run.
        outputs: All rows of the run.
        exact: The rows of the plain network that belong to those of `rows`.
    """

    rows: Tensor | slice
    outputs: Outputs
    exact: Outputs


Match = Callable[[Any, Any], Matched]


def every_row(outputs: Outputs, exact: Outputs) -> Matched:
    """Pair rows by their position: each is an image."""
    return Matched(slice(None), outputs, exact)


class Verification:
    """Compares logits and scores of the first batches with those of the plain network.

    It does nothing for a network that runs plainly in the precision of its weights, on images that workers decoded. Of
    images that a device decodes, it is the first batches with such images that count.

    Args:
        module: The backbone.
        precision: Lightning's name of the precision of the run.
        decode_on_device: Whether a device decodes JPEGs.
        match: Finds the rows of a batch among those of the plain network.
    """

    def __init__(
        self, module: Any, precision: str, *, decode_on_device: bool = False, match: Match = every_row
    ) -> None:
        self._module, self._match = module, match
        self._is_in_16_bits = "16" in precision
        self.options = (
            module.acceleration.options
            | ({"precision": precision} if precision in MIXED else {})
            | ({"decode_on_device": True} if decode_on_device else {})
        )
        self._to_check = {"logits", "scores"} if self.options else set()
        self._to_check_decoded = {"logits", "scores"} if decode_on_device else set()
        self._found: dict[str, Any] = {}
        self._too_few: dict[str, dict[str, list[tuple[Tensor, Tensor]]]] = {"logits": {}, "scores": {}}

    @property
    def record(self) -> AccelerationRecord:
        """The options of the run, and the deviations from outputs of the plain network."""
        entries = to_plain({**self.options, **self._found} if self.options else {})
        return as_type(entries, AccelerationRecord, where="acceleration")

    def check_logits(self, found: Any, batch: Any) -> None:
        """Compare the logits (without logits: the features) of the first images with those of the plain network.

        Raises:
            RequirementError: They deviate by too much; the message names the deviation and what to leave out.
        """
        if not self._is_due("logits", batch):
            return
        batch = self._read_exactly(batch)
        index, outputs, exact = self._match(found, self._module.exact_outputs(batch))
        name = "logits" if outputs.logits is not None and exact.logits is not None else "features"
        values, known = self._with_those_before("logits", name, outputs.require(name)[index], exact.require(name))
        if not self._is_enough("logits", len(values), batch):
            return
        deviation = relative_deviation(values, known)
        self._note(f"deviation_of_{name}", deviation)
        allowed = MOST_OF_LOGITS[self._is_loose]
        if not deviation <= allowed:
            index, outputs, exact = self._match(*(self._module.exact_outputs(batch) for _ in range(2)))
            again = relative_deviation(outputs.require(name)[index], exact.require(name))
            if not again <= allowed:
                raise RequirementError(
                    f"{self._module.name}: two forward passes on the same images return {name} that differ by"
                    f" {again:.2g} standard deviations, even without {self._asked}. Part of the network is random, for"
                    " example active dropout; make it deterministic"
                )
        self._check(f"the {name}", deviation, allowed)

    def check_scores(
        self, found: Any, scores: Mapping[str, Tensor], batch: Any, detectors: Mapping[str, Detector]
    ) -> None:
        """Compare the scores of the first test images with those of the plain network.

        Raises:
            RequirementError: Those of a detector deviate by too much.
        """
        if not scores or not self._is_due("scores", batch):
            return
        index, _, exact = self._match(found, self._module.exact_outputs(self._read_exactly(batch)))
        with self._module.acceleration.eager():
            plain = {name: detectors[name].score(exact) for name in scores}
        pairs = {
            name: self._with_those_before("scores", name, score[index], plain[name]) for name, score in scores.items()
        }
        if not self._is_enough("scores", max(len(values) for values, _ in pairs.values()), batch):
            return
        deviations = {name: relative_deviation(*pair) for name, pair in pairs.items()}
        for name, value in deviations.items():
            self._note("deviation_of_scores", value, of=name)
        for name, value in deviations.items():
            self._check(f"the scores of {name!r}", value, MOST_OF_SCORES[self._is_loose])

    def join(self, group: Group) -> None:
        """Join the deviations of all processes; the record contains the largest ones."""
        if not self.options:
            return
        for found in gather_objects(group, self._found):
            self.restore(found)

    def state(self) -> dict[str, Any]:
        """The deviations found so far, for a resumed run."""
        return self._found

    def restore(self, found: Mapping[str, Any]) -> None:
        """Join the deviations that another process, or an earlier start of the run, has found."""
        for what, value in found.items():
            for of, number in value.items() if isinstance(value, dict) else [(None, value)]:
                self._note(what, number, of=of)

    def _is_due(self, what: str, batch: Any) -> bool:
        """Whether a comparison is due: none was made yet, or none with images that a device decoded."""
        return any(what in left for left in self._due(batch))

    def _due(self, batch: Any) -> list[set[str]]:
        return [self._to_check, *([self._to_check_decoded] if "exact" in batch else [])]

    def _with_those_before(self, what: str, name: str, values: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
        """Values and exact values, joined with those of earlier batches that were too small to compare."""
        pairs = self._too_few[what].setdefault(name, [])
        pairs.append((values.detach().cpu(), exact.detach().cpu()))
        one, other = zip(*pairs, strict=True)
        return torch.cat(one), torch.cat(other)

    def _is_enough(self, what: str, images: int, batch: Any) -> bool:
        """Whether this many images have a spread; then they count as compared."""
        if images < LEAST_IMAGES:
            return False
        self._too_few[what].clear()
        for left in self._due(batch):
            left.discard(what)
        return True

    def _read_exactly(self, batch: Any) -> Any:
        """The batch with the exact images in place of those that a device decoded."""
        if "exact" not in batch:
            return batch
        images, reading = batch["image"], batch["exact"]
        exact = reading.images(images)
        for name, steps in zip(("largest", "mean"), reading.deviation(images, exact), strict=True):
            self._note("deviation_of_pixels", steps, of=name)
        return {**batch, "image": exact}

    def _note(self, what: str, value: float, *, of: str | None = None) -> None:
        """Keep the largest that was found."""
        found, name = (self._found, what) if of is None else (self._found.setdefault(what, {}), of)
        found[name] = max(found.get(name, 0.0), round(value, 6))

    @property
    def _is_loose(self) -> bool:
        return self._is_in_16_bits or self._found.get("deviation_of_pixels", {}).get("largest", 0.0) > 0

    @property
    def _asked(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.options.items())

    def _check(self, what: str, deviation: float, allowed: float) -> None:
        if not deviation <= allowed:
            images = ", with images decoded by workers" if "deviation_of_pixels" in self._found else ""
            raise RequirementError(
                f"{self._module.name} with {self._asked}: on the first images, {what} deviate by {deviation:.2g}"
                f" standard deviations from the plain network{images}; at most {allowed:g} is allowed. Run without"
                f" {self._asked}"
            )


MIXED = ("bf16-mixed", "16-mixed")
"""Precisions that keep the weights in float32, so that the plain network can be run for comparison."""


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
    difference = torch.where((one == other) | (one.isnan() & other.isnan()), torch.zeros_like(one), one - other)
    if not bool(difference.isfinite().all()):
        return math.inf
    size = float(difference.square().mean().sqrt())
    known = other[other.isfinite()]
    spread = float(known.std(correction=0)) if len(known) else 0.0
    return size / spread if spread else (0.0 if size == 0 else math.inf)


def leave_as_it_was(module: object) -> None:
    """Switch off the options that speed up a network, after a failed run."""
    acceleration = getattr(module, "acceleration", None)
    if isinstance(acceleration, Acceleration):
        acceleration.stop()
