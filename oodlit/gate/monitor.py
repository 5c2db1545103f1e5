"""How many images a gate refuses, and whether they are more or fewer than among images like those of the ID set."""

import math
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from scipy.special import betaln, xlog1py, xlogy

from oodlit.errors import InvalidArgumentError
from oodlit.gate.threshold import Threshold
from oodlit.gate.verdict import Verdict
from oodlit.metrics.uncertainty.intervals import check_confidence, wilson_interval


class RefusalWarning(UserWarning):
    """A gate refuses a share of images that the ID set does not predict."""


@runtime_checkable
class Decides(Protocol):
    """What a monitor asks: a gate."""

    threshold: Threshold

    def __call__(self, images: Any, *, keys: Sequence[str] | None = None) -> list[Verdict]:
        """One verdict for each image."""


def running_interval(successes: int, total: int, *, confidence: float = 0.95) -> tuple[float, float]:
    r"""Interval for a share k/n that holds at all times: one may look after every image, and stop when one likes.

    All p with :math:`p^k (1-p)^{n-k} > \alpha\, B(1+k, 1+n-k)`: the likelihood of p is not below alpha times its mean
    over all p in [0, 1]. The chance that this interval ever misses the true share is at most alpha = 1 - confidence. A
    Wilson interval that is looked at again and again misses it sooner or later.

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
        raise InvalidArgumentError(f"running_interval: {successes} of {total}; 0 <= successes <= total is needed")
    least = math.log(1 - confidence) + betaln(1 + successes, 1 + total - successes)

    def excess(p: float) -> float:
        return float(xlogy(successes, p) + xlog1py(total - successes, -p) - least)

    likeliest = successes / total if total else 0.5
    return _edge(excess, likeliest, 0.0), _edge(excess, likeliest, 1.0)


def _edge(excess: Callable[[float], float], inside: float, outside: float) -> float:
    """Where a function falls to zero on the way from a point at which it is positive; the end if it does not."""
    if excess(outside) > 0:
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if excess(middle) > 0 else (inside, middle)
    return outside


class Monitor:
    """A gate that counts what it refuses, and warns when that leaves what the ID set predicts.

    It calls the gate and gives its verdicts. Images are taken one after the other, and the running interval holds at
    all times. It is compared with the interval of the share of ID images that the threshold refuses: as long as they
    overlap, nothing speaks against images like those of the ID set.

    Args:
        gate: What decides.
        confidence: Nominal coverage of both intervals, in (0, 1). None (default) = that of the gate's threshold.

    Warns:
        RefusalWarning: Once, whenever the share of refused images leaves the predicted one.

    Example:
        >>> monitor = Monitor(gate)  # doctest: +SKIP
        >>> verdicts = monitor(images)  # doctest: +SKIP
        >>> print(monitor)  # doctest: +SKIP
        refused 31 of 500 images: 6.2 % [3.8 %, 9.6 %]; the ID set predicts 5.1 % [3.5 %, 7.4 %]
    """

    def __init__(self, gate: Decides, *, confidence: float | None = None) -> None:
        self.gate = gate
        self.confidence = check_confidence(gate.threshold.confidence if confidence is None else confidence)
        self._lock = threading.Lock()
        self.num_images = self.num_refused = 0
        self._was_outside = False

    def __call__(self, images: Any, *, keys: Sequence[str] | None = None) -> list[Verdict]:
        """The verdicts of the gate, which are counted."""
        verdicts = self.gate(images, keys=keys)
        self.count(verdict.accepted for verdict in verdicts)
        return verdicts

    def count(self, accepted: Iterable[bool]) -> None:
        """Count decisions that were made elsewhere, such as by an exported program."""
        decisions = [bool(decision) for decision in accepted]
        with self._lock:
            self.num_images += len(decisions)
            self.num_refused += decisions.count(False)
            is_outside = self.is_outside
            has_left, self._was_outside = is_outside and not self._was_outside, is_outside
        if has_left:
            warnings.warn(f"{self}: these are other images than those of the ID set", RefusalWarning, stacklevel=3)

    def reset(self) -> None:
        """Begin anew, such as every day: what came long ago hides what has changed since."""
        with self._lock:
            self.num_images = self.num_refused = 0
            self._was_outside = False

    @property
    def share(self) -> float:
        """Share of refused images; NaN before the first."""
        return self.num_refused / self.num_images if self.num_images else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Running interval of that share, see `running_interval`."""
        return running_interval(self.num_refused, self.num_images, confidence=self.confidence)

    @property
    def expected(self) -> tuple[float, float]:
        """Interval of the share that is refused of images like those of the ID set."""
        threshold = self.gate.threshold
        return wilson_interval(threshold.num_id_refused, threshold.num_id, confidence=self.confidence)

    @property
    def is_outside(self) -> bool:
        """Whether the two intervals do not overlap."""
        (low, high), (least, most) = self.interval, self.expected
        return low > most or high < least

    def __str__(self) -> str:
        """Counts and both shares; before the first image, that nothing was seen."""
        threshold, percent = self.gate.threshold, _percent
        expected = threshold.num_id_refused / threshold.num_id
        seen = "no image seen yet"
        if self.num_images:
            seen = f"refused {self.num_refused} of {self.num_images} images: {percent(self.share, self.interval)}"
        return f"{seen}; the ID set predicts {percent(expected, self.expected)}"


def _percent(share: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{100 * share:.1f} % [{100 * low:.1f} %, {100 * high:.1f} %]"
