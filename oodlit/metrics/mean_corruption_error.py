"""Mean corruption error of ImageNet-C: errors relative to the errors of a baseline."""

import math
from collections.abc import Mapping, Sequence

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.known_classes.imagenet import COMMON_CORRUPTIONS


def mean_corruption_error(
    errors: Mapping[str, float],
    baseline: Mapping[str, float],
    *,
    clean: tuple[float, float] | None = None,
    kinds: Sequence[str] = COMMON_CORRUPTIONS,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
) -> float:
    """Mean over corruptions of CE = (sum of the errors over severities) / (the same sum of a baseline).

    It is a ratio: 1 = as bad as the baseline. The papers' tables show it in percent, with AlexNet as the baseline. It
    differs from 1 - accuracy: corruptions that are hard for the baseline count less. oodlit contains no baseline;
    measure or cite one, and name it beside the result. With `clean`, the relative mCE: the increase of the errors over
    those on clean images, CE = sum (E - E_clean) / sum (B - B_clean).

    Args:
        errors: Error (1 - accuracy, 0..1) by "<kind>/<severity>", the groups of the set "imagenet_c".
        baseline: The same for the baseline. Other groups are ignored.
        clean: Errors on clean images of the model and of the baseline; None (default) = plain mCE.
        kinds: Corruptions; by default the 15 of the paper, without the four extra ones.
        severities: Severities out of 1..5; by default all.

    Returns:
        The mean of the ratios.

    Raises:
        InvalidArgumentError: A group is missing, an error is outside 0..1, or the baseline has a non-positive sum for
            some corruption, so that its ratio is undefined.

    Example:
        >>> errors = {"fog/1": 0.2, "fog/2": 0.4, "snow/1": 0.3, "snow/2": 0.3}
        >>> alex = {"fog/1": 0.4, "fog/2": 0.8, "snow/1": 0.3, "snow/2": 0.3}
        >>> mean_corruption_error(errors, alex, kinds=("fog", "snow"), severities=(1, 2))
        0.75

    References:
        Hendrycks, Dietterich: Benchmarking Neural Network Robustness to Common Corruptions, ICLR 2019.
        https://arxiv.org/abs/1903.12261
    """
    if not kinds or not severities or len(set(kinds)) < len(kinds) or len(set(severities)) < len(severities):
        raise InvalidArgumentError(
            "mean_corruption_error: expected at least one kind and one severity, and none twice; got"
            f" kinds={tuple(kinds)} and severities={tuple(severities)}"
        )
    ours, theirs = (0.0, 0.0) if clean is None else (_error(clean[0], "clean"), _error(clean[1], "clean"))
    ratios = []
    for kind in kinds:
        groups = [f"{kind}/{severity}" for severity in severities]
        above = math.fsum(_of(errors, "errors", group) - ours for group in groups)
        below = math.fsum(_of(baseline, "baseline", group) - theirs for group in groups)
        if below <= 0:
            raise InvalidArgumentError(
                f"mean_corruption_error: expected a positive sum of the baseline's errors for {kind!r}"
                f"{', each minus its clean error' if clean else ''}, got {below:g}"
            )
        ratios.append(above / below)
    return math.fsum(ratios) / len(ratios)


def _of(errors: Mapping[str, float], name: str, group: str) -> float:
    if group not in errors:
        raise InvalidArgumentError(
            f"mean_corruption_error: {name} has no value for {group!r}; expected one for each severity of each kind."
            " To leave out kinds or severities, pass kinds=... or severities=..., and report them with the result"
        )
    return _error(errors[group], f"{name}[{group!r}]")


def _error(value: float, name: str) -> float:
    if not 0 <= value <= 1:  # NaN too
        raise InvalidArgumentError(f"mean_corruption_error: expected {name} to be an error from 0 to 1, got {value}")
    return value
