"""Sorted scores, from which every ranking metric is computed; sorted once and reused."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from operator import index
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError, NonFiniteScoreError
from oodlit.base.fractions import ShareLike, exact_number

_EXACT_UP_TO = 2**53
"""Beyond this, float64 does not represent every integer."""


@runtime_checkable
class ArrayConvertible(Protocol):
    """Anything that numpy can read: tensors, arrays, pandas columns."""

    def __array__(self) -> np.ndarray:
        """Return the values as an array."""


@dataclass(frozen=True, eq=False)
class SortedScores:
    """Scores of one group of images in ascending order; sort once, then rank any number of other groups against them.

    Args:
        values: Ascending, without NaN, shape (n,). `as_sorted` sorts other scores.

    Example:
        >>> id_scores = as_sorted([0.9, 0.7, 0.8])
        >>> len(id_scores), id_scores.values.tolist()
        (3, [0.7, 0.8, 0.9])
    """

    values: Tensor

    def __len__(self) -> int:
        """Number of scores."""
        return len(self.values)

    @cached_property
    def at_or_above(self) -> Int[Tensor, " n"]:
        """For every score, the number of scores at or above it: accepted images if it were the threshold."""
        below = torch.searchsorted(self.values, self.values, right=False)
        return len(self.values) - below

    def count_below(self, scores: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """Count for each of `scores` the sorted values strictly below it."""
        return torch.searchsorted(*_same_dtype(self.values, scores), right=False)

    def count_at_most(self, scores: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """Count for each of `scores` the sorted values at or below it."""
        return torch.searchsorted(*_same_dtype(self.values, scores), right=True)


FlagLike: TypeAlias = ArrayConvertible | Sequence[bool]
"""Types accepted as one truth value per image."""
ScoreLike: TypeAlias = Tensor | SortedScores | ArrayConvertible | Sequence[float] | Sequence[int]
"""Types accepted as scores."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """OOD scores placed among ID scores: integer positions that determine every ranking metric.

    Args:
        id_scores: Sorted ID scores, n of them.
        ood_scores: OOD scores in ascending order, m of them.
        id_below: For every OOD score, the number of ID scores strictly below it.
        id_at_most: For every OOD score, the number of ID scores at or below it.
    """

    id_scores: SortedScores
    ood_scores: Tensor
    id_below: Tensor
    id_at_most: Tensor

    @property
    def n_id(self) -> int:
        """Number of ID scores."""
        return len(self.id_scores)

    @property
    def n_ood(self) -> int:
        """Number of OOD scores."""
        return len(self.ood_scores)

    @cached_property
    def ood_at_or_above_id(self) -> Int[Tensor, " n"]:
        """For every ID score (ascending), the number of OOD scores at or above it."""
        # OOD score j is strictly below ID score i exactly if id_at_most[j] <= i: a histogram replaces a search.
        strictly_below = torch.bincount(self.id_at_most, minlength=self.n_id + 1).cumsum(0)
        return self.n_ood - strictly_below[: self.n_id]

    @cached_property
    def ood_above_id(self) -> Int[Tensor, " n"]:
        """For every ID score (ascending), the number of OOD scores strictly above it."""
        at_most = torch.bincount(self.id_below, minlength=self.n_id + 1).cumsum(0)
        return self.n_ood - at_most[: self.n_id]

    def missing(self) -> str | None:
        """Return why a metric of this ranking is undefined, or None."""
        if self.n_id == 0:
            return "there is neither an ID nor an OOD score" if self.n_ood == 0 else "there is no ID score"
        return "there is no OOD score" if self.n_ood == 0 else None


def as_scores(values: ScoreLike, name: str = "scores") -> Tensor:
    """Convert `values` to a one-dimensional tensor in float32 at least, on its own device, without NaN.

    Half precision is upcast, which preserves order and ties; integers become float64.

    Raises:
        InvalidArgumentError: `values` is not one-dimensional, not numeric, or contains integers that float64 rounds.
        NonFiniteScoreError: `values` contains NaN. Infinities are ordered.

    Example:
        >>> as_scores([1, 2]).dtype, as_scores(torch.ones(2, dtype=torch.bfloat16)).dtype
        (torch.float64, torch.float32)
    """
    if isinstance(values, SortedScores):
        return values.values
    tensor = as_numbers(values, name)
    nans = int(torch.isnan(tensor).sum())
    if nans:
        first = ", ".join(map(str, torch.isnan(tensor).nonzero().flatten()[:5].tolist()))
        raise NonFiniteScoreError(
            f"{name}: {nans} of {len(tensor)} scores are NaN (first positions: {first}), so scores cannot be ranked;"
            " find out which images and which detector produce them"
        )
    return tensor


def as_numbers(values: ScoreLike, name: str = "scores") -> Tensor:
    """Convert like `as_scores` but allow NaN, for parts of a stream that is checked as a whole.

    Raises:
        InvalidArgumentError: `values` is not one-dimensional, not numeric, or contains integers that float64 rounds.
    """
    tensor = _tensor(values, name).detach()
    if tensor.ndim != 1:
        raise InvalidArgumentError(
            f"{name}: expected a one-dimensional array, shape (n,), got shape {tuple(tensor.shape)}"
        )
    if tensor.is_complex():
        raise InvalidArgumentError(f"{name}: expected real numbers, got {tensor.dtype}")
    if tensor.is_floating_point():
        return tensor if tensor.dtype.itemsize >= 4 else tensor.float()
    rounded = tensor.double()
    # Integers that become equal by rounding would count as ties.
    if len(rounded) and (largest := float(rounded.abs().max())) > _EXACT_UP_TO - 1:
        raise InvalidArgumentError(
            f"{name}: expected integers with an absolute value below 2**53, got one of about {largest:.0f}. float64"
            " rounds larger integers, which can create ties; rescale the scores"
        )
    return rounded


def as_integers(values: object, name: str, *, like: Tensor | None = None) -> Int[Tensor, " n"]:
    """Convert `values` to a one-dimensional int64 tensor; with `like`, on its device and of its length.

    Raises:
        InvalidArgumentError: Not one-dimensional, not integers, or another length than `like`.
    """
    tensor = _tensor(values, name, "integers")
    if tensor.ndim == 1 and len(tensor) == 0:  # an empty list has no type
        tensor = tensor.long()
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise InvalidArgumentError(
            f"{name}: expected integers of shape (n,), got shape {tuple(tensor.shape)} and dtype {tensor.dtype}"
        )
    return tensor.long() if like is None else _with_length_of(like, tensor.long(), name)


def as_count(value: object, name: str, *, at_least: int = 1) -> int:
    """Convert `value` to a Python int.

    Raises:
        InvalidArgumentError: It is not an integer, or below `at_least`.
    """
    try:
        number = index(value)  # type: ignore[arg-type]  # it raises for other types
    except TypeError:
        number = at_least - 1
    if number < at_least or isinstance(value, bool):
        raise InvalidArgumentError(f"expected {name} to be an integer >= {at_least}, got {value!r}")
    return number


def as_groups(groups: object, num_groups: int, size: int) -> Int[Tensor, " n"]:
    """Convert `groups` to one index below `num_groups` for each of `size` scores.

    Raises:
        InvalidArgumentError: Not integers, another number of them, or one is out of range.
    """
    values = as_integers(groups, "groups")
    if len(values) != size:
        raise InvalidArgumentError(f"groups: expected {size} entries, one per score, got {len(values)}")
    if size and not (int(values.min()) >= 0 and int(values.max()) < num_groups):
        raise InvalidArgumentError(
            f"groups: expected values from 0 to {num_groups - 1}, got {int(values.min())} to {int(values.max())}"
        )
    return values


def as_flags(values: FlagLike, name: str, *, like: Tensor) -> Tensor:
    """Convert `values` to a boolean tensor with one entry per score of `like`.

    Raises:
        InvalidArgumentError: Not boolean, or another length than `like`.
    """
    tensor = _tensor(values, name, "booleans")
    if tensor.dtype != torch.bool and tensor.numel():  # an empty list has no type
        raise InvalidArgumentError(f"{name}: expected booleans, got {tensor.dtype}")
    return _with_length_of(like, tensor.bool(), name)


def as_sorted(values: ScoreLike, name: str = "scores") -> SortedScores:
    """Sort scores in ascending order; sorted scores are returned unchanged.

    Raises:
        InvalidArgumentError: Not one-dimensional or not numeric.
        NonFiniteScoreError: NaN among the scores.
    """
    return values if isinstance(values, SortedScores) else SortedScores(as_scores(values, name).sort().values)


def rank(id_scores: ScoreLike, ood_scores: ScoreLike) -> Ranking:
    """Place OOD scores among ID scores; costs m log n once the ID scores are sorted.

    Raises:
        InvalidArgumentError: Scores are not one-dimensional or not numeric.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> ranking = rank([1.0, 2.0, 2.0, 3.0], [2.0, 0.5])
        >>> ranking.id_below.tolist(), ranking.id_at_most.tolist()
        ([0, 1], [0, 3])
    """
    sorted_id = as_sorted(id_scores, "id_scores")
    ood = as_sorted(ood_scores, "ood_scores").values.to(sorted_id.values.device)
    return Ranking(sorted_id, ood, sorted_id.count_below(ood), sorted_id.count_at_most(ood))


def smallest_count(share: ShareLike, total: int) -> int:
    """Return the smallest integer k with k >= share * total, decided in integers.

    `share` is read as the number that was meant: 0.95 and 1 - 0.05 are 95/100, not the nearest floats.

    Raises:
        InvalidArgumentError: `share` is outside (0, 1].

    Example:
        >>> smallest_count(0.95, 50_000), smallest_count(0.07, 100)
        (47500, 7)
    """
    exact = exact_share(share)
    return -(-exact.numerator * total // exact.denominator)


def exact_share(share: Any, name: str = "tpr", *, below_one: bool = False, allow_zero: bool = False) -> Fraction:
    """Return `share` as the number that was meant (`fractions.exact_number`), checked to be in (0, 1].

    With `below_one`, 1 is refused, and a number that is 1 up to rounding is used as is. With `allow_zero`, 0 is
    accepted.

    Example:
        >>> exact_share(0.95), exact_share(1 - 0.05), exact_share(Fraction(1, 3))
        (Fraction(19, 20), Fraction(19, 20), Fraction(1, 3))
    """
    exact = None if isinstance(share, bool) else exact_number(share)
    if exact == 1 and below_one:
        exact = Fraction(float(share))
    if exact is None or not 0 <= exact <= 1 or (below_one and exact == 1) or not (exact or allow_zero):
        span = f"{'[' if allow_zero else '('}0, 1{')' if below_one else ']'}"
        hint = f"; did you mean {float(exact / 100):g}?" if exact is not None and 2 <= exact < 100 else ""
        raise InvalidArgumentError(f"expected {name} to be in {span}, got {share!r}{hint}")
    return exact


def to_float64(array: np.ndarray, name: str) -> np.ndarray:
    """Convert scores of more than 64 bits.

    Args:
        array: Scores, such as those of type `numpy.longdouble`.
        name: Name of the scores in messages.

    Raises:
        InvalidArgumentError: A score is not a float64 number: rounded scores can tie.
    """
    with np.errstate(over="ignore"):
        rounded: np.ndarray = array.astype(np.float64)
    if inexact := int((rounded.astype(array.dtype) != array)[~np.isnan(array)].sum()):
        raise InvalidArgumentError(
            f"{name}: {inexact} of {array.size} values of dtype {array.dtype} cannot be represented exactly in"
            " float64. Rounding could create ties; to accept rounding, pass values.astype(numpy.float64)"
        )
    return rounded


def _tensor(values: object, name: str, kind: str = "numbers") -> Tensor:
    if isinstance(values, Tensor):
        if values.is_meta or values.layout != torch.strided:
            raise InvalidArgumentError(
                f"{name}: expected a dense tensor with values, got device {values.device} and layout {values.layout}"
            )
        return values
    if np.ma.is_masked(values):
        raise InvalidArgumentError(
            f"{name}: masked entries are not supported; remove these entries from all arrays, or fill in their values"
        )
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InvalidArgumentError(f"{name}: expected {kind}, got {type(values).__name__} of dtype {array.dtype}")
    if array.dtype.itemsize > 8:
        array = to_float64(array, name)
    # torch accepts no negative strides or foreign byte order, and warns about read-only memory.
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True))


def _with_length_of(like: Tensor, tensor: Tensor, name: str) -> Tensor:
    if tensor.shape != like.shape:
        raise InvalidArgumentError(f"{name}: expected a value per score ({len(like)}), got shape {tuple(tensor.shape)}")
    return tensor.to(like.device)


def _same_dtype(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(first.dtype, second.dtype)
    return first.to(dtype).contiguous(), second.to(device=first.device, dtype=dtype).contiguous()
