r"""Bootstrap intervals that draw whole images, since boxes of one image are not independent.

An image drawn twice counts with all of its boxes and objects twice. tau and t\* are taken as given, except for the FPR,
whose threshold is computed again in every repetition.
"""

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from oodlit.metrics.uncertainty.intervals import wilson_interval

_NUMBERS = 1 << 22
"""Numbers kept in memory at a time, about 32 MB."""


def resample(n_images: int, *, repetitions: int, seed: int) -> Int[np.ndarray, "repetitions images"]:
    """How often every image is drawn in every repetition, with as many draws as images.

    Example:
        >>> resample(5, repetitions=3, seed=0).sum(axis=1).tolist()
        [5, 5, 5]
    """
    if not n_images:
        return np.zeros((repetitions, 0), dtype=np.int64)
    return np.asarray(np.random.default_rng(seed).multinomial(n_images, np.full(n_images, 1 / n_images), repetitions))


def interval(
    replicates: Float[np.ndarray, " repetitions"], *, confidence: float, value: float, n_images: int
) -> tuple[float, float]:
    """Percentile interval of the repetitions in which the metric is defined.

    If all of them are 0 or all are 1, the percentiles would claim a certainty that this number of images cannot give.
    The interval is then Wilson's for a share of the images.

    Example:
        >>> [round(end, 2) for end in interval(np.zeros(100), confidence=0.95, value=0.0, n_images=20)]
        [0.0, 0.16]
    """
    known = replicates[~np.isnan(replicates)]
    if not len(known) or math.isnan(value):
        return math.nan, math.nan
    if known.min() == known.max() and value in (0.0, 1.0):
        return wilson_interval(round(value * n_images), n_images, confidence=confidence)
    low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def ratios(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Element-wise part / whole, NaN where whole is 0."""
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=np.asarray(whole) != 0))


def blocks(repetitions: int, width: int) -> Iterator[slice]:
    """Slices of the repetitions, so that a block with `width` numbers each fits in memory."""
    step = max(1, _NUMBERS // max(width, 1))
    return (slice(start, start + step) for start in range(0, repetitions, step))
