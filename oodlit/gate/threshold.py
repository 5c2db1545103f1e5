"""Derive the threshold of a gate from the scores of a run."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Float64
from scipy.stats import binom

from oodlit.base.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.base.fractions import ShareLike
from oodlit.base.roles import UNKNOWN_CLASSES
from oodlit.metrics.numerics.acceptance import acceptance_threshold
from oodlit.metrics.numerics.ranking import exact_share
from oodlit.results import RunResults
from oodlit.results.info import id_dataset

BAND = 0.01
"""Largest distance between threshold and cut, in units of the distance from the threshold to the median ID score."""

ALPHA = ("alpha", "alpha per class")
"""Kinds of thresholds of p-values."""


@dataclass(frozen=True)
class Threshold:
    """The lowest score that a gate accepts, and its origin.

    Args:
        value: The threshold.
        cut: The number that scores are compared with, halfway between the threshold and the next lower score of the
            run. This tolerates rounding: the score of an image varies slightly with batch size and machine.
        ci_low: Lower end of the confidence interval of the threshold; can be infinite.
        ci_high: Upper end of the interval; can be infinite.
        kind: "tpr", "fpr", "alpha", or "alpha per class": then classes have their own thresholds, see `Calibration`.
        share: Fraction of accepted images of `dataset`: the minimum for "tpr", the maximum for "fpr". For "alpha", the
            maximum mean fraction of refused ID images.
        dataset: Name of the data set that the threshold is derived from.
        num_images: Number of images of `dataset`.
        num_id: Number of ID images of the run; without the calibration images if `calibration` is below 1.
        num_id_refused: Number of these ID images that the threshold refuses.
        confidence: Nominal coverage of the interval, in (0, 1).
        calibration: For "alpha", the fraction of the ID images that the threshold is derived from.
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
    calibration: float = 1.0

    @property
    def is_consistent(self) -> bool:
        """Whether the numbers, which may come from a file, can belong to a threshold. NaN never does."""
        return (
            math.isfinite(self.value)
            and -math.inf < self.cut <= self.value
            and not (math.isnan(self.ci_low) or math.isnan(self.ci_high))
            and self.kind in ("tpr", "fpr", *ALPHA)
            and 0 <= self.share <= 1
            and 0 < self.calibration <= 1
            and 0 < self.confidence < 1
            and 0 <= self.num_id_refused <= self.num_id
            and self.num_images >= 0
        )

    def __str__(self) -> str:
        """Return threshold, interval and origin in one line."""
        number = f"{self.value:.6g} [{self.ci_low:.6g}, {self.ci_high:.6g}]"
        if self.kind in ALPHA:
            of_class = " of each predicted class" if self.kind == ALPHA[1] else ""
            images = f"{self.num_images} calibration images of {self.dataset}"
            counted = f"of the {self.num_id} other ID images"
            if self.calibration == 1:
                images, counted = f"{images} (also used by the metrics of the run)", f"of these {self.num_id} images"
            return (
                f"{number}, from {images}: refuses on average at most {100 * self.share:g} % of similar"
                f" images{of_class}, and {self.num_id_refused} {counted}"
            )
        at = "at least" if self.kind == "tpr" else "at most"
        return (
            f"{number}, which accepts {at} {100 * self.share:g} % of the {self.num_images} images of {self.dataset}"
            f" and refuses {self.num_id_refused} of {self.num_id} ID images"
        )


def threshold_of(
    results: RunResults,
    detector: str,
    *,
    tpr: ShareLike | None = None,
    fpr: ShareLike | None = None,
    dataset: str | None = None,
) -> Threshold:
    """Derive the threshold of a detector from a minimum TPR on the ID set or a maximum FPR on an OOD set.

    Args:
        results: The run.
        detector: Name of the score column.
        tpr: Minimum fraction of accepted ID images, in (0, 1]. None = the one of the run, unless `fpr` is given.
        fpr: Maximum fraction of accepted images of `dataset`, in [0, 1).
        dataset: Name of an OOD set or of unit tests, with `fpr`; required if there are several.

    Raises:
        InvalidArgumentError: A fraction is out of range, both are given, or no threshold accepts this few images.
        UnknownNameError: The detector or data set does not exist.
        DataError: The data set has no images.
    """
    (detector,) = results.resolve_detectors(detector)
    if fpr is not None and tpr is not None:
        raise InvalidArgumentError(f"Gate: expected tpr or fpr, got both: tpr={tpr} and fpr={fpr}")
    if fpr is None and dataset is not None:
        raise InvalidArgumentError(f"Gate: dataset={dataset!r} requires fpr=..., since tpr is for the ID set")
    inside = id_dataset(results.datasets).name
    id_scores = scores_of(results, detector, inside)
    if fpr is None:
        share = exact_share(results.settings.tpr if tpr is None else tpr)
        name, scores, kind = inside, id_scores, "tpr"
        value = acceptance_threshold(scores, tpr=share, rule=results.settings.rule)
    else:
        share = exact_share(fpr, "fpr", below_one=True, allow_zero=True)
        name, kind = _set_for_fpr(results, dataset), "fpr"
        scores = scores_of(results, detector, name)
        value = _at_fpr(scores, id_scores, share, name)
    confidence = results.settings.confidence
    low, high = quantile_interval(scores, float(1 - share), confidence=confidence)
    everything = results.scores[detector].to_numpy(np.float64)
    cut = float(cuts_of(np.array([value]), id_scores, everything)[0])
    refused = int((id_scores < cut).sum())
    sizes = {"num_images": len(scores), "num_id": len(id_scores), "num_id_refused": refused}
    return Threshold(value, cut, low, high, kind, float(share), name, **sizes, confidence=confidence)


def quantile_interval(
    scores: Float64[np.ndarray, " n"], share: float, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return a confidence interval for a quantile of the scores of all images, from a sample.

    Its ends are observed scores, whose ranks follow from the binomial distribution; it is valid for any distribution of
    scores. An end is infinite if the sample is too small for it.

    Args:
        scores: The sample, shape (n,) with n >= 1.
        share: Level of the quantile: the fraction of scores below it, in [0, 1].
        confidence: Nominal coverage, in (0, 1); the actual coverage is at least this.

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


def scores_of(results: RunResults, detector: str, dataset: str) -> Float64[np.ndarray, " n"]:
    """Return the scores of a data set by a detector, in the order of `results.scores`; at least one."""
    found = results.scores.loc[results.scores["dataset"] == dataset, detector].to_numpy(np.float64)
    if not len(found):
        raise DataError(f"Gate: the run has no scores of {dataset!r}, which the threshold requires")
    return found


def _set_for_fpr(results: RunResults, dataset: str | None) -> str:
    known = [info.name for info in results.datasets if info.role in UNKNOWN_CLASSES]
    if dataset is None and len(known) == 1:
        return known[0]
    if not known:
        raise InvalidArgumentError("Gate: fpr=... requires OOD images, but the run has none; pass tpr=... instead")
    if dataset is None:
        raise InvalidArgumentError(
            f"Gate: fpr=... requires the name of a set of OOD images; pass dataset=... with one of {', '.join(known)}"
        )
    if dataset not in known:
        raise UnknownNameError.of("set of OOD images", dataset, known)
    return dataset


def _at_fpr(
    scores: Float64[np.ndarray, " n"], id_scores: Float64[np.ndarray, " m"], share: Fraction, name: str
) -> float:
    """Return the smallest observed score that at most the fraction `share` of the scores reaches."""
    allowed = math.floor(share * len(scores))
    last_refused = np.sort(scores)[::-1][allowed]
    above = np.concatenate([scores, id_scores])
    above = above[above > last_refused]
    if not len(above):
        raise InvalidArgumentError(
            f"Gate: with fpr={float(share):g} no ID image is accepted, because {(scores == last_refused).sum()} images"
            f" of {name!r} have a score that no ID image exceeds; increase fpr, or choose another detector"
        )
    return float(above.min())


def cuts_of(
    values: Float64[np.ndarray, " k"], id_scores: Float64[np.ndarray, " n"], everything: Float64[np.ndarray, " m"]
) -> Float64[np.ndarray, " k"]:
    """Return for each score the number halfway to the next lower score of the run, at most `BAND` below the score."""
    ordered = np.unique(everything)
    place = np.searchsorted(ordered, values)
    with np.errstate(invalid="ignore"):
        gap = (values - ordered[np.maximum(place - 1, 0)]) / 2
        band = BAND * np.abs(np.median(id_scores) - values)
        usable = np.isfinite(values) & (place > 0) & (band > 0) & np.isfinite(band)
        return np.where(usable, values - np.minimum(gap, band), values)
