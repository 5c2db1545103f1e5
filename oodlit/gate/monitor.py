"""Monitor whether a gate refuses more or fewer images than the ID set predicts."""

import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
from scipy.special import betaln, xlog1py, xlogy

from oodlit.base.atomic import write_text
from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.json_files import read_json, to_json, to_plain
from oodlit.base.text.warn import warn_here
from oodlit.gate.drift import DriftState, DriftTest
from oodlit.gate.threshold import Threshold
from oodlit.gate.verdict import Verdict
from oodlit.metrics.numerics.ranking import ScoreLike
from oodlit.metrics.uncertainty.intervals import check_confidence, wilson_interval


class RefusalWarning(UserWarning):
    """The fraction of refused images differs from the fraction that the ID set predicts."""


class DriftWarning(UserWarning):
    """The scores have changed, see `DriftTest`."""


class MonitorState(msgspec.Struct):
    """What a `Monitor` remembers: the file that `Monitor.save` writes."""

    cut: float | str
    num_images: int
    num_refused: int
    num_p_values: int
    sum_p_values: float
    was_outside: bool
    drift: DriftState | None = None


@runtime_checkable
class Decides(Protocol):
    """Anything that decides like a `Gate`."""

    threshold: Threshold

    def __call__(self, images: Any, *, keys: Sequence[str] | None = None) -> list[Verdict]:
        """Return one verdict per image."""


def running_interval(successes: int, total: int, *, confidence: float = 0.95) -> tuple[float, float]:
    r"""Return an interval for a fraction k/n that is valid at all times, so that it may be checked after every image.

    It contains all p with :math:`p^k (1-p)^{n-k} > \alpha\, B(1+k, 1+n-k)`: the likelihood of p is at least alpha times
    its mean over all p in [0, 1]. The probability that this interval ever misses the true fraction is at most
    alpha = 1 - confidence. A Wilson interval that is checked repeatedly misses it sooner or later.

    Args:
        successes: Count k, 0 <= k <= n.
        total: Number of trials n.
        confidence: Nominal coverage, in (0, 1).

    Raises:
        InvalidArgumentError: A number is outside its range.

    Example:
        >>> [round(end, 3) for end in running_interval(50, 1000)]
        [0.028, 0.08]
        >>> running_interval(0, 0)
        (0.0, 1.0)

    References:
        Robbins: Statistical Methods Related to the Law of the Iterated Logarithm. Annals of Math. Statistics 1970.
    """
    confidence = check_confidence(confidence)
    if not 0 <= successes <= total:
        raise InvalidArgumentError(f"running_interval: expected 0 <= successes <= total, got {successes} of {total}")
    least = math.log(1 - confidence) + betaln(1 + successes, 1 + total - successes)

    def excess(p: float) -> float:
        return float(xlogy(successes, p) + xlog1py(total - successes, -p) - least)

    likeliest = successes / total if total else 0.5
    return _edge(excess, likeliest, 0.0), _edge(excess, likeliest, 1.0)


def _edge(excess: Callable[[float], float], inside: float, outside: float) -> float:
    """Find by bisection where a function that is positive at `inside` falls to zero; `outside` if it never does."""
    if excess(outside) > 0:
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if excess(middle) > 0 else (inside, middle)
    return outside


class Monitor:
    """Count the images that a gate refuses, and warn when the fraction differs from the ID set's prediction.

    Call it in place of the gate. It compares two intervals: the running interval of the fraction of refused images,
    which is valid at all times, and the interval of the fraction of ID images that the threshold refuses. As long as
    they overlap, the images may be like those of the ID set. Beside this count, it tests all scores for drift.

    Args:
        gate: The gate.
        confidence: Nominal coverage of both intervals, in (0, 1). None (default) = the one of the gate's threshold.
        drift: Test of the scores for drift; None (default) = none. `Gate.monitor` creates it.

    Warns:
        RefusalWarning: Each time the intervals cease to overlap.
        DriftWarning: Once, when drift is found; the text states when and by how much the scores have changed.

    Example:
        >>> monitor = Monitor(gate)  # doctest: +SKIP
        >>> verdicts = monitor(images)  # doctest: +SKIP
        >>> print(monitor)  # doctest: +SKIP
        refused 31 of 500 images: 6.2 % [3.8 %, 9.6 %]; expected from the ID set: 5.1 % [3.5 %, 7.4 %];
        mean p-value 0.47 (ID images: 0.5); no drift found in 500 images
    """

    def __init__(self, gate: Decides, *, confidence: float | None = None, drift: DriftTest | None = None) -> None:
        self.gate, self.drift = gate, drift
        self.confidence = check_confidence(gate.threshold.confidence if confidence is None else confidence)
        self._lock = threading.Lock()
        self._was_outside = False
        self.reset()

    def __call__(self, images: Any, *, keys: Sequence[str] | None = None) -> list[Verdict]:
        """Return the verdicts of the gate, and count them."""
        verdicts = self.gate(images, keys=keys)
        p_values = [verdict.p_value for verdict in verdicts if verdict.p_value is not None]
        self._count([verdict.accepted for verdict in verdicts], [verdict.score for verdict in verdicts], p_values)
        return verdicts

    def count(self, accepted: Iterable[bool], *, scores: ScoreLike = ()) -> None:
        """Count decisions made elsewhere, such as by an exported program, and test their scores for drift.

        Args:
            accepted: The decisions.
            scores: The scores, in the order in which the images arrived; none (default) = do not test.

        Raises:
            InvalidArgumentError: There are scores, but not one per decision.
            NonFiniteScoreError: NaN among the scores, if the monitor tests for drift; then nothing is counted.
        """
        self._count([bool(decision) for decision in accepted], scores, [])

    def _count(self, decisions: list[bool], scores: ScoreLike, p_values: list[float]) -> None:
        if len(scores) not in (0, len(decisions)):  # type: ignore[arg-type]
            raise InvalidArgumentError(
                f"Monitor.count: expected one score per decision, or no scores, got {len(scores)} scores for"  # type: ignore[arg-type]
                f" {len(decisions)} decisions"
            )
        with self._lock:
            has_drifted = False
            if self.drift is not None:
                was_quiet = self.drift.alarm is None
                self.drift.update(scores)
                has_drifted = was_quiet and self.drift.alarm is not None
            self._p_values += len(p_values)
            self._sum += sum(p_values)
            self.num_images += len(decisions)
            self.num_refused += decisions.count(False)
            is_outside = self.is_outside
            has_left, self._was_outside = is_outside and not self._was_outside, is_outside
        if has_left:
            warn_here(f"images passed to the gate differ from the images of the ID set: {self}", RefusalWarning)
        if has_drifted:
            warn_here(f"images passed to the gate are no longer like those of the ID set: {self.drift}", DriftWarning)

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write counts and drift test to a JSON file, atomically; `restore` and `Gate.monitor(state=...)` read it."""
        with self._lock:
            counts = (self.num_images, self.num_refused, self._p_values, self._sum, self._was_outside)
            drift = self.drift.state() if self.drift else None
            state = MonitorState(to_plain(self.gate.threshold.cut), *counts, drift=drift)
        write_text(file, to_json(state))

    def restore(self, file: str | os.PathLike[str]) -> None:
        """Continue from a file that `save` wrote.

        Raises:
            FileNotFoundError: There is no such file.
            DataError: The file is damaged.
            InvalidArgumentError: It belongs to a gate with another threshold or other ID scores.
        """
        state = read_json(Path(file), MonitorState)
        if state.cut != to_plain(cut := self.gate.threshold.cut):
            raise InvalidArgumentError(
                f"{file} belongs to a gate that compares scores with {state.cut}, but this gate compares them with"
                f" {cut}; load the other gate, or start a new monitor"
            )
        is_possible = 0 <= state.num_refused <= state.num_images and 0 <= state.num_p_values <= state.num_images
        if not (is_possible and 0 <= state.sum_p_values <= state.num_p_values):
            raise DataError(f"{file} is damaged, because its counts contradict each other; start a new monitor")
        with self._lock:
            if self.drift and state.drift:
                self.drift.restore(state.drift)
            self.num_images, self.num_refused = state.num_images, state.num_refused
            self._p_values, self._sum, self._was_outside = state.num_p_values, state.sum_p_values, state.was_outside

    def reset(self) -> None:
        """Restart the counts, for example daily: old images hide recent changes.

        The test for drift continues, since its false-alarm rate covers unlimited time; restart it with `drift.reset()`.
        """
        with self._lock:
            self.num_images = self.num_refused = self._p_values = 0
            self._sum = 0.0
            self._was_outside = False

    @property
    def share(self) -> float:
        """Fraction of refused images, in [0, 1]; NaN before the first image."""
        return self.num_refused / self.num_images if self.num_images else math.nan

    @property
    def mean_p_value(self) -> float:
        """Mean p-value of the images that have one, about 0.5 for images like the ID images; NaN without any."""
        return self._sum / self._p_values if self._p_values else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of `share`, see `running_interval`."""
        return running_interval(self.num_refused, self.num_images, confidence=self.confidence)

    @property
    def expected(self) -> tuple[float, float]:
        """Wilson interval of the fraction of refused images among images like those of the ID set."""
        threshold = self.gate.threshold
        return wilson_interval(threshold.num_id_refused, threshold.num_id, confidence=self.confidence)

    @property
    def is_outside(self) -> bool:
        """Whether the two intervals do not overlap."""
        (low, high), (least, most) = self.interval, self.expected
        return low > most or high < least

    def __str__(self) -> str:
        """Return counts and both fractions in one line."""
        threshold, percent = self.gate.threshold, _percent
        expected = threshold.num_id_refused / threshold.num_id
        seen = "no image seen yet"
        if self.num_images:
            seen = f"refused {self.num_refused} of {self.num_images} images: {percent(self.share, self.interval)}"
        p_values = f"; mean p-value {self.mean_p_value:.2g} (ID images: 0.5)" if self._p_values else ""
        drift = f"; {self.drift}" if self.drift else ""
        return f"{seen}; expected from the ID set: {percent(expected, self.expected)}{p_values}{drift}"


def _percent(share: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{100 * share:.1f} % [{100 * low:.1f} %, {100 * high:.1f} %]"
