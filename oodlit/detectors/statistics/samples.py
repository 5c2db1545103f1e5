"""Samples of the training images, chosen by the hash of their keys."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.detectors.distributed import Group, all_sum, gather_objects, gather_rows
from oodlit.detectors.statistics.base import Statistic
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs

__all__ = ["FeatureBank", "HiddenSample", "TrainSample", "channel_means", "hash_rows", "hash_strings"]


class _SmallestHashes(Statistic):
    """The `rows` images with the smallest hash of their key (all if `rows` is None), kept on the CPU.

    The hash decides, not the position: any batch size, order, number of workers and of processes keeps the same rows,
    and the rows come out in the same order.
    """

    def __init__(self, rows: int | None) -> None:
        """Keep at most `rows` images."""
        super().__init__(sync_on_compute=False)
        if rows is not None and rows < 1:
            raise InvalidArgumentError(f"{type(self).__name__}: rows={rows}; at least 1 is needed, or None for all")
        self.rows = rows
        self.seen: Tensor
        self.add_state("seen", torch.zeros((), dtype=torch.int64), dist_reduce_fx=None)
        self._reset_blocks()

    def _reset_blocks(self) -> None:
        self._blocks: list[dict[str, Tensor]] = []
        self._held = 0
        self._sorted = False

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._reset_blocks()

    @abstractmethod
    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """The columns to keep, each with one row per image."""

    def accumulate(self, outputs: Outputs) -> None:
        """Take in one batch."""
        hashes = hash_rows(outputs)
        block = {name: value.detach().to("cpu", copy=True) for name, value in self.rows_of(outputs).items()}
        if self._blocks and {n: v.shape[1:] for n, v in block.items()} != {
            n: v.shape[1:] for n, v in self._blocks[0].items() if n != "hash"
        }:
            raise InvalidArgumentError(
                f"{type(self).__name__}: a batch has other shapes than those before:"
                f" { {n: tuple(v.shape[1:]) for n, v in block.items()} }"
            )
        self.seen += len(outputs)
        self._append({"hash": hashes, **block})

    def _append(self, block: dict[str, Tensor]) -> None:
        self._blocks.append(block)
        self._sorted = False
        self._held += len(block["hash"])
        if self.rows is not None and self._held >= 2 * self.rows:
            self._compact()

    def merge(self, other: "_SmallestHashes") -> None:
        """Take in the rows of `other`."""
        other._compact()
        self.seen += other.seen
        for block in other._blocks:
            self._append(dict(block))

    def _compact(self) -> None:
        """Merge the blocks into one, sorted by hash and cut to `rows`; frees each part as soon as it is copied."""
        if len(self._blocks) == 0 or (len(self._blocks) == 1 and self._sorted):
            return
        hashes = torch.cat([b["hash"] for b in self._blocks])
        order = hashes.sort(stable=True).indices
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))  # of every row in the sorted block
        places = torch.split(place, [len(b["hash"]) for b in self._blocks])
        self._held = len(order) if self.rows is None else min(self.rows, len(order))
        merged = {}
        for name in list(self._blocks[0]):
            parts = [block.pop(name) for block in self._blocks]
            column = parts[0].new_empty((self._held, *parts[0].shape[1:]))
            for at in places:
                part, kept = parts.pop(0), at < self._held
                column[at[kept]] = part if bool(kept.all()) else part[kept]
            merged[name] = column
        self._blocks, self._sorted = [merged], True

    def _rows_at_peak(self, num_train: int) -> int:
        """Rows in memory while they are sorted: those that came in, at most twice what is kept, and their copy."""
        if self.rows is None:
            return 2 * num_train
        return min(2 * self.rows, num_train) + min(self.rows, num_train)

    def synchronize(self, group: Group) -> None:
        """Union of the rows of all processes, cut to `rows` again."""
        self._compact()
        local = self._blocks[0] if self._blocks else {}
        layouts = gather_objects(group, {n: (v.dtype, tuple(v.shape)) for n, v in local.items()})
        if len(layouts) == 1:
            return
        self.seen = all_sum(group, self.seen)
        layout = next((layout for layout in layouts if layout), None)
        if layout is None:
            return
        sizes = [layout["hash"][1][0] if layout else 0 for layout in layouts]
        self._reset_blocks()
        merged = {}
        for name, (dtype, shape) in layout.items():
            mine = local.pop(name, torch.empty((0, *shape[1:]), dtype=dtype))
            merged[name] = gather_rows(group, mine, sizes)
        self._append(merged)
        self._compact()

    @property
    def num_samples(self) -> int:
        """Number of training images seen (not kept)."""
        return int(self.seen)

    @property
    def num_kept(self) -> int:
        """Number of rows kept."""
        self._compact()
        return self._held

    def column(self, name: str) -> Tensor:
        """One column of the kept rows, in the order of their hashes, on the CPU.

        Raises:
            InvalidArgumentError: No row was seen, or there is no such column.
        """
        self._compact()
        if not self._blocks or name not in self._blocks[0]:
            raise InvalidArgumentError(f"{type(self).__name__}: no {name} were seen; fit on a non-empty training set")
        return self._blocks[0][name]


class TrainSample(_SmallestHashes):
    """Outputs of a sample of the training images: percentiles, alpha of ViM, NNGuide's bank, DER thresholds.

    Args:
        rows: How many images to keep; all of them if there are fewer.
        fields: Which of "logits" and "features" to keep, where a batch has them; labels are always kept.
    """

    needs = frozenset({"logits", "features"})
    default_rows: ClassVar[int] = 50_000

    def __init__(self, rows: int = default_rows, fields: Sequence[str] = ("logits", "features")) -> None:
        """Keep at most `rows` images."""
        super().__init__(rows)
        self.fields = tuple(fields)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "TrainSample":
        """What the detectors read; everything where none is named."""
        read = frozenset().union(*(d.required_needs for d in detectors)) or cls.needs
        return cls(fields=[field for field in ("logits", "features") if field in read])

    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """Whatever of the fields, labels and predictions the batch has."""
        kept = {n: value for n in (*self.fields, "labels") if (value := getattr(outputs, n)) is not None}
        return kept | ({"predictions": outputs.predictions} if "logits" in kept else {})

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state at its peak."""
        floats = num_classes * ("logits" in self.fields) + width * ("features" in self.fields)
        return self._rows_at_peak(num_train) * (4 * floats + 24)

    @property
    def outputs(self) -> Outputs:
        """The kept rows as outputs, on the CPU."""
        self._compact()
        self.column("hash")  # the error for an empty sample
        block = self._blocks[0]
        return Outputs(block.get("logits"), block.get("features"), block.get("labels"))


class FeatureBank(_SmallestHashes):
    """Features of the training images, for nearest neighbours.

    Args:
        rows: How many images to keep; None = the whole training set (1.28 million x 2048 features are 10 GB).
    """

    needs = frozenset({"features"})

    def __init__(self, rows: int | None = None) -> None:
        """Keep at most `rows` images."""
        super().__init__(rows)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "FeatureBank":
        """The largest bank that a detector asks for through its setting `bank_size`."""
        sizes: list[int | None] = [getattr(d, "bank_size", None) for d in detectors]
        known = [size for size in sizes if size is not None]
        return cls(max(known) if known and len(known) == len(sizes) else None)

    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """The features alone."""
        return {"features": outputs.require("features")}

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state at its peak; not above it while the rows are copied into the detector."""
        return self._rows_at_peak(num_train) * (4 * width + 8)

    def features(self, rows: int | None = None) -> Tensor:
        """The first `rows` features in the order of their hashes (None = all), on the CPU."""
        return self.column("features")[:rows]


class HiddenSample(_SmallestHashes):
    """Channel means of hidden activations of a sample of the training images, with labels where there are any.

    Args:
        layers: Names in `Outputs.hidden`.
        rows: How many images to keep; all of them if there are fewer.
    """

    needs = frozenset({"hidden"})
    default_rows: ClassVar[int] = 50_000

    def __init__(self, layers: Sequence[str], rows: int = default_rows) -> None:
        """Keep at most `rows` images."""
        super().__init__(rows)
        self.layers = tuple(layers)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "HiddenSample":
        """All layers that a detector names in `layers`."""
        return cls(tuple(dict.fromkeys(layer for d in detectors for layer in d.layers)))

    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """Channel means by layer, and labels."""
        means = {layer: channel_means(outputs, layer) for layer in self.layers}
        return means if outputs.labels is None else means | {"labels": outputs.labels}

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state at its peak, if a layer has as many channels as there are features."""
        return self._rows_at_peak(num_train) * (4 * width * len(self.layers) + 16)


def channel_means(outputs: Outputs, layer: str) -> Tensor:
    """Means of a hidden activation over positions, float32 at least, (batch, channels).

    A map (batch, channels, height, width) is averaged over height and width, tokens (batch, tokens, channels) over
    tokens; vectors stay as they are.

    Raises:
        InvalidArgumentError: The layer was not captured, or its activation has another form.
    """
    hidden = outputs.hidden or {}
    if layer not in hidden:
        known = ", ".join(hidden) or "none"
        raise InvalidArgumentError(f"Outputs: no hidden activation {layer!r} was captured; captured: {known}")
    value = hidden[layer]
    if value.ndim not in (2, 3, 4):
        raise InvalidArgumentError(
            f"hidden activation {layer!r} has shape {tuple(value.shape)}; (batch, channels, height, width),"
            " (batch, tokens, channels) or (batch, channels) is needed"
        )
    value = value.to(torch.promote_types(value.dtype, torch.float32))
    return value.mean(dim={2: (), 3: (1,), 4: (2, 3)}[value.ndim]) if value.ndim > 2 else value


def hash_rows(outputs: Outputs) -> Tensor:
    """A 63-bit hash per image, int64: of its key, or of its features or logits where there are no keys."""
    if outputs.keys is not None:
        return hash_strings(outputs.keys)
    basis = outputs.features if outputs.features is not None else outputs.require("logits")
    return hash_contents(basis)


def hash_contents(rows: Float[Tensor, "batch columns"]) -> Tensor:
    """63-bit hashes of the bits of every row, int64; the same on every device and in every process.

    Sum over columns of bits times an odd 64-bit number of the column, all modulo 2^64, then mixed: one pass over the
    rows instead of a call per row.

    Example:
        >>> same, other = torch.ones(2, 3), torch.tensor([[1.0, 1.0, 2.0]])
        >>> a, b, c = hash_contents(torch.cat([same, other])).tolist()
        >>> a == b, a == c
        (True, False)
    """
    bits = rows.detach().contiguous().view(torch.int64 if rows.dtype == torch.float64 else torch.int32)
    columns = torch.arange(1, bits.shape[1] + 1, device=bits.device)
    factors = _mixed(columns * 0x9E3779B97F4A7C1) | 1
    return (_mixed((bits * factors).sum(dim=1)) & 0x7FFFFFFFFFFFFFFF).cpu()


def _mixed(values: Tensor) -> Tensor:
    """Spread the bits of int64 values over all 64 (shifts and odd factors, modulo 2^64)."""
    for factor in (0x7F4A7C15F39CC061, 0x1CE4E5B9BF58476D):
        values = (values ^ (values >> 31)) * factor
    return values ^ (values >> 29)


def hash_strings(contents: Sequence[str | bytes]) -> Tensor:
    """63-bit hashes, int64; the same in every process and version."""
    # Names of files that are no valid text carry lone surrogates.
    plain = (content.encode(errors="surrogatepass") if isinstance(content, str) else content for content in contents)
    digests = (hashlib.blake2b(content, digest_size=8).digest() for content in plain)
    return torch.tensor([int.from_bytes(d, "big") >> 1 for d in digests], dtype=torch.int64)
