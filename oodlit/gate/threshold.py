"""The score from which on a gate accepts, taken from the images of a run."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Float64
from scipy.stats import binom

from oodlit.base.fractions import ShareLike
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.metrics.numerics.acceptance import acceptance_threshold
from oodlit.metrics.numerics.ranking import exact_share
from oodlit.results import RunResults
from oodlit.results.info import id_dataset
from oodlit.roles import UNKNOWN_CLASSES

BAND = 0.01
"""Largest width of what counts as equal to a threshold, in units of its distance to the median of the ID scores."""


@dataclass(frozen=True)
class Threshold:
    """The score from which on a gate accepts an image, and where it comes from.

    Args:
        value: The threshold.
        cut: What scores are compared with. One and the same image scores a little differently in batches of other
            sizes and on other machines; half of the way down to the next score of the run counts as equal.
        ci_low: Lower end of the interval of the threshold that endlessly many such images would give; can be infinite.
        ci_high: Its upper end.
        kind: "tpr" or "fpr".
        share: Of the images of `dataset`, the share that is accepted: at least that for "tpr", at most for "fpr".
        dataset: Name of the set that the threshold comes from.
        num_images: Its number of images.
        num_id: Number of ID images of the run.
        num_id_refused: How many of them the threshold refuses.
        confidence: Nominal coverage of the interval.
    """

    value: float
    cut: float
    ci_low: float
    ci_high: float
    kind: str
    share: float
    dataset: str
    num_images: int
    num_id: int
    num_id_refused: int
    confidence: float

    def __str__(self) -> str:
        """In one line."""
        at = "at least" if self.kind == "tpr" else "at most"
        return (
            f"{self.value:.6g} [{self.ci_low:.6g}, {self.ci_high:.6g}], accepts {at} {100 * self.share:g} % of the"
            f" {self.num_images} images of {self.dataset}; refuses {self.num_id_refused} of {self.num_id} ID images"
        )


def threshold_of(
    results: RunResults,
    detector: str,
    *,
    tpr: ShareLike | None = None,
    fpr: ShareLike | None = None,
    dataset: str | None = None,
) -> Threshold:
    """The threshold of a detector at a share of ID images to accept, or of OOD images to let pass.

    Args:
        results: The run.
        detector: Name of the score column.
        tpr: Share of the ID images that is accepted at least, in (0, 1]. None: that of the run, unless `fpr` is given.
        fpr: Share of the images of `dataset` that is accepted at most, in [0, 1).
        dataset: Name of an OOD set or of unit tests, with `fpr`; needed where there are several.

    Raises:
        InvalidArgumentError: A share is out of its range, both are given, or no threshold lets so few images pass.
        UnknownNameError: There is no such detector or set.
        DataError: The set has no image.
    """
    results.check_detectors(detector)
    if fpr is not None and tpr is not None:
        raise InvalidArgumentError(f"Gate: tpr={tpr} and fpr={fpr}; one of them decides the threshold")
    if fpr is None and dataset is not None:
        raise InvalidArgumentError(f"Gate: dataset={dataset!r} goes with fpr=...; tpr is taken from the ID set")
    inside = id_dataset(results.datasets).name
    id_scores = _scores(results, detector, inside)
    if fpr is None:
        share = exact_share(results.settings.tpr if tpr is None else tpr)
        name, scores, kind = inside, id_scores, "tpr"
        value = acceptance_threshold(scores, tpr=share, rule=results.settings.rule)
    else:
        name, kind, share = _set_for_fpr(results, dataset), "fpr", _fpr(fpr)
        scores = _scores(results, detector, name)
        value = _at_fpr(scores, id_scores, share, name)
    confidence = results.settings.confidence
    low, high = quantile_interval(scores, float(1 - share), confidence=confidence)
    everything = results.scores[detector].to_numpy(np.float64)
    cut = _cut(value, id_scores, everything)
    refused = int((id_scores < cut).sum())
    sizes = {"num_images": len(scores), "num_id": len(id_scores), "num_id_refused": refused}
    return Threshold(value, cut, low, high, kind, float(share), name, **sizes, confidence=confidence)


def quantile_interval(
    scores: Float64[np.ndarray, " n"], share: float, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval for the value below which a share of all images scores, from those of a sample.

    Its ends are observed scores, whose ranks follow from the binomial distribution; it holds for any distribution of
    scores. Where there are too few images for an end, it is infinite.

    Args:
        scores: The sample, at least one.
        share: In [0, 1].
        confidence: Nominal coverage, in (0, 1); the true one is not below it.

    Example:
        >>> quantile_interval(np.arange(100.0), 0.05)
        (0.0, 10.0)

    References:
        Conover: Practical Nonparametric Statistics, 3rd edition, 1999, section 3.2.
    """
    tail = (1 - confidence) / 2
    low, high = (int(binom.ppf(level, len(scores), share)) for level in (tail, 1 - tail))
    padded = np.concatenate([[-math.inf], np.sort(scores), [math.inf]])
    return float(padded[low]), float(padded[high + 1])


def _scores(results: RunResults, detector: str, dataset: str) -> Float64[np.ndarray, " n"]:
    found = results.scores.loc[results.scores["dataset"] == dataset, detector].to_numpy(np.float64)
    if not len(found):
        raise DataError(f"Gate: the run has no scores of {dataset!r}, which the threshold is taken from")
    return found


def _set_for_fpr(results: RunResults, dataset: str | None) -> str:
    known = [info.name for info in results.datasets if info.role in UNKNOWN_CLASSES]
    if dataset is None and len(known) == 1:
        return known[0]
    if dataset is None:
        raise InvalidArgumentError(f"Gate: fpr=... of which set? Give dataset=, one of {', '.join(known) or 'none'}")
    if dataset not in known:
        raise UnknownNameError.of("set of OOD images", dataset, known)
    return dataset


def _fpr(fpr: ShareLike) -> Fraction:
    if isinstance(fpr, int | float) and fpr == 0:
        return Fraction(0)
    share = exact_share(fpr, "fpr")
    if share == 1:
        raise InvalidArgumentError("fpr=1: a share in [0, 1) is needed; a gate that accepts everything is none")
    return share


def _at_fpr(
    scores: Float64[np.ndarray, " n"], id_scores: Float64[np.ndarray, " m"], share: Fraction, name: str
) -> float:
    """The smallest observed score that at most a share of the scores reaches."""
    allowed = math.floor(share * len(scores))
    last_refused = np.sort(scores)[::-1][allowed]
    above = np.concatenate([scores, id_scores])
    above = above[above > last_refused]
    if not len(above):
        raise InvalidArgumentError(
            f"Gate: fpr={float(share):g}: {int((scores == last_refused).sum())} images of {name!r} have the highest"
            " score of all, so that a gate that refuses them accepts nothing; allow more, or take another detector"
        )
    return float(above.min())


def _cut(value: float, id_scores: Float64[np.ndarray, " n"], everything: Float64[np.ndarray, " m"]) -> float:
    """Half of the way down to the next score of the run, but never far."""
    below = everything[everything < value]
    if not math.isfinite(value) or not len(below):
        return value
    gap = (value - float(below.max())) / 2
    band = BAND * abs(float(np.median(id_scores)) - value)
    return value - min(gap, band) if band > 0 and math.isfinite(band) else value
