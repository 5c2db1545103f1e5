"""Largest products with a bank of vectors in bounded memory, shared by KNN, NNGuide and LaRD."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.checks import check_usual, is_traced
from oodlit.base.errors import InvalidArgumentError
from oodlit.detectors.contract import Detector
from oodlit.detectors.statistics.feature_bank import exact_scaling

BUDGET = 2**24
"""Maximum number of products in memory (64 MiB in float32), for any size of batch and bank."""
DOUBLE_ERROR = 16 * torch.finfo(torch.float64).eps
"""Possible error of a product of unit vectors in float64."""
MOVED = 2**26
"""Maximum number of bank entries moved or converted at a time (256 MiB in float32)."""
TRACED_QUERIES = 256
"""Number of queries that an exported program is optimized for; more queries take more memory."""
MARGIN = 8
"""Number of rows before and after the k-th nearest row for which distances are recomputed in float64."""
REFINED = 256
"""Queries recomputed at a time."""
MOST_NEGATIVE = 0.25
"""Largest fraction of training images with an energy of zero or less for which energies are used unchanged."""
GROUP = 8
"""Columns represented by their largest value when searching for the k largest: near the square root of columns / k for
65,536 columns and k = 1000, and more than twice as fast as a selection from all."""


def default_k(num_rows: int) -> int:
    """Choose the default neighbor for a bank of a given size.

    0.1 % of the bank, at most 1000. Banks of fewer than 10,000 rows: 1 %, between 1 and 10. For the complete training
    sets, this is the authors' k: 50 for CIFAR and 1000 for ImageNet. With 1 % of ImageNet, they use 10, not 12.

    Example:
        >>> [default_k(n) for n in (1_281_167, 50_000, 5000, 300, 20)]
        [1000, 50, 10, 3, 1]
    """
    return min(1000, max(1, min(10, num_rows // 100), num_rows // 1000))


def check_neighbors(owner: object, k: int, rows: int) -> None:
    """Refuse more neighbors than training images in the bank.

    Raises:
        InvalidArgumentError: `k` is above `rows`.
    """
    if k > rows:
        raise InvalidArgumentError(
            f"{owner!r}: k={k}, but the bank contains {rows} training images; use k <= {rows}, or a bank of more images"
        )


def energy_offset(owner: Detector, energies: Float[Tensor, " images"], most: float = MOST_NEGATIVE) -> float:
    """Return zero, as published, or a value below the training energies if many of them are not positive.

    For detectors that multiply by the energy, which would reverse the order of scores if it were negative.

    Args:
        owner: Notes the value.
        energies: Those of the training images.
        most: Largest fraction of them that may be zero or less.
    """
    if float((energies <= 0).double().mean()) <= most:
        return 0.0
    energies = energies.double()
    spread = float(energies.std(correction=0))
    offset = float(energies.amin()) - (spread or 1.0)
    owner.note(
        f"more than {100 * most:g} % of the training images have an energy of zero or less, which would reverse the"
        f" order of scores; {offset:.4g} ({'one standard deviation' if spread else '1'} below the smallest energy of"
        " a training image) is subtracted from the energy of every image"
    )
    return offset


def chunks(num_queries: int, num_rows: int, *, at_least: int, at_most: int | None = None) -> Iterator[slice]:
    """Slice a bank so that queries x slice stays within `BUDGET`; slices have at least `at_least` rows except the last.

    If `at_most` is given, slices have at most that many rows, but not fewer than `at_least`.

    During tracing the number of queries is unknown; `TRACED_QUERIES` is assumed.
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
    """Find the k largest values of (q . b_i) * scales_i + offsets_i per query, unsorted, with their rows i.

    Args:
        queries: On the device and in the dtype of the computation.
        bank: May be on another device; it is moved in parts.
        k: At most the number of rows.
        scales: Factor per row, default 1.
        offsets: Added to the products of each row, default 0.
    """
    number = queries.shape[0]  # not len(): torch.export would treat it as a constant
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
    """Find the k largest values of each row, unsorted, with their columns.

    They are in the k groups of columns with the largest maxima; for small k only these groups are searched.
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
    """Compute the distance of every query direction to the k-th nearest bank direction, in float64 to 1e-6 relative.

    Products of unit vectors in float32 are off by about 1e-7 (1e-3 in reduced precision), differently in each batch.
    They locate the rows around the k-th, whose distances are then computed in float64 by differences. If the observed
    error leaves open which rows these are, everything is computed in float64.

    Args:
        queries: Not normalized.
        bank: Rows as returned by `exact_scaling`.
        norms: Norms of these rows, float64; 0 for a zero row, whose direction is the zero vector.
        k: At most the number of rows.
    """
    if is_traced():
        return _kth_in_float64(queries, bank, norms, k)
    result = [_kth_distances(queries[i : i + 1024], bank, norms, k) for i in range(0, len(queries), 1024)]
    return torch.cat(result) if result else queries.new_zeros(0, dtype=torch.float64)


def _kth_in_float64(queries: Tensor, bank: Tensor, norms: Tensor, k: int) -> Tensor:
    """Compute all products in float64; no step depends on a value."""
    exact = _unit(queries.double())
    inverse, halves, own = _scales(exact, norms)
    values, _ = largest_products(exact, bank, k, scales=inverse, offsets=halves)
    return (-2 * (values.amin(dim=1) + own)).clamp(min=0).sqrt()


def _scales(exact: Tensor, norms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the terms that turn products into -|q - b|^2 / 2 = q.b - |q|^2/2 - |b|^2/2, with norms 0 or 1."""
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
    # Products in float64 have errors too, which a comparison with float64 does not reveal.
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
    """Distances (queries, n) of unit vectors to the bank directions in `rows` (queries, n), by differences."""
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
