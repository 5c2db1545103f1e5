"""Scores in order: what every ranking metric is computed from, sorted once and reused."""

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

from oodlit.base.fractions import ShareLike, exact_number
from oodlit.errors import InvalidArgumentError, NonFiniteScoreError

_EXACT_UP_TO = 2**53
"""Beyond this, float64 does not hold every integer."""


@runtime_checkable
class ArrayConvertible(Protocol):
    """Anything that numpy can read: tensors, arrays, pandas columns."""

    def __array__(self) -> np.ndarray:
        """The values as an array."""


@dataclass(frozen=True, eq=False)
class SortedScores:
    """Scores of one group of images in ascending order; sort once, rank any number of other groups against it.

    Args:
        values: Ascending, without NaN, shape (n,). Use `as_sorted` to make one from unsorted scores.

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
        """For every score, how many scores are at or above it: the acceptances if it were the threshold."""
        below = torch.searchsorted(self.values, self.values, right=False)
        return len(self.values) - below

    def count_below(self, scores: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """For each of `scores`, how many sorted values are strictly below it."""
        return torch.searchsorted(*_same_dtype(self.values, scores), right=False)

    def count_at_most(self, scores: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """For each of `scores`, how many sorted values are at or below it."""
        return torch.searchsorted(*_same_dtype(self.values, scores), right=True)


FlagLike: TypeAlias = ArrayConvertible | Sequence[bool]
"""What the functions of this package take as one truth value per image."""
ScoreLike: TypeAlias = Tensor | SortedScores | ArrayConvertible | Sequence[float] | Sequence[int]
"""What the functions of this package take as scores."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """OOD scores placed among ID scores: integer positions, from which every ranking metric follows.

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
        """For every ID score (ascending), how many OOD scores are at or above it."""
        # OOD score j lies strictly below ID score i exactly if id_at_most[j] <= i: a histogram replaces a search.
        strictly_below = torch.bincount(self.id_at_most, minlength=self.n_id + 1).cumsum(0)
        return self.n_ood - strictly_below[: self.n_id]

    @cached_property
    def ood_above_id(self) -> Int[Tensor, " n"]:
        """For every ID score (ascending), how many OOD scores are strictly above it."""
        at_most = torch.bincount(self.id_below, minlength=self.n_id + 1).cumsum(0)
        return self.n_ood - at_most[: self.n_id]

    def missing(self) -> str | None:
        """The reason why a metric of this ranking is undefined, or None."""
        if self.n_id == 0:
            return "there is no OOD and no ID score" if self.n_ood == 0 else "there is no ID score"
        return "there is no OOD score" if self.n_ood == 0 else None


def as_scores(values: ScoreLike, name: str = "scores") -> Tensor:
    """`values` as a one-dimensional tensor in float32 at least, on its own device; NaN is an error.

    Half precision is upcast, which keeps order and ties; integers become float64.

    Raises:
        InvalidArgumentError: `values` is not one-dimensional, not numeric, or holds integers that float64 rounds.
        NonFiniteScoreError: `values` holds NaN. Infinities are fine: they are ordered.

    Example:
        >>> as_scores([1, 2]).dtype, as_scores(torch.ones(2, dtype=torch.bfloat16)).dtype
        (torch.float64, torch.float32)
    """
    if isinstance(values, SortedScores):
        return values.values
    tensor = as_numbers(values, name)
    nans = int(torch.isnan(tensor).sum())
    if nans:
        first = torch.isnan(tensor).nonzero().flatten()[:5].tolist()
        raise NonFiniteScoreError(
            f"{name}: {nans} of {len(tensor)} scores are NaN (first positions: {first});"
            " a ranking with NaN has no meaning - find out which images and which detector produce them"
        )
    return tensor


def as_numbers(values: ScoreLike, name: str = "scores") -> Tensor:
    """Like `as_scores`, but NaN is let through: for the parts of a stream, which is checked as a whole.

    Raises:
        InvalidArgumentError: `values` is not one-dimensional, not numeric, or holds integers that float64 rounds.
    """
    tensor = _tensor(values, name).detach()
    if tensor.ndim != 1:
        raise InvalidArgumentError(f"{name}: shape {tuple(tensor.shape)}; one score per image, shape (n,), is needed")
    if tensor.is_complex():
        raise InvalidArgumentError(f"{name}: dtype {tensor.dtype}; real scores are needed")
    if tensor.is_floating_point():
        return tensor if tensor.dtype.itemsize >= 4 else tensor.float()
    rounded = tensor.double()
    # Integers that become equal by rounding would count as ties.
    if len(rounded) and float(rounded.abs().max()) > _EXACT_UP_TO - 1:
        raise InvalidArgumentError(f"{name}: integers beyond 2**53, which float64 does not tell apart; rescale them")
    return rounded


def as_integers(values: object, name: str, *, like: Tensor | None = None) -> Int[Tensor, " n"]:
    """`values` as a one-dimensional int64 tensor; on the device of `like`, with one entry per score of it.

    Raises:
        InvalidArgumentError: Not one-dimensional, not integers, or another length than `like`.
    """
    tensor = _tensor(values, name)
    if tensor.ndim == 1 and len(tensor) == 0:  # an empty list has no type of its own
        tensor = tensor.long()
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise InvalidArgumentError(
            f"{name}: shape {tuple(tensor.shape)} and dtype {tensor.dtype}; integers of shape (n,) are needed"
        )
    return tensor.long() if like is None else _with_length_of(like, tensor.long(), name)


def as_count(value: object, name: str, *, at_least: int = 1) -> int:
    """`value` as an int of Python's own.

    Raises:
        InvalidArgumentError: It is not an integer, or below `at_least`.
    """
    try:
        number = index(value)  # type: ignore[arg-type]  # it raises for other types
    except TypeError:
        number = at_least - 1
    if number < at_least or isinstance(value, bool):
        raise InvalidArgumentError(f"{name}={value!r}: an integer, at least {at_least}, is needed")
    return number


def as_groups(groups: object, num_groups: int, size: int) -> Int[Tensor, " n"]:
    """`groups` as one index below `num_groups` for each of `size` scores.

    Raises:
        InvalidArgumentError: Not integers, another number of them, or one is out of range.
    """
    values = as_integers(groups, "groups")
    if len(values) != size:
        raise InvalidArgumentError(f"groups: {len(values)} entries, but there are {size} scores")
    if size and not (int(values.min()) >= 0 and int(values.max()) < num_groups):
        raise InvalidArgumentError(
            f"groups: {int(values.min())} to {int(values.max())}; 0 to {num_groups - 1} is needed"
        )
    return values


def as_flags(values: FlagLike, name: str, *, like: Tensor) -> Tensor:
    """`values` as a boolean tensor with one entry per score of `like`.

    Raises:
        InvalidArgumentError: Not boolean, or another length than `like`.
    """
    tensor = _tensor(values, name)
    if tensor.dtype != torch.bool and tensor.numel():  # an empty list has no type of its own
        raise InvalidArgumentError(f"{name}: dtype {tensor.dtype}; booleans are needed")
    return _with_length_of(like, tensor.bool(), name)


def as_sorted(values: ScoreLike, name: str = "scores") -> SortedScores:
    """Scores in ascending order; what is sorted already is returned as it is.

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
    """The smallest integer k with k >= share * total, decided in integers.

    `share` is read as the number that was meant: 0.95 and 1 - 0.05 are 95/100, not the floats next to it.

    Raises:
        InvalidArgumentError: `share` is outside (0, 1].

    Example:
        >>> smallest_count(0.95, 50_000), smallest_count(0.07, 100)
        (47500, 7)
    """
    exact = exact_share(share)
    return -(-exact.numerator * total // exact.denominator)


def exact_share(share: Any, name: str = "tpr", *, below_one: bool = False) -> Fraction:
    """Return `share` as the number that was meant (`fractions.exact_number`), checked to be in (0, 1].

    With `below_one`, 1 is refused; a number that is 1 up to rounding is then taken as it is.

    Example:
        >>> exact_share(0.95), exact_share(1 - 0.05), exact_share(Fraction(1, 3))
        (Fraction(19, 20), Fraction(19, 20), Fraction(1, 3))
    """
    exact = None if isinstance(share, bool) else exact_number(share)
    if exact == 1 and below_one:
        exact = Fraction(float(share))
    if exact is None or not 0 < exact <= 1 or (below_one and exact == 1):
        raise InvalidArgumentError(
            f"{name}={share!r}: a share in (0, 1{')' if below_one else ']'} is needed, such as 0.95"
        )
    return exact


def _tensor(values: object, name: str) -> Tensor:
    if isinstance(values, Tensor):
        if values.is_meta or values.layout != torch.strided:
            raise InvalidArgumentError(
                f"{name}: a tensor on {values.device} with layout {values.layout}; a dense tensor with values is needed"
            )
        return values
    if np.ma.is_masked(values):
        raise InvalidArgumentError(f"{name}: a masked array with masked entries; pass values.compressed()")
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InvalidArgumentError(f"{name}: {type(values).__name__} of dtype {array.dtype}; numbers are needed")
    if array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    # ascontiguousarray: torch takes no negative strides, no foreign byte order and warns on read-only memory.
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True))


def _with_length_of(like: Tensor, tensor: Tensor, name: str) -> Tensor:
    if tensor.shape != like.shape:
        raise InvalidArgumentError(f"{name}: shape {tuple(tensor.shape)}, but there are {len(like)} scores")
    return tensor.to(like.device)


def _same_dtype(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(first.dtype, second.dtype)
    return first.to(dtype).contiguous(), second.to(device=first.device, dtype=dtype).contiguous()
