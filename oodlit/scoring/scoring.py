"""Score every batch with every detector, measure the time, and skip detectors that fail."""

import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from oodlit.base.checks import deferred_checks, plain_mode
from oodlit.base.outputs import Head, Outputs
from oodlit.detectors import Detector
from oodlit.detectors.statistics import Statistics
from oodlit.scoring.clock import OTHER, Clock

_log = logging.getLogger("oodlit.callbacks")

MOST_UNUSUAL = 8
"""Number of batches that may fail deferred checks and be scored twice; after that, every batch is checked"
" immediately."""


class Scoring:
    """Scores batches with many detectors; a detector that fails is skipped, and the others continue.

    A custom detector is fitted on copies, and reads a copy of every batch: what it may write, in
    whatever way, reaches no other. The values from before would be lost for all that follow.

    Args:
        detectors: By name.
        strict: True raises what a detector raises.
        clock: Measures fits and scores; None (default) = a new one, for detectors on the CPU.
    """

    def __init__(self, detectors: Mapping[str, Detector], *, strict: bool, clock: Clock | None = None) -> None:
        self.detectors, self.strict, self.clock = dict(detectors), strict, clock or Clock()
        self.failed: dict[str, str] = {}
        """Why detectors were left out, by name."""
        self.first_error: Exception | None = None
        self.float64: set[str] = set()
        self.defers_on = frozenset({"cuda"})
        """Types of devices that work asynchronously; their checks are deferred to the end of the batch."""
        self._unusual = 0
        self._foreign = {name for name, detector in detectors.items() if not detector.is_built_in}

    @property
    def active(self) -> list[str]:
        """Names of the active detectors."""
        return [name for name in self.detectors if name not in self.failed]

    def restore(self, failed: Mapping[str, str], float64: Iterable[str]) -> None:
        """Skip the detectors that failed before the run was interrupted."""
        self.failed |= {name: reason for name, reason in failed.items() if name in self.detectors}
        self.float64 |= set(float64) & self.detectors.keys()

    def fit(self, name: str, statistics: Statistics, head: Head | None) -> None:
        """Fit a detector; skip it if the fit fails."""
        detector = self.detectors[name]
        self.clock.enter("fit", name)
        try:
            detector.fit(*(_copies(detector, statistics, head) if name in self._foreign else (statistics, head)))
        except Exception as error:  # one that cannot be fitted takes no other with it
            detector.forget()
            self.leave_out(name, error)
        finally:
            self.clock.enter(OTHER)

    def score(self, outputs: Outputs, dataset: str, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Compute scores, shape (batch,), of the active detectors, or of those in `names`."""
        chosen = self.active if names is None else [name for name in names if name not in self.failed]
        # Not with custom detectors, whose errors could look like those of others
        may_defer = outputs.device.type in self.defers_on and not self._foreign and self._unusual < MOST_UNUSUAL
        scores = self._score_deferred(outputs, chosen) if may_defer else None
        if scores is None:
            scores = self._score_checked(outputs, dataset, chosen, images=0 if may_defer else len(outputs))
        self.clock.enter(OTHER)
        self.float64 |= {name for name, value in scores.items() if value.dtype == torch.float64}
        return scores

    def _score_deferred(self, outputs: Outputs, names: Sequence[str]) -> dict[str, Tensor] | None:
        """Score a batch with deferred checks, without waiting for the device; None if a check or a detector fails."""
        scores = {}
        try:
            with deferred_checks() as granted:
                own = replace(outputs)  # what is remembered of it may be void
                for name in names:
                    self.clock.enter("scores", name, images=len(outputs))
                    scores[name] = self.detectors[name].score(own)
            if not granted or bool(torch.stack([value.to(outputs.device) for value in granted]).all()):
                return scores
        except Exception as error:  # of which detector it is, and whether it is one, shows the careful way
            _log.debug("a batch is scored again, because a check or a detector failed: %s", error)
        self._unusual += 1
        return None

    def _score_checked(self, outputs: Outputs, dataset: str, names: Sequence[str], *, images: int) -> dict[str, Tensor]:
        """Scores with all values checked; a detector that fails is left out."""
        scores = {}
        for name in names:
            try:
                detector = self.detectors[name]
                given = _copy(outputs, detector.required_needs) if name in self._foreign else outputs
                self.clock.enter("scores", name, images=images)
                scores[name] = detector.score(given)
            except Exception as error:  # a detector fails in its own way, and takes no other with it
                self.leave_out(name, error, dataset, outputs)
        return scores

    def leave_out(self, name: str, error: Exception, dataset: str = "", outputs: Outputs | None = None) -> None:
        """Continue without a detector; raise the error if no detector is left or if the run is strict.

        Args:
            name: Name of the detector.
            error: What it raised.
            dataset: The data set on which it failed; empty = in the fit.
            outputs: The batch on which it failed.
        """
        self.first_error = self.first_error or error
        if self.strict:
            raise error
        step = f"on {dataset!r}" if dataset else "in the fit"
        where = "" if outputs is None or not outputs.keys else f", in the batch that begins with {outputs.keys[0]!r}"
        self.failed[name] = " ".join(f"failed {step}{where}: {type(error).__name__}: {error}".split())
        _log.warning("detector %r is skipped: it %s", name, self.failed[name])
        _log.debug("%s", "".join(traceback.format_exception(error)))
        if not self.active:
            raise error


def _copies(detector: Detector, statistics: Statistics, head: Head | None) -> tuple[Statistics, Head | None]:
    """Copy the outputs that a detector is fitted on."""
    with plain_mode():
        own = Statistics(deepcopy(statistics[kind]) for kind in detector.required_statistics if kind in statistics)
        own.shapes |= statistics.shapes
        return own, None if head is None else Head(head.weight.clone(), head.offset.clone())


def _copy(outputs: Outputs, needs: frozenset[str]) -> Outputs:
    """Copy the batch; images, hidden activations and the model only if the detector reads them."""
    with plain_mode():  # writes to tensors of inference mode are not counted
        small = {n: v.clone() for n in _SMALL if (v := getattr(outputs, n)) is not None}
        images = outputs.images.clone() if outputs.images is not None and "images" in needs else None
        hidden = {n: v.clone() for n, v in (outputs.hidden or {}).items()} if "hidden" in needs else None
        keys = None if outputs.keys is None else list(outputs.keys)
        model = outputs.model if "model" in needs else None
        return replace(outputs, **small, images=images, hidden=hidden or None, keys=keys, model=model)


_SMALL = ("logits", "features", "labels", "groups")
