"""Largest products with a bank of vectors, in bounded memory; shared by KNN, NNGuide and LaRD."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.checks import check_usual, is_traced
from oodlit.detectors.statistics.feature_bank import exact_scaling
from oodlit.errors import InvalidArgumentError

BUDGET = 2**24
"""Products held at a time (64 MiB in float32), whatever the size of batch and bank."""
DOUBLE_ERROR = 16 * torch.finfo(torch.float64).eps
"""Error that a product of unit vectors may have even in float64."""
MOVED = 2**26
"""Numbers of a bank that are moved to the device of the queries, or converted, at a time (256 MiB in float32)."""
TRACED_QUERIES = 256
"""Queries that an exported program is made for; more of them take more memory."""
MARGIN = 8
"""Rows on either side of the k-th nearest one whose distances are formed again, in float64."""
REFINED = 256
"""Queries that this is done for at a time."""
GROUP = 8
"""Columns of which the largest value stands for all when the k largest are sought: near the square root of columns / k,
with 65 536 columns and k = 1000, and more than twice as fast as a selection from all."""


def default_k(num_rows: int) -> int:
    """Which neighbour is taken in a bank of a given size where none is named.

    0.1 % of the bank, at most 1000: the values of the paper, 50 for CIFAR and 1000 for ImageNet. In banks of fewer than
    10 000 rows 1 %, at most 10, at least 1.

    Example:
        >>> [default_k(n) for n in (1_281_167, 50_000, 5000, 300, 20)]
        [1000, 50, 10, 3, 1]
    """
    return min(1000, max(1, min(10, num_rows // 100), num_rows // 1000))


def check_neighbors(owner: object, k: int, rows: int) -> None:
    """Refuse more neighbors than there are training images in a bank.

    Raises:
        InvalidArgumentError: `k` is above `rows`.
    """
    if k > rows:
        raise InvalidArgumentError(
            f"{owner!r}: k={k}, but the bank holds {rows} training images; use k <= {rows} or fit on more images"
        )


def chunks(num_queries: int, num_rows: int, *, at_least: int, at_most: int | None = None) -> Iterator[slice]:
    """Slices of a bank such that queries x slice stays within `BUDGET`, each of `at_least` rows but the last.

    Slices have `at_most` so many rows if that is given, and not below `at_least`.

    In a trace, which knows no number of queries, for `TRACED_QUERIES` of them.
    """
    size = BUDGET // (TRACED_QUERIES if is_traced() else max(num_queries, 1))
    size = max(at_least, size if at_most is None else min(size, at_most))
    yield from (slice(start, start + size) for start in range(0, num_rows, size))


def largest_products(
    queries: Float[Tensor, "batch features"],
    bank: Float[Tensor, "rows features"],
    k: int,
    *,
    scales: Float[Tensor, " rows"] | None = None,
    offsets: Float[Tensor, " rows"] | None = None,
) -> tuple[Float[Tensor, "batch k"], Int[Tensor, "batch k"]]:
    """The k largest values of (q . b_i) * scales_i + offsets_i per query, unsorted, with their rows i.

    Args:
        queries: On the device and in the dtype of the computation.
        bank: May live on another device; its parts are moved one after the other.
        k: At most the number of rows.
        scales: Factor of each row, default 1.
        offsets: Added to each row's product, default 0.
    """
    number = queries.shape[0]  # of a tensor not by `len`, which `torch.export` would take for a constant
    values = queries.new_empty((number, 0))
    rows = torch.empty((number, 0), dtype=torch.int64, device=queries.device)
    is_moved = bank.device != queries.device or bank.dtype != queries.dtype
    most = MOVED // max(bank.shape[1], 1) if is_moved else None
    for part in chunks(number, len(bank), at_least=k, at_most=most):
        products = queries @ bank[part].to(queries).T
        if scales is not None:
            products *= scales[part].to(queries)
        if offsets is not None:
            products += offsets[part].to(queries)
        best, index = largest(products, min(k, products.shape[1]))
        if values.shape[1]:
            best, index = torch.cat([values, best], dim=1), torch.cat([rows, index + part.start], dim=1)
            best, order = best.topk(min(k, best.shape[1]), dim=1, sorted=False)
            index = index.gather(1, order)
        values, rows = best, index
    return values, rows


def largest(values: Float[Tensor, "batch columns"], k: int) -> tuple[Float[Tensor, "batch k"], Int[Tensor, "batch k"]]:
    """The k largest values of each row, unsorted, with their columns.

    They lie in the k groups of columns whose largest values are the largest: only these are searched, where k is small.
    """
    groups = values.shape[1] // GROUP
    if is_traced() or groups < 2 * k:
        return values.topk(k, dim=1, sorted=False)
    grouped = torch.unflatten(values[:, : GROUP * groups], 1, (GROUP, groups))
    chosen = grouped.amax(dim=1).topk(k, dim=1, sorted=False).indices[:, None].expand(-1, GROUP, -1)
    starts = torch.arange(0, GROUP * groups, groups, device=values.device)[None, :, None]
    rest = torch.arange(GROUP * groups, values.shape[1], device=values.device).expand(len(values), -1)
    candidates = torch.cat([grouped.gather(2, chosen).flatten(1), values[:, GROUP * groups :]], dim=1)
    best, index = candidates.topk(k, dim=1, sorted=False)
    return best, torch.cat([(chosen + starts).flatten(1), rest], dim=1).gather(1, index)


def kth_distances(
    queries: Float[Tensor, "batch features"],
    bank: Float[Tensor, "rows features"],
    norms: Float[Tensor, " rows"],
    k: int,
) -> Float[Tensor, " batch"]:
    """Distance of every query's direction to the k-th nearest direction of the bank, float64, to 1e-6 relative.

    Products of unit vectors in float32 are wrong by about 1e-7 (1e-3 in the reduced precision of some devices), and by
    other amounts in other batches. They find the rows around the k-th; the distances of these are formed in float64, by
    differences. Where the error that is seen there leaves open which rows these are, all is done in float64.

    Args:
        queries: Not normalised.
        bank: Rows as `exact_scaling` gives them.
        norms: Norms of these rows, float64; 0 for a zero row, whose direction is the zero vector.
        k: At most the number of rows.
    """
    if is_traced():
        return _kth_in_float64(queries, bank, norms, k)
    result = [_kth_distances(queries[i : i + 1024], bank, norms, k) for i in range(0, len(queries), 1024)]
    return torch.cat(result) if result else queries.new_zeros(0, dtype=torch.float64)


def _kth_in_float64(queries: Tensor, bank: Tensor, norms: Tensor, k: int) -> Tensor:
    """All products in float64, in place of some of them again: nothing depends on a value."""
    exact = _unit(queries.double())
    inverse, halves, own = _scales(exact, norms)
    values, _ = largest_products(exact, bank, k, scales=inverse, offsets=halves)
    return (-2 * (values.amin(dim=1) + own)).clamp(min=0).sqrt()


def _scales(exact: Tensor, norms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What makes products with a bank -|q - b|^2 / 2 = q.b - |q|^2/2 - |b|^2/2, with norms 0 or 1."""
    halves = -0.5 * (norms > 0).double()
    inverse = 1 / norms.where(norms > 0, torch.ones_like(norms))
    own = -0.5 * (exact.abs().amax(dim=1) > 0).double()
    return inverse, halves, own


def _kth_distances(queries: Tensor, bank: Tensor, norms: Tensor, k: int) -> Tensor:
    exact = _unit(exact_scaling(queries).double())
    inverse, halves, own = _scales(exact, norms)
    fast = exact.to(torch.promote_types(bank.dtype, torch.float32))
    found = min(len(bank), k + MARGIN)
    values, rows = largest_products(fast, bank, found, scales=inverse, offsets=halves)
    size = min(found, found - k + MARGIN)
    around = values.topk(size, dim=1, largest=False)
    distances = _distances(exact, bank, rows.gather(1, around.indices))
    kth = distances.kthvalue(k - (found - size), dim=1).values
    products = -0.5 * distances.square() - own[:, None]
    # Products in float64 have errors too, which a comparison with float64 does not show.
    error = (products - around.values).abs().amax(dim=1).clamp(min=DOUBLE_ERROR)
    at = -0.5 * kth.square() - own
    none_below = (around.values.amin(dim=1) + 8 * error <= at) if found < len(bank) else torch.ones_like(at).bool()
    none_above = (around.values.amax(dim=1) - 8 * error >= at) if size < found else torch.ones_like(at).bool()
    is_sure = none_below & none_above
    if not check_usual(is_sure.all()):
        doubtful = (~is_sure).nonzero().flatten()
        kth[doubtful] = _kth_by_differences(exact[doubtful], bank, inverse, halves, k)
    return kth


def _kth_by_differences(exact: Tensor, bank: Tensor, inverse: Tensor, halves: Tensor, k: int) -> Tensor:
    candidates = min(len(bank), k + max(32, k // 8))
    _, rows = largest_products(exact, bank, candidates, scales=inverse, offsets=halves)
    parts = (slice(i, i + 1) for i in range(len(exact)))
    return torch.cat([_distances(exact[i], bank, rows[i]).kthvalue(k, dim=1).values for i in parts])


def _distances(exact: Tensor, bank: Tensor, rows: Tensor) -> Tensor:
    """Distances (queries, n) of unit vectors to the directions of `rows` (queries, n) of the bank, by differences."""
    result = exact.new_empty(rows.shape)
    for start in range(0, len(exact), REFINED):
        part = slice(start, start + REFINED)
        directions = _unit(bank[rows[part].to(bank.device)].to(exact))
        result[part] = torch.linalg.vector_norm(directions - exact[part, None], dim=-1)
    return result


def _unit(vectors: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    result: Tensor = vectors / norms.where(norms > 0, torch.ones_like(norms))
    return result
