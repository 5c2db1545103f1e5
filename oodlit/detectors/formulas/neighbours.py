"""Largest products with a bank of vectors, in bounded memory; shared by KNN, NNGuide and LaRD."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.checks import holds
from oodlit.detectors.statistics.feature_bank import exact_scaling

BUDGET = 2**24
"""Products held at a time (64 MiB in float32), whatever the size of batch and bank."""
TOLERANCE = 1e-4
"""Relative error that a k-th distance may have."""
DOUBLE_ERROR = 16 * torch.finfo(torch.float64).eps
"""Error that a product of unit vectors may have even in float64."""
PROBES = 8
"""Products per query that are formed again in float64, to measure the error of the float32 ones."""


def default_k(num_rows: int) -> int:
    """Which neighbour is taken in a bank of a given size where none is named.

    0.1 % of the bank, at most 1000: the values of the paper, 50 for CIFAR and 1000 for ImageNet. In banks of fewer than
    10 000 rows 1 %, at most 10, at least 1.

    Example:
        >>> [default_k(n) for n in (1_281_167, 50_000, 5000, 300, 20)]
        [1000, 50, 10, 3, 1]
    """
    return min(1000, max(1, min(10, num_rows // 100), num_rows // 1000))


def chunks(num_queries: int, num_rows: int, *, at_least: int) -> Iterator[slice]:
    """Slices of a bank such that queries x slice stays within `BUDGET`, each of `at_least` rows but the last."""
    size = max(at_least, BUDGET // max(num_queries, 1))
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
    values = queries.new_empty((len(queries), 0))
    rows = torch.empty((len(queries), 0), dtype=torch.int64, device=queries.device)
    for part in chunks(len(queries), len(bank), at_least=k):
        products = queries @ bank[part].to(queries).T
        if scales is not None:
            products *= scales[part].to(queries)
        if offsets is not None:
            products += offsets[part].to(queries)
        best, index = products.topk(min(k, products.shape[1]), dim=1, sorted=False)
        if values.shape[1]:
            best, index = torch.cat([values, best], dim=1), torch.cat([rows, index + part.start], dim=1)
            best, order = best.topk(min(k, best.shape[1]), dim=1, sorted=False)
            index = index.gather(1, order)
        values, rows = best, index
    return values, rows


def kth_distances(
    queries: Float[Tensor, "batch features"],
    bank: Float[Tensor, "rows features"],
    norms: Float[Tensor, " rows"],
    k: int,
) -> Float[Tensor, " batch"]:
    """Distance of every query's direction to the k-th nearest direction of the bank, float64, to 1e-4 relative or 1e-7.

    A float32 product of unit vectors is wrong by about 1e-7 (1e-3 in the reduced precision of some devices), which is
    much where the distance is small. The error is measured on a few products per query; where it could matter, the
    query is done again in float64 and its nearest rows are ranked by their differences, not by products.

    Args:
        queries: Not normalised.
        bank: Rows as `exact_scaling` gives them.
        norms: Norms of these rows, float64; 0 for a zero row, whose direction is the zero vector.
        k: At most the number of rows.
    """
    result = [_kth_distances(queries[i : i + 1024], bank, norms, k) for i in range(0, len(queries), 1024)]
    return torch.cat(result) if result else queries.new_zeros(0, dtype=torch.float64)


def _kth_distances(queries: Tensor, bank: Tensor, norms: Tensor, k: int) -> Tensor:
    exact = _unit(exact_scaling(queries).double())
    halves = -0.5 * (norms > 0).double()
    inverse = 1 / norms.where(norms > 0, torch.ones_like(norms))
    # -|q - b|^2 / 2 = q.b - |q|^2/2 - |b|^2/2, with norms 0 or 1.
    own = -0.5 * (exact.abs().amax(dim=1) > 0).double()
    fast = exact.to(torch.promote_types(bank.dtype, torch.float32))
    values, rows = largest_products(fast, bank, k, scales=inverse, offsets=halves)
    kth = values.amin(dim=1).double() + own
    squares = -2 * kth
    nearest = values.topk(min(PROBES, k), dim=1, largest=False)
    probes = rows.gather(1, nearest.indices)
    at = probes.to(bank.device)
    vectors = bank[at].to(exact)  # (batch, probes, features)
    again = torch.einsum("bf,bpf->bp", exact, vectors) * inverse[at].to(exact) + halves[at].to(exact)
    # Float64 products have errors too, which probes in float64 do not show.
    error = (again - nearest.values).abs().amax(dim=1).clamp(min=DOUBLE_ERROR)
    is_sure = 8 * error <= TOLERANCE * squares
    distances = squares.clamp(min=0).sqrt()
    if not holds(is_sure.all()):
        doubtful = (~is_sure).nonzero().flatten()
        distances[doubtful] = _kth_by_differences(exact[doubtful], bank, inverse, halves, k)
    return distances


def _kth_by_differences(exact: Tensor, bank: Tensor, inverse: Tensor, halves: Tensor, k: int) -> Tensor:
    candidates = min(len(bank), k + max(32, k // 8))
    _, rows = largest_products(exact, bank, candidates, scales=inverse, offsets=halves)
    result = exact.new_empty(len(exact))
    for i, index in enumerate(rows.to(bank.device)):
        directions = _unit(bank[index].to(exact))
        result[i] = torch.linalg.vector_norm(directions - exact[i], dim=1).kthvalue(k).values
    return result


def _unit(vectors: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    result: Tensor = vectors / norms.where(norms > 0, torch.ones_like(norms))
    return result
