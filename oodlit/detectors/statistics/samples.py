"""Samples of training images: outputs, means of hidden activations, or numbers that detectors compute."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.checks import all_finite
from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Outputs
from oodlit.detectors.statistics.smallest_hashes import SmallestHashes

FIELDS = ("logits", "max_logits", "median_logits", "logsumexp", "features")
"""Fields of `Outputs` that `TrainSample` can keep in addition to labels."""
Scalar: TypeAlias = "Callable[[Outputs], Tensor]"
"""Function that returns one number per image, shape (batch,); equal functions must have the same hash."""
OF_LOGITS = frozenset({"max_logits", "median_logits", "logsumexp"})
"""Fields that require no column if the logits are kept."""


class TrainSample(SmallestHashes):
    """Outputs of a sample of training images, for percentiles, ViM's alpha, NNGuide's bank and DER thresholds.

    Args:
        rows: Number of images to keep; all of them if there are fewer.
        fields: Fields of `FIELDS` to keep if a batch has them; labels are always kept.
    """

    needs = frozenset({"logits", "features"})
    default_rows: ClassVar[int] = 50_000

    def __init__(self, rows: int = default_rows, fields: Sequence[str] = ("logits", "features")) -> None:
        super().__init__(rows)
        self.fields = tuple(fields)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "TrainSample":
        """Create a sample with the fields that the detectors read; with all of `needs` if there are no detectors."""
        read = frozenset().union(*(d.required_needs if d.sample_fields is None else _fields(d) for d in detectors))
        kept = (read or cls.needs) - (OF_LOGITS if "logits" in read else frozenset())
        return cls(cls.default_rows, [field for field in FIELDS if field in kept])

    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """Return fields, labels and predictions, as far as the batch has them."""
        columns = {n: value for n in ("logits", "features", "labels") if (value := getattr(outputs, n)) is not None}
        if "logits" in columns:
            columns["predictions"] = outputs.predictions
            columns |= {name: getattr(outputs, name) for name in OF_LOGITS.intersection(self.fields)}
        wanted = {*self.fields, "labels"} | ({"predictions"} if "logits" in self.fields else set())
        return {n: value for n, value in columns.items() if n in wanted}

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the peak memory of the state."""
        sizes = {"logits": num_classes, "features": width}
        return self._bytes_at_peak(num_train, 4 * sum(sizes.get(f, 1) for f in self.fields) + 24)

    def of_logits(self, name: Literal["max_logits", "median_logits", "logsumexp"], *, ordered: bool = True) -> Tensor:
        """Return the largest or median logits or log-sum-exp of the kept rows, in the order of `column`, on the CPU."""
        if "logits" not in self.fields:
            return self.column(name, ordered=ordered)
        value: Tensor = getattr(self.outputs, name)
        return value

    @property
    def outputs(self) -> Outputs:
        """The kept rows as outputs, on the CPU."""
        self.column("hash")  # sorts the rows and refuses an empty sample
        block = self._store.blocks[0]
        return Outputs(block.get("logits"), block.get("features"), block.get("labels"))


class HiddenSample(SmallestHashes):
    """Channel means of hidden activations of a sample of training images, with labels if available.

    Args:
        layers: Names in `Outputs.hidden`.
        rows: Number of images to keep; all of them if there are fewer.
    """

    needs = frozenset({"hidden"})
    default_rows: ClassVar[int] = 50_000

    def __init__(self, layers: Sequence[str], rows: int = default_rows) -> None:
        super().__init__(rows)
        self.layers = tuple(layers)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "HiddenSample":
        """Create a sample of all layers that a detector lists in `layers`."""
        return cls(tuple(dict.fromkeys(layer for d in detectors for layer in d.layers)))

    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """Return channel means by layer, and labels."""
        means = {layer: channel_means(outputs, layer) for layer in self.layers}
        return means if outputs.labels is None else means | {"labels": outputs.labels}

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the peak memory of the state, for layers with as many channels as there are features."""
        return self._bytes_at_peak(num_train, 4 * width * len(self.layers) + 16)


class ScalarSample(SmallestHashes):
    """Numbers that detectors compute for a sample of training images, to measure how usual a number is.

    A detector provides the function that computes the number as its attribute `scalar`. Equal functions are evaluated
    once for all detectors, including extra forward passes.

    Args:
        scalars: The functions.
        rows: Number of images to keep; all of them if there are fewer.
    """

    needs = frozenset({"logits", "features", "images", "model"})
    default_rows: ClassVar[int] = 5000

    def __init__(self, scalars: Iterable[Scalar], rows: int = default_rows) -> None:
        super().__init__(rows)
        self.scalars = tuple(dict.fromkeys(scalars))

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "ScalarSample":
        """Create a sample of the numbers that the detectors request."""
        return cls(d.scalar for d in detectors)

    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """Return a column for every function, float64."""
        numbers = (outputs.memo(scalar, partial(scalar, outputs)).double() for scalar in self.scalars)
        return {f"scalar {place}": column for place, column in enumerate(numbers)}

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Estimate the peak memory of the state."""
        return self._bytes_at_peak(num_train, 8 * len(self.scalars) + 8)

    def values(self, scalar: Scalar) -> Tensor:
        """Return the numbers of the kept images, ascending, float64, on the CPU."""
        return self.column(f"scalar {self.scalars.index(scalar)}").sort().values


def shares_below(sample: Float[Tensor, " images"], values: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Return the fraction of an ascending sample that is not above each value, float64 (the empirical CDF).

    Example:
        >>> shares_below(torch.tensor([1.0, 2.0, 2.0, 5.0]), torch.tensor([0.0, 2.0, 9.0])).tolist()
        [0.0, 0.75, 1.0]
    """
    below = torch.searchsorted(sample, values.to(sample.dtype).contiguous(), right=True)
    return below.double() / len(sample)


def _fields(detector: Any) -> frozenset[str]:
    """Return `sample_fields` of a detector.

    Raises:
        InvalidArgumentError: `TrainSample` does not know a field, or it requires logits that are not in `needs`.
    """
    fields: frozenset[str] = detector.sample_fields
    known = (*FIELDS, "labels")
    if unknown := ", ".join(sorted(fields.difference(known))):
        raise InvalidArgumentError(f"{detector!r}: unknown sample_fields {unknown}. Known: {', '.join(known)}")
    needed = {"logits" if f in OF_LOGITS else f for f in fields} - {"labels"} - detector.required_needs
    if needed:
        raise InvalidArgumentError(
            f"{detector!r}: sample_fields requires {', '.join(sorted(needed))} in `needs` as well"
        )
    return fields


def channel_means(outputs: Outputs, layer: str) -> Tensor:
    """Average a hidden activation (batch, channels, ...) over its positions to (batch, channels), float32 at least.

    `OODModule` puts the channels first, including those of tokens and channels-last maps; vectors stay unchanged.

    Raises:
        InvalidArgumentError: The layer was not captured, or its activation has another shape.
    """
    hidden = outputs.hidden or {}
    if layer not in hidden:
        raise InvalidArgumentError(
            f"Outputs: the activation of layer {layer!r} was not captured (captured: {', '.join(hidden) or 'none'});"
            f" name the layer in `layers` of the detector, or pass Outputs(hidden={{{layer!r}: ...}})"
        )
    value = hidden[layer]
    if value.ndim < 2:
        raise InvalidArgumentError(
            f"expected Outputs.hidden[{layer!r}] of shape (batch, channels, height, width), (batch, channels,"
            f" tokens) or (batch, channels), got {tuple(value.shape)}"
        )
    value = value.to(torch.promote_types(value.dtype, torch.float32))
    positions = tuple(range(2, value.ndim))
    if not positions:
        return value
    means = value.mean(dim=positions)
    # Values near the limit of float32 overflow in a sum that fits in float64.
    return means if all_finite(means) else value.mean(dim=positions, dtype=torch.float64)
