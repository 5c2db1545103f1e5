"""Conformal p-values: compare the score of an image with the scores of ID images."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import ShareLike, exact_number
from oodlit.detectors.formulas.p_values import count_at_most
from oodlit.gate.threshold import ALPHA, Threshold, cuts_of, quantile_interval, scores_of
from oodlit.metrics.numerics.ranking import as_scores, exact_share
from oodlit.results import RunResults
from oodlit.results.key_parts import in_first_part


class Calibration(nn.Module):
    r"""Scores of n ID images, which calibrate the p-values of other images.

    The p-value of a score s is :math:`p = (1 + |\{i : c_i \le s\}|) / (n + 1)` for the calibration scores c. If an
    image and the calibration images are exchangeable, :math:`p \le \alpha` has a probability of at most alpha, for any
    distribution of scores and any detector.

    Args:
        scores: Ascending scores of the calibration images, float64, shape (n,).
        cuts: The numbers that scores of images are compared with, ascending, shape (n,): each is between a calibration
            score and the next lower score of the run, which tolerates rounding as `Threshold.cut` does.
        classes: Predicted classes of the calibration images, shape (n,), if an image is only compared with those of its
            predicted class; None = with all.

    Example:
        >>> scores = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
        >>> Calibration(scores, scores)(torch.tensor([0.5, 2.0, 9.0])).tolist()
        [0.2, 0.6, 1.0]

    References:
        Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World. 2nd edition, 2022, sections 2.2 and 4.6.
    """

    scores: Tensor
    cuts: Tensor
    classes: Tensor | None
    _places: Tensor

    def __init__(
        self, scores: Float64[Tensor, " n"], cuts: Float64[Tensor, " n"], classes: Int[Tensor, " n"] | None = None
    ) -> None:
        super().__init__()
        for name, value in {"scores": scores, "cuts": cuts, "classes": classes}.items():
            self.register_buffer(name, value)
        # One ascending number per image, by class and then by cut: the images of a class are searched like all.
        size = len(cuts)
        places = None if classes is None else (classes * size + torch.arange(size, device=cuts.device)).sort().values
        self.register_buffer("_places", places, persistent=False)

    def forward(
        self, scores: Float[Tensor, " batch"], predictions: Int[Tensor, " batch"] | None = None
    ) -> Float64[Tensor, " batch"]:
        """Return the p-values of a batch.

        Args:
            scores: Scores of images; NaN stays NaN.
            predictions: Predicted classes, if p-values are per class.
        """
        size: Any = len(self.cuts)
        count = count_at_most(self.cuts, scores.double())
        if self.classes is not None and predictions is not None:
            first, count, last = (count_at_most(self._places, predictions * size + n - 1) for n in (0, count, size))
            count, size = count - first, last - first
        found: Tensor = (count + 1).double() / (size + 1)
        return found.masked_fill(scores.isnan(), math.nan)


class Decision(nn.Module):
    """Accepts or refuses scores, by one threshold or by one per predicted class.

    A class with too few calibration images has no p-values; the threshold of all classes decides about its images.

    Args:
        threshold: The threshold.
        calibration: Calibration of the p-values; None = no p-values.
        num_classes: Number of classes of the network.
    """

    values: Tensor
    cuts: Tensor
    has_p_value: Tensor

    def __init__(self, threshold: Threshold, calibration: Calibration | None, num_classes: int) -> None:
        super().__init__()
        self.calibration = calibration
        self.is_per_class = calibration is not None and calibration.classes is not None
        values, cuts = [threshold.value], [threshold.cut]
        self.no_p_value: dict[int, str] = {}
        if calibration is not None and calibration.classes is not None:
            values, cuts, level = values * num_classes, cuts * num_classes, _level(threshold.share)
            for index in range(num_classes):
                own = calibration.classes == index
                place = _place(level, int(own.sum()))
                if place < 0:
                    self.no_p_value[index] = f"{int(own.sum())} calibration images, but alpha requires {_least(level)}"
                    continue
                values[index], cuts[index] = float(calibration.scores[own][place]), float(calibration.cuts[own][place])
        self.register_buffer("values", torch.tensor(values, dtype=torch.float64))
        self.register_buffer("cuts", torch.tensor(cuts, dtype=torch.float64))
        known = [index not in self.no_p_value for index in range(len(values))]
        self.register_buffer("has_p_value", torch.tensor(known))

    def forward(
        self, scores: Float[Tensor, " batch"], predictions: Int[Tensor, " batch"] | None
    ) -> tuple[Bool[Tensor, " batch"], Float64[Tensor, " batch"], Float64[Tensor, " batch"]]:
        """Return for each image whether it is accepted, the threshold, and the p-value: NaN if there is none."""
        places: Any = predictions if self.is_per_class else slice(None)
        p_values = torch.full_like(scores, math.nan, dtype=torch.float64)
        if self.calibration is not None:
            p_values = self.calibration(scores, predictions).masked_fill(~self.has_p_value[places], math.nan)
        return scores.double() >= self.cuts[places], self.values[places].expand_as(scores), p_values


def calibrate(
    results: RunResults,
    detector: str,
    *,
    alpha: ShareLike | None = None,
    calibration: ShareLike | None = None,
    per_class: bool = False,
    num_classes: int = 0,
) -> tuple[Calibration, Threshold | None]:
    """Calibrate p-values on ID images of a run, and derive the threshold of a level.

    An image is accepted if its score reaches the k-th smallest of the n calibration scores, k = floor(alpha (n + 1)),
    which is the same as p > alpha.

    Args:
        results: The run.
        detector: Name of the score column.
        alpha: Level, in (0, 1): largest mean fraction of refused images among images like the ID images. None = no
            threshold.
        calibration: Fraction of the ID images that calibrate, chosen by a hash of their keys, in (0, 1]; None = all.
        per_class: Whether to compare an image only with calibration images of its predicted class.
        num_classes: Number of classes of the network.

    Raises:
        InvalidArgumentError: A fraction is out of range, or there are too few images for it; or `per_class` without
            `alpha` or without a classifier.
    """
    if per_class and (alpha is None or not num_classes):
        raise InvalidArgumentError(
            "Gate: per_class=True also requires alpha=..., such as 0.05"
            if alpha is None
            else "Gate: per_class=True requires a network with classes, but the network returns no logits"
        )
    share = exact_share(1 if calibration is None else calibration, "calibration")
    inside = results.id_dataset.name
    rows = results.scores[results.scores["dataset"] == inside]
    scores, classes = scores_of(results, detector, inside), rows["prediction"].to_numpy(np.int64)
    as_scores(scores, f"scores of {inside} by {detector}")  # NaN has no rank
    chosen = others = np.ones(len(scores), dtype=bool)
    if share < 1:
        chosen = in_first_part(rows["key"], float(share))
        others = ~chosen
    if not (chosen.any() and others.any()):
        raise InvalidArgumentError(
            f"Gate: calibration={float(share):g} selects {chosen.sum()} of the {len(scores)} images of {inside},"
            " but some images must be selected and some must remain; choose another fraction"
        )
    cuts = cuts_of(scores, scores, results.scores[detector].to_numpy(np.float64))
    order = np.argsort(scores[chosen], kind="stable")
    known, their_cuts, their_classes = (torch.from_numpy(v[chosen][order]) for v in (scores, cuts, classes))
    made = Calibration(known, their_cuts, their_classes if per_class else None)
    if alpha is None:
        return made, None
    confidence, level = results.settings.confidence, _level(alpha)
    place = _place(level, len(known))
    if place < 0:
        raise InvalidArgumentError(
            f"Gate: alpha={float(level):g} requires at least {_least(level)} calibration images, got"
            f" {len(known)} images of {inside}; choose alpha >= {math.ceil(1e6 / (len(known) + 1)) / 1e6:g}"
            f"{', raise calibration' if share < 1 else ''}, or evaluate more ID images"
        )
    ends = quantile_interval(known.numpy(), float(level), confidence=confidence)
    kind, sizes = ALPHA[per_class], (len(known), int(others.sum()), 0)
    best = float(known[place]), float(their_cuts[place])
    found = Threshold(*best, *ends, kind, float(level), inside, *sizes, confidence, float(share))
    decision = Decision(found, made, num_classes)
    accepted, *_ = decision(torch.from_numpy(scores[others]), torch.from_numpy(classes[others]))
    return made, replace(found, num_id_refused=int((~accepted).sum()))


def _level(alpha: ShareLike) -> Fraction:
    level = None if isinstance(alpha, bool) else exact_number(alpha)
    if level is None or not 0 < level < 1:
        raise InvalidArgumentError(f"Gate: expected alpha in (0, 1), such as 0.05, got {alpha!r}")
    return level


def _least(alpha: Fraction) -> int:
    return math.ceil(1 / alpha) - 1


def _place(alpha: Fraction, num_images: int) -> int:
    """Return the index of the lowest accepted score among the ascending calibration scores; -1 if there are too few."""
    return math.floor(alpha * (num_images + 1)) - 1
