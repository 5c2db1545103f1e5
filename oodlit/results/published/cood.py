"""Published severity curves of COOD: detection from easy to hard unseen classes.

Source: I. Galil, M. Dabbah and R. El-Yaniv, 'A framework for benchmarking class-out-of-distribution detection and its
application to ImageNet', ICLR 2023. The curves are the result file of the authors' program
(`mdabbah/COOD_benchmarking`, MIT, commit 8964aad), re-shaped to a row per model and confidence function. Names of
models follow timm 0.4.12 and 0.6.12, `<arch>_torchvision`, `<arch>_original` and `CLIP_<arch>` with `~` for `/`; the
weights behind a name may have changed since. Every curve belongs to a pool that its own model and confidence function
order: about 11,000 classes of ImageNet-21k, 1000 per level.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from oodlit.base.errors import InvalidArgumentError, UnknownNameError
from oodlit.results.published.table import read_rows

LEVELS = 11


class PublishedCurve(NamedTuple):
    """The published curve of one model with one confidence function.

    Args:
        model: As published.
        kappa: Confidence function: "softmax", "max_logit", "entropy", "odin" or "mcd_entropy".
        accuracy: On ImageNet-1k, 0..1.
        id_auroc: AUROC of correct against wrong predictions, 0..1.
        levels: AUROC of severity 0 (easiest) to 10 (hardest), 0..1.
    """

    model: str
    kappa: str
    accuracy: float
    id_auroc: float
    levels: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean AUROC over the levels."""
        return sum(self.levels) / len(self.levels)


class CurveRank(NamedTuple):
    """Rank of a curve among the published ones of its confidence function.

    Args:
        kappa: The confidence function.
        published: Number of published curves.
        below: Number of lower curves, per level.
        equal: Number of equal curves, per level.
        mean_below: Number of curves with a lower mean over the levels.
    """

    kappa: str
    published: int
    below: tuple[int, ...]
    equal: tuple[int, ...]
    mean_below: int


@cache
def published_curves(kappa: str | None = None) -> tuple[PublishedCurve, ...]:
    """The published curves in the order of their models' names.

    Args:
        kappa: One confidence function; None (default) = all.

    Raises:
        UnknownNameError: The confidence function is unknown.

    Example:
        >>> len(published_curves()), len(published_curves("softmax"))
        (1848, 539)
    """
    if kappa is not None:
        UnknownNameError.check("confidence function", kappa, kappas())
        return tuple(curve for curve in published_curves() if curve.kappa == kappa)
    return tuple(
        PublishedCurve(model, kappa, float(accuracy), float(id_auroc), tuple(map(float, levels)))
        for model, kappa, accuracy, id_auroc, *levels in map(dict.values, read_rows("cood_curves.csv.gz"))
    )


@cache
def kappas() -> tuple[str, ...]:
    """Names of the confidence functions that have curves, sorted.

    Example:
        >>> kappas()
        ('entropy', 'max_logit', 'mcd_entropy', 'odin', 'softmax')
    """
    return tuple(sorted({curve.kappa for curve in published_curves()}))


def rank_curve(levels: Sequence[float], kappa: str) -> CurveRank:
    """Compare a curve with the published ones.

    Args:
        levels: AUROC of the 11 levels, easiest first, none of them NaN.
        kappa: Confidence function whose curves are compared.

    Raises:
        InvalidArgumentError: There are not 11 levels, or one is not in 0..1.
        UnknownNameError: The confidence function is unknown.

    Example:
        >>> found = rank_curve([0.9] * 11, "softmax")
        >>> found.published, found.below[0], found.below[10], found.mean_below
        (539, 195, 539, 536)
    """
    if len(levels) != LEVELS or not all(0 <= level <= 1 for level in levels):
        wish = f"the AUROC of {LEVELS} levels, from 0 to 1, easiest level first"
        raise InvalidArgumentError(f"rank_curve: expected {wish}, got {list(levels)}")
    curves = published_curves(kappa)
    below = tuple(sum(curve.levels[level] < value for curve in curves) for level, value in enumerate(levels))
    equal = tuple(sum(curve.levels[level] == value for curve in curves) for level, value in enumerate(levels))
    mean_below = sum(curve.mean < sum(levels) / LEVELS for curve in curves)
    return CurveRank(kappa, len(curves), below, equal, mean_below)


def quantile_curves(kappa: str, shares: Sequence[float]) -> list[tuple[float, ...]]:
    """Quantiles of the published curves, level by level.

    Args:
        kappa: Confidence function.
        shares: In 0..1; the value is the smallest one that at least this share of the curves do not exceed.

    Returns:
        One tuple of 11 values per share.

    Raises:
        InvalidArgumentError: A share is out of its range.
        UnknownNameError: The confidence function is unknown.

    Example:
        >>> [round(curve[0], 3) for curve in quantile_curves("softmax", [0.0, 0.5, 1.0])]
        [0.581, 0.905, 0.992]
    """
    if not all(0 <= share <= 1 for share in shares):
        raise InvalidArgumentError(f"quantile_curves: expected shares in 0..1, got {list(shares)}")
    columns = [sorted(column) for column in zip(*(curve.levels for curve in published_curves(kappa)), strict=True)]
    n = len(columns[0])
    ranks = [max(0, min(n, -int(-share * n // 1)) - 1) for share in shares]
    return [tuple(column[rank] for column in columns) for rank in ranks]


def kappa_of(detector: str, settings: Mapping[str, Any]) -> str | None:
    """The published confidence function that a detector corresponds to; None if unknown.

    Args:
        detector: Name of the class.
        settings: Its settings; missing ones have their defaults.

    Example:
        >>> kappa_of("MSP", {}), kappa_of("ODIN", {"step": "paper"}), kappa_of("Cosine", {"concepts": "head"})
        ('softmax', None, 'max_logit')
    """
    for name, kappa, wanted in _KAPPAS:
        if name == detector and all(settings.get(key, default) == value for key, (value, default) in wanted.items()):
            return kappa
    return None


_KAPPAS: tuple[tuple[str, str, dict[str, tuple[Any, Any]]], ...] = (
    ("MSP", "softmax", {}),
    ("MaxLogit", "max_logit", {}),
    ("Cosine", "max_logit", {"concepts": ("head", "means")}),  # of a zero-shot classifier: logits are cosines
    ("Entropy", "entropy", {}),
    ("ODIN", "odin", {"step": ("cood", "paper"), "temperature": (2.0, 1000.0), "epsilon": (1e-5, 0.0014)}),
    ("MCDropout", "mcd_entropy", {"passes": (30, 30), "measure": ("entropy", "entropy")}),
)
"""Class, confidence function, and required settings: value and default."""


def of_imagenet21k(class_names: Sequence[str]) -> bool:
    """Whether classes come from ImageNet-21k: each name begins with a wnid.

    Example:
        >>> of_imagenet21k(["n02512053 fish", "n12433081"]), of_imagenet21k(["fish"])
        (True, False)
    """
    return bool(class_names) and all(re.fullmatch(r"n\d{8}( .*)?", name) for name in class_names)
