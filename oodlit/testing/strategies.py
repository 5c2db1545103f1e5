"""hypothesis strategies for inputs of detectors. Requires `pip install 'oodlit[testing]'`.

Examples shrink towards zeros and the original order.
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Head, Outputs
from oodlit.testing.problems import import_extra

st: Any = import_extra("hypothesis.strategies")
Strategy: TypeAlias = Any

__all__ = ["cuts", "extreme_values", "heads", "matrices", "outputs", "rotations", "training_sets"]


def extreme_values(*, magnitude: float = 1e6, signed: bool = True) -> Strategy:
    """Floats that reveal numerical problems: zeros, tiny and huge values, ties, and ordinary values.

    Args:
        magnitude: Largest absolute value.
        signed: Whether there are negative values.
    """
    values = [v for v in (0.0, 1e-30, 1e-6, 0.005, 1.0, 20.0, 100.0, magnitude) if v <= magnitude]
    if signed:
        values += [-v for v in values if v]
    return st.one_of(
        st.sampled_from(values), st.floats(-magnitude if signed else 0.0, magnitude, width=32, allow_subnormal=False)
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


def heads(
    *,
    min_classes: int = 2,
    max_classes: int = 6,
    min_features: int = 1,
    max_features: int = 8,
    bias: bool | None = None,
) -> Strategy:
    """Linear heads.

    Args:
        min_classes: Smallest number of classes.
        max_classes: Largest number of classes.
        min_features: Smallest number of features.
        max_features: Largest number of features.
        bias: Whether the head has a bias; None (default) = either.
    """

    def build(draw: Any) -> Head:
        classes = draw(st.integers(min_classes, max_classes))
        features = draw(st.integers(min_features, max_features))
        has_bias = draw(st.booleans()) if bias is None else bias
        weight = draw(matrices(rows=classes, columns=features))
        return Head(weight, draw(matrices(rows=1, columns=classes))[0] if has_bias else None)

    return _composite(build)


def outputs(
    *,
    min_images: int = 1,
    max_images: int = 8,
    head: Head | None = None,
    num_classes: int | None = None,
    num_features: int | None = None,
    elements: Strategy | None = None,
    labeled: bool = False,
) -> Strategy:
    """Outputs with logits, features and keys.

    Args:
        min_images: Smallest batch.
        max_images: Largest batch.
        head: Head that computes the logits. None (default) = logits and features are drawn independently.
        num_classes: Number of logits without a head; default 4.
        num_features: Number of features without a head; default 5.
        elements: Strategy of the entries.
        labeled: Whether there are labels.
    """
    if head is not None and (num_classes is not None or num_features is not None):
        raise InvalidArgumentError("outputs: head sets num_classes and num_features; omit head, or these two")

    def build(draw: Any) -> Outputs:
        n = draw(st.integers(min_images, max_images))
        classes = head.num_classes if head is not None else num_classes or 4
        width = head.width if head is not None else num_features or 5
        features = draw(matrices(rows=n, columns=width, elements=elements))
        logits = head(features) if head is not None else draw(matrices(rows=n, columns=classes, elements=elements))
        numbers = st.lists(st.integers(0, classes - 1), min_size=n, max_size=n)
        labels = torch.tensor(draw(numbers), dtype=torch.int64) if labeled else None
        return Outputs(logits, features, labels, keys=[f"drawn/{i}" for i in range(n)])

    return _composite(build)


def training_sets(
    *, num_classes: int = 3, num_features: int = 4, min_per_class: int = 1, max_per_class: int = 8, gaps: bool = False
) -> Strategy:
    """Labeled outputs in which every class has `min_per_class` to `max_per_class` images, in mixed order.

    Args:
        num_classes: Number of logits.
        num_features: Number of features.
        min_per_class: Smallest number of images per class.
        max_per_class: Largest number of images per class.
        gaps: Whether classes may have no images; at least one class keeps its images.
    """

    def build(draw: Any) -> Outputs:
        counts = draw(st.lists(st.integers(min_per_class, max_per_class), min_size=num_classes, max_size=num_classes))
        if gaps:
            absent = draw(st.sets(st.integers(0, num_classes - 1), max_size=num_classes - 1))
            counts = [0 if c in absent else n for c, n in enumerate(counts)]
        labels = draw(st.permutations([c for c, n in enumerate(counts) for _ in range(n)]))
        n = len(labels)
        drawn = draw(outputs(min_images=n, max_images=n, num_classes=num_classes, num_features=num_features))
        return Outputs(drawn.logits, drawn.features, torch.tensor(labels), keys=drawn.keys)

    return _composite(build)


def cuts(size: int) -> Strategy:
    """Pairs (order, sizes): orders of `size` images, and sizes of batches.

    Args:
        size: Number of images, at least 1.
    """

    def build(draw: Any) -> tuple[Sequence[int], list[int]]:
        order = draw(st.permutations(range(size)))
        ends = sorted(draw(st.sets(st.integers(1, size - 1), max_size=6))) if size > 1 else []
        return order, [b - a for a, b in pairwise([0, *ends, size])]

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
