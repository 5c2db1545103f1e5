"""A sequential test on a stream of scores: when have the images ceased to be like those of the ID set?

Every score is ranked among the ID scores and all earlier scores of the stream. Without a change, these ranks are
independent and uniform, however long the stream is. Bets on them multiply a capital; it reaches 1 / rate with a
probability of at most that rate.
"""

import hashlib
import math

import msgspec
import numpy as np
from jaxtyping import Float64

from oodlit.base.checks import check_seed
from oodlit.base.errors import DataError, InvalidArgumentError
from oodlit.base.fractions import ShareLike
from oodlit.metrics.numerics.ranking import ScoreLike, as_scores, exact_share

BINS = 1000
"""Largest number of bins between ID scores; memory and the resolution of a p-value depend on it."""
_INTERVALS = [(0.0, 0.01), (0.0, 0.05), (0.0, 0.2), (0.0, 0.5), (0.25, 0.75)]
_INTERVALS += [(0.5, 1.0), (0.8, 1.0), (0.95, 1.0), (0.99, 1.0)]
_STAKES = [0.01, 0.03, 0.1, 0.3]
_LOW, _HIGH, _STAKE = np.array([(low, high, stake) for low, high in _INTERVALS for stake in _STAKES]).T
_WIN, _LOSE = 1 + _STAKE * (1 / (_HIGH - _LOW) - 1), 1 - _STAKE


class DriftAlarm(msgspec.Struct):
    """When the images have changed, and by how much.

    The interval and the start are those of the most successful bet, so `share` tends to exceed the true fraction.

    Args:
        image: Number of the image at which the alarm was raised, from 1.
        since: Estimated number of the first image after the change.
        low: Lower end of the interval of ranks that has become more frequent, as a fraction of the ID scores and
            earlier scores.
        high: Upper end.
        images: Number of images since the estimated change, including those after the alarm.
        hits: Number of these images whose rank is in the interval; `high - low` of them are expected.
    """

    image: int
    since: int
    low: float
    high: float
    images: int
    hits: int

    @property
    def share(self) -> float:
        """Fraction of the images since the change whose rank is in the interval."""
        return self.hits / self.images

    def __str__(self) -> str:
        """Return when and by how much in one line."""
        place = "lowest" if self.low == 0 else "highest" if self.high == 1 else "middle"
        part = f"{place} {100 * (self.high - self.low):g} %"
        return (
            f"drift detected at image {self.image:,}; it began near image {self.since:,}. Since then,"
            f" {100 * self.share:.1f} % of scores ({self.hits:,} of {self.images:,}) are in the {part} of the ID"
            " scores and earlier scores"
        )


class DriftState(msgspec.Struct):
    """What a `DriftTest` remembers, in the types of JSON.

    Args:
        calibration: Digest of the ID scores and the seed.
        counts: Number of scores in each bin, plus one for the score to come.
        num_images: Number of images seen.
        capital: Capital of each bet.
        peak: Logarithm of the largest gain of each bet since any image.
        since: Image at which that gain began.
        hits: Number of successes since then.
        alarm: The alarm, if there was one.
    """

    calibration: str
    counts: list[int]
    num_images: int = 0
    capital: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(_WIN))
    peak: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(_WIN))
    since: list[int] = msgspec.field(default_factory=lambda: [1] * len(_WIN))
    hits: list[int] = msgspec.field(default_factory=lambda: [0] * len(_WIN))
    alarm: DriftAlarm | None = None


class DriftTest:
    r"""Test a stream of scores for a change, with a bounded rate of false alarms over unlimited time.

    The null hypothesis: ID scores and stream are exchangeable, such as independent draws from one distribution. Then
    the probability that an alarm is ever raised is at most `false_alarm_rate`. Sorted traffic and consecutive frames of
    a video are not exchangeable, so they also cause alarms.

    **Ranks.** A fixed calibration set would not do: its sampling error is noticed in the end. Here the p-value of a
    score is its rank among the ID scores and all earlier scores of the stream, with ties in random order, divided by
    their number plus one, and drawn uniformly within that step. Under the null hypothesis, these p-values are
    independent and uniform (Vovk et al., 2005). Only the number of scores between neighboring ID scores is stored: a
    new score falls into one of n + 1 such gaps with a probability proportional to one plus that number. With more than
    `BINS` gaps, neighbors are joined, which keeps the p-values exact. So memory does not grow with the stream.

    **Bets.** Bet i puts a fraction of its capital on the p-value being in an interval I: the capital is multiplied by
    :math:`1 + \lambda (1[p \in I] / |I| - 1)`. A new share of the initial capital 1 is invested before every image t:
    :math:`W(t-1) - W(t)` with :math:`W(t) = 1 / \ln(e + t)`, divided equally. So a change is found after any time, at
    the price of a delay that grows with the logarithm of t. The total is a martingale; by Ville's inequality, it ever
    reaches 1 / rate with a probability of at most that rate.

    After an alarm, the test stops. Later images are compared with those before the alarm until `reset`.

    Args:
        calibration: ID scores that the detector was not fitted on, shape (n,), n >= 1.
        false_alarm_rate: Largest probability of a false alarm over unlimited time, in (0, 1).
        seed: Seed of the random order of tied scores and of the p-values, an integer from 0 to 2^32 - 1.

    Raises:
        InvalidArgumentError: There are no ID scores, or a number is out of range.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> test = DriftTest(np.arange(1000.0))
        >>> p_values = test.update([-1.0] * 20)
        >>> print(str(test).partition(".")[0])
        drift detected at image 3; it began near image 1

    References:
        Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World. Springer 2005, chapters 7 and 8.
        Vovk et al.: Retrain or Not Retrain: Conformal Test Martingales for Change-Point Detection. COPA 2021.
        Ville: Étude critique de la notion de collectif. Gauthier-Villars 1939.
    """

    def __init__(self, calibration: ScoreLike, *, false_alarm_rate: ShareLike = 0.01, seed: int = 0) -> None:
        scores = _rounded(calibration, "calibration")
        check_seed("DriftTest", seed)
        if not len(scores):
            raise InvalidArgumentError("DriftTest: expected at least one ID score, got none")
        self.false_alarm_rate = float(exact_share(false_alarm_rate, "false_alarm_rate", below_one=True))
        self.seed = seed
        noise = self._draw(len(scores), stream=1)[:, 0]
        order = np.lexsort((noise, scores))
        bins = min(BINS, len(scores) + 1)
        ends = np.arange(1, bins) * (len(scores) + 1) // bins
        self._edges, self._noise = scores[order][ends - 1], noise[order][ends - 1]
        self._sizes = np.diff([0, *ends, len(scores) + 1])
        self._digest = hashlib.sha256(scores[order].tobytes() + noise[order].tobytes()).hexdigest()[:16]
        self.reset()

    def reset(self) -> None:
        """Start a new test; the false-alarm rate then applies again."""
        self.restore(DriftState(self._digest, self._sizes.tolist()))

    def restore(self, state: DriftState) -> None:
        """Continue from a state that `state` returned.

        Raises:
            InvalidArgumentError: The state belongs to other ID scores or to another seed.
            DataError: It is damaged.
        """
        if state.calibration != self._digest:
            raise InvalidArgumentError(
                "DriftTest: the state was saved by a test with other ID scores or another seed; start a new test"
            )
        bets = (state.capital, state.peak, state.since, state.hits)
        ranked = state.alarm.image if state.alarm else state.num_images
        is_whole = len(state.counts) == len(self._sizes) and min(state.counts) > 0
        is_whole &= sum(state.counts) == self._sizes.sum() + ranked and all(len(each) == len(_WIN) for each in bets)
        is_whole &= all(map(math.isfinite, state.peak)) and all(0 <= part < math.inf for part in state.capital)
        for since, hits in zip(state.since, state.hits, strict=False):
            is_whole &= 1 <= since <= ranked + 1 and 0 <= hits <= max(ranked - since + 1, 0)
        if alarm := state.alarm:
            is_whole &= 1 <= alarm.since <= alarm.image and alarm.images == state.num_images - alarm.since + 1
            is_whole &= 0 <= alarm.hits <= alarm.images and (alarm.low, alarm.high) in _INTERVALS
        if not is_whole:
            raise DataError("DriftTest: the state is damaged (its counts contradict each other); start a new test")
        self.num_images, self.alarm = state.num_images, msgspec.structs.replace(state.alarm) if state.alarm else None
        self._counts = np.array(state.counts)
        self._capital, self._peak, self._since, self._hits = map(np.array, bets)

    def state(self) -> DriftState:
        """Return what `restore` requires to continue, with the same results as without a break."""
        capital, peak, since, hits = (v.tolist() for v in (self._capital, self._peak, self._since, self._hits))
        alarm = msgspec.structs.replace(self.alarm) if self.alarm else None
        return DriftState(self._digest, self._counts.tolist(), self.num_images, capital, peak, since, hits, alarm)

    @property
    def evidence(self) -> float:
        """The capital, initially 1; an alarm is raised at 1 / `false_alarm_rate`."""
        return float(self._capital.sum()) + _reserve(self.num_images)

    def update(self, scores: ScoreLike) -> Float64[np.ndarray, " n"]:
        """Read scores in the order of the stream, and return their p-values; how they are split into calls is the same.

        Args:
            scores: Scores of the detector, shape (n,), higher = more in-distribution.

        Returns:
            P-values in [0, 1), shape (n,); small = a low score. Independent and uniform without a change.

        Raises:
            NonFiniteScoreError: NaN among the scores; then none of them counts.
        """
        values = _rounded(scores, "scores")
        draws = self._draw(len(values), first=self.num_images)
        first, last = (np.searchsorted(self._edges, values, side) for side in ("left", "right"))
        found = np.empty(len(values))
        for i, (noise, position) in enumerate(draws[:, :2]):
            place = first[i]
            if last[i] > place:  # tied with edges
                place += np.searchsorted(self._noise[place : last[i]], noise)
            found[i] = (self._counts[:place].sum() + position * self._counts[place]) / self._counts.sum()
            self.num_images += 1
            if self.alarm is None:
                self._counts[place] += 1
                self._bet(found[i])
            else:
                self.alarm.images += 1
                self.alarm.hits += int(self.alarm.low <= found[i] < self.alarm.high)
        return found

    def _bet(self, p_value: float) -> None:
        number = self.num_images
        is_hit = (p_value >= _LOW) & (p_value < _HIGH)
        gain = np.where(is_hit, _WIN, _LOSE)
        self._capital = (self._capital + (_reserve(number - 1) - _reserve(number)) / len(_WIN)) * gain
        restarts = self._peak <= 0
        self._since[restarts], self._hits[restarts] = number, 0
        self._peak = self._peak.clip(0) + np.log(gain)
        self._hits += is_hit
        if self.evidence >= 1 / self.false_alarm_rate:
            best = int(self._peak.argmax())
            since, hits = int(self._since[best]), int(self._hits[best])
            self.alarm = DriftAlarm(number, since, *_INTERVALS[best // len(_STAKES)], number - since + 1, hits)

    def _draw(self, number: int, *, first: int = 0, stream: int = 0) -> Float64[np.ndarray, "n 4"]:
        """Random numbers of images, which do not depend on how the stream is split into calls."""
        return np.random.Generator(np.random.Philox(key=[self.seed, stream], counter=first)).random((number, 4))

    def __str__(self) -> str:
        """Return when and by how much the images have changed, or that no change was found."""
        return str(self.alarm) if self.alarm else f"no drift found in {self.num_images:,} images"


def _reserve(number: int) -> float:
    """Capital that is not yet invested after this many images."""
    return 1 / math.log(math.e + number)


def _rounded(scores: ScoreLike, name: str) -> Float64[np.ndarray, " n"]:
    """Scores with six significant digits: saturated scores differ in the last digit between batch sizes."""
    mantissa, exponent = np.frexp(as_scores(scores, name).cpu().double().numpy())
    with np.errstate(over="ignore"):  # the largest numbers become infinite, which changes no rank
        rounded: np.ndarray = np.ldexp(np.round(mantissa * 2**20), exponent - 20)
    return rounded
