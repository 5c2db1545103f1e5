"""Levels of severity: the OOD classes of each level, and sums over them (COOD).

Galil, Dabbah and El-Yaniv, A framework for benchmarking class-out-of-distribution detection and its application to
ImageNet, ICLR 2023. The classes of a pool are sorted by difficulty; n_ID neighbors form a window.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.metrics.numerics.ranking import ScoreLike, as_count, as_scores

LEVELS = 11
"""Number of levels in the paper, s0 .. s10."""


def level_starts(num_classes: int, id_classes: int, levels: int = LEVELS) -> list[int]:
    """Return the first class of each level: min(i G // (L - 1), G - 1), with G = K - n_ID + 1 windows.

    A level contains `id_classes` of the sorted classes. With K = L n_ID the levels are a partition of the pool; with
    fewer classes neighboring levels overlap, with more there are gaps between them. With K = n_ID all levels are the
    same.

    Args:
        num_classes: Number of classes of the pool, K.
        id_classes: Number of classes that the classifier knows, n_ID; at least 1.
        levels: Number of levels L, at least 2. Default 11.

    Returns:
        L positions, ascending, never NaN; a pool that is too small is refused.

    Raises:
        InvalidArgumentError: The pool has fewer classes than the classifier, or a number is out of range.

    Example:
        >>> level_starts(11_000, 1000)[:4], level_starts(7, 5, levels=3)
        ([0, 1000, 2000, 3000], [0, 1, 2])
    """
    num_classes = as_count(num_classes, "num_classes", at_least=0)
    id_classes, levels = as_count(id_classes, "id_classes"), as_count(levels, "levels", at_least=2)
    if num_classes < id_classes:
        raise InvalidArgumentError(
            f"the pool has {num_classes} classes, but each level requires {id_classes}, as many as there are ID"
            " classes; use a larger pool"
        )
    windows = num_classes - id_classes + 1
    return [min(level * windows // (levels - 1), windows - 1) for level in range(levels)]


def severity_order(severities: ScoreLike) -> Int[Tensor, " classes"]:
    """Sort classes from the easiest to the hardest; equal ones by index.

    Args:
        severities: Mean confidence of every class, higher = harder, shape (classes,). Infinities are ordered.

    Returns:
        Indices of the classes, shape (classes,).

    Raises:
        NonFiniteScoreError: NaN among the severities.

    Example:
        >>> severity_order([0.5, 0.2, 0.5, float("-inf")]).tolist()
        [3, 1, 0, 2]
    """
    return as_scores(severities, "severities").argsort(stable=True)


def window_values(
    totals: Int[Tensor, " classes"] | Float[Tensor, " classes"],
    sizes: Int[Tensor, " classes"],
    order: Int[Tensor, " classes"],
    width: int,
) -> Float[Tensor, " windows"]:
    """Compute values of all windows of neighboring classes from prefix sums: sum of totals / sum of sizes.

    For a metric that is linear in the OOD images, such as AUROC or FPR, this is the value for all images of the
    classes. With integers, every sum is exact.

    Args:
        totals: Sum over the images of every class.
        sizes: Images of every class, or another denominator; positive.
        order: Classes from the easiest to the hardest, see `severity_order`.
        width: Number of classes of a window.

    Returns:
        One value for each of the K - width + 1 windows; NaN if its classes have a total size of 0.

    Raises:
        InvalidArgumentError: There are fewer classes than in a window, or lengths differ.

    Example:
        >>> totals, sizes = torch.tensor([1, 4, 0]), torch.tensor([2, 4, 2])
        >>> window_values(totals, sizes, torch.tensor([2, 0, 1]), width=2).tolist()
        [0.25, 0.8333333333333334]
    """
    if not len(totals) == len(sizes) == len(order):
        raise InvalidArgumentError(
            f"window_values: expected totals, sizes and order of equal length, got {len(totals)}, {len(sizes)}"
            f" and {len(order)} values"
        )
    level_starts(len(order), width)
    return _window_sums(totals[order], width).double() / _window_sums(sizes[order], width).double()


def check_no_class_is_empty(sizes: Int[Tensor, " classes"], kind: str, class_names: Sequence[str] = ()) -> None:
    """Raise if a class has no images of a kind, "estimation" or "test".

    Raises:
        InvalidArgumentError: Names the first of these classes.
    """
    empty = (sizes == 0).nonzero().flatten().tolist()
    if empty:
        named = [repr(class_names[i]) if class_names else f"index {i}" for i in empty[:3]]
        raise InvalidArgumentError(
            f"{len(empty)} of {len(sizes)} classes (first: {', '.join(named)}) have no {kind} images. Every class"
            " requires estimation images and test images; add images, or remove these classes"
        )


def _window_sums(values: Tensor, width: int) -> Tensor:
    sums = torch.cat([values.new_zeros(1), values.cumsum(0)])
    return sums[width:] - sums[: len(sums) - width]
