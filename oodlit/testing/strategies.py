"""hypothesis strategies for inputs of detectors. Requires `pip install 'oodlit[testing]'`.

Examples shrink towards zeros and the original order.
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor

from oodlit.testing.extras import import_extra

st: Any = import_extra("hypothesis.strategies")
Strategy: TypeAlias = Any

__all__ = ["cuts", "extreme_values", "matrices", "rotations"]


def extreme_values(*, magnitude: float = 1e6, signed: bool = True) -> Strategy:
    """Floats that reveal numerical problems: zeros, tiny and huge values, ties, and ordinary values.

    Args:
        magnitude: Largest absolute value.
        signed: Whether there are negative values.
    """
    sizes = [0.0, 1e-30, 1e-6, 0.005, 1.0, 20.0, 100.0, magnitude]
    values = [v for v in sizes if v <= magnitude]
    if signed:
        values += [-v for v in values if v]
    return st.one_of(
        st.sampled_from(values),
        st.floats(-magnitude if signed else 0.0, magnitude, width=32, allow_subnormal=False),
    )


def matrices(*, rows: int, columns: int, elements: Strategy | None = None) -> Strategy:
    """Float32 tensors of shape (rows, columns).

    Args:
        rows: Number of rows.
        columns: Number of columns.
        elements: Strategy of the entries; multiples of 1/8 in [-8, 8] unless given.
    """
    entries = st.integers(-64, 64).map(lambda i: i / 8) if elements is None else elements
    full = st.lists(entries, min_size=rows * columns, max_size=rows * columns)
    # ties and constant rows matter to percentiles and norms, but are rare in long lists of draws
    constant = entries.map(lambda value: [value] * (rows * columns))
    return st.one_of(full, constant).map(lambda v: torch.tensor(v, dtype=torch.float32).reshape(rows, columns))


def cuts(size: int) -> Strategy:
    """Pairs (order, sizes): orders of `size` images, and sizes of batches.

    Args:
        size: Number of images, at least 1.
    """

    def build(draw: Any) -> tuple[Sequence[int], list[int]]:
        order = draw(st.permutations(range(size)))
        ends = sorted(draw(st.sets(st.integers(1, size - 1), max_size=6))) if size > 1 else []
        edges = [0, *ends, size]
        return order, [b - a for a, b in pairwise(edges)]

    return _composite(build)


def _composite(build: Callable[[Any], object]) -> Strategy:
    """Create a strategy from `build(draw)`.

    The global random state is restored: run-time type checkers use it to sample long containers, which would make
    hypothesis report a strategy that cannot be replayed.
    """

    def drawn(draw: Any) -> object:
        state = random.getstate()
        try:
            return build(draw)
        finally:
            random.setstate(state)

    return st.composite(drawn)()


def rotations(size: int) -> Strategy:
    """Orthogonal float64 matrices: products of reflections at drawn vectors.

    Args:
        size: Number of rows.
    """

    def build(draw: Any) -> Tensor:
        matrix = torch.eye(size, dtype=torch.float64)
        for _ in range(draw(st.integers(1, 3))):
            vector = draw(matrices(rows=1, columns=size))[0].double()
            if vector.norm() > 0:
                unit = vector / vector.norm()
                matrix = matrix - 2 * torch.outer(matrix @ unit, unit)
        return matrix

    return _composite(build)
