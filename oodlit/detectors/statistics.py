"""What detectors know of the training set: facts that are accumulated once and shared.

A statistic is a `torchmetrics.Metric`, so it can be updated with any cut of the training set into batches, merged, moved
and reset. `synchronize` makes the statistics of all processes equal to those of a single one.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, final

import torch
from torch import Tensor
from torchmetrics import Metric

from oodlit.detectors.distributed import Group, all_sum, gather_objects, gather_rows
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Outputs

__all__ = [
    "ClassMoments",
    "ClassProbabilities",
    "FeatureBank",
    "Statistic",
    "Statistics",
    "TrainSample",
    "hash_rows",
    "synchronize",
    "train_labels",
]

S = TypeVar("S", bound="Statistic")
T = TypeVar("T")


class Statistic(Metric):
    """One fact about the training set. Subclasses fill in the abstract methods.

    `update(outputs)` takes a batch; `merge(other)` takes what another process or another part of the data gave; both
    leave the same state for any order and any cut, up to rounding.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """Fields of `Outputs` that are read."""
    full_state_update = False

    @classmethod
    @abstractmethod
    def for_detectors(cls: type[S], detectors: Iterable[Any]) -> S:
        """The statistic that serves all `detectors` that name it."""

    @abstractmethod
    def accumulate(self, outputs: Outputs) -> None:
        """Take in one batch; called under no_grad and without autocast."""

    @abstractmethod
    def merge(self: S, other: S) -> None:
        """Take in what `other` has seen; `other` is left as it is."""

    @abstractmethod
    def synchronize(self, group: Group) -> None:
        """Make the state equal to that of one process that saw all batches of all processes in `group`."""

    @abstractmethod
    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state, in bytes, for a training set of `num_train` images."""

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Number of training images seen."""

    @final
    def update(self, outputs: Outputs) -> None:
        """Take in one batch."""
        if len(outputs) == 0:
            return
        with torch.no_grad(), torch.autocast(outputs.device.type, enabled=False):
            self.accumulate(outputs)

    @final
    def compute(self) -> "Statistic":
        """The statistic itself: its facts are properties."""
        return self


class Statistics(Mapping[type[Statistic], Statistic]):
    """The statistics of one fit, by type.

    Example:
        >>> moments = ClassMoments()
        >>> moments.update(Outputs(features=torch.eye(3), labels=torch.tensor([0, 0, 2])))
        >>> Statistics([moments])[ClassMoments].counts.tolist()
        [2, 0, 1]
    """

    def __init__(self, statistics: Iterable[Statistic] = ()) -> None:
        """Keep `statistics`, at most one of each type."""
        self._by_type = {type(s): s for s in statistics}
        self._memo: dict[Hashable, object] = {}

    def __getitem__(self, kind: type[S]) -> S:  # type: ignore[override]  # the key decides the type of the value
        """The statistic of type `kind`."""
        try:
            value = self._by_type[kind]
        except KeyError:
            raise InvalidArgumentError(
                f"the statistic {kind.__name__} was not accumulated; name it in the detector's `statistics`"
            ) from None
        assert isinstance(value, kind)
        return value

    def __iter__(self) -> Iterator[type[Statistic]]:
        """Types of the statistics."""
        return iter(self._by_type)

    def __len__(self) -> int:
        """Number of statistics."""
        return len(self._by_type)

    @property
    def num_samples(self) -> int:
        """Number of training images seen; 0 where no statistic was needed."""
        return max((s.num_samples for s in self.values()), default=0)

    def memo(self, key: Hashable, compute: Callable[[], T]) -> T:
        """`compute()`, evaluated once for every `key`; shares decompositions between detectors."""
        if key not in self._memo:
            self._memo[key] = compute()
        return self._memo[key]  # type: ignore[return-value]  # the key decides the type of the value

    def update(self, outputs: Outputs) -> None:
        """Take in one batch."""
        self._memo.clear()
        for statistic in self.values():
            statistic.update(outputs)


def synchronize(statistics: Iterable[Statistic], group: Group = None) -> None:
    """Union over all processes of `group`. Every process calls it exactly once, also one without batches."""
    for statistic in statistics:
        statistic.synchronize(group)


class ClassMoments(Statistic):
    """Counts, means and scatter of the features, per class and in total, in float64.

    The scatter is kept around the running mean (Chan, Golub and LeVeque 1983), hence a mean far from zero costs no digits.
    Memory: D x D + C x D doubles, whatever the number of images.

    Raises:
        InvalidArgumentError: A training image has no label, or the number of features changes.
    """

    needs = frozenset({"features", "labels"})
    count: Tensor
    mean: Tensor
    scatter: Tensor
    class_counts: Tensor
    class_sums: Tensor

    def __init__(self) -> None:
        """Start without a sample; shapes follow from the first batch."""
        super().__init__(sync_on_compute=False)
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx=None)
        self.add_state("mean", torch.zeros(0, dtype=torch.float64), dist_reduce_fx=None)
        self.add_state("scatter", torch.zeros(0, 0, dtype=torch.float64), dist_reduce_fx=None)
        self.add_state("class_counts", torch.zeros(0, dtype=torch.int64), dist_reduce_fx=None)
        self.add_state("class_sums", torch.zeros(0, 0, dtype=torch.float64), dist_reduce_fx=None)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "ClassMoments":
        """One size fits all."""
        return cls()

    def accumulate(self, outputs: Outputs) -> None:
        """Take in one batch."""
        features, labels = outputs.require("features").double(), train_labels(outputs)
        self._allocate(features.shape[1], int(labels.max()) + 1, features.device)
        if features.shape[1] != len(self.mean):
            raise InvalidArgumentError(
                f"ClassMoments: a batch has {features.shape[1]} features after batches with {len(self.mean)}"
            )
        mean = features.mean(dim=0)
        centred = features - mean
        self._move_mean(mean, len(features))
        self.scatter.addmm_(centred.T, centred)
        self.class_counts += torch.bincount(labels, minlength=len(self.class_counts))
        self.class_sums.index_add_(0, labels, features)

    def merge(self, other: "ClassMoments") -> None:
        """Take in what `other` has seen."""
        if other.num_samples == 0:
            return
        num_classes = max(len(self.class_counts), len(other.class_counts))
        self._allocate(len(other.mean), num_classes, other.mean.device)
        self._move_mean(other.mean, other.num_samples)
        self.scatter += other.scatter
        self.class_counts[: len(other.class_counts)] += other.class_counts
        self.class_sums[: len(other.class_counts)] += other.class_sums

    def synchronize(self, group: Group) -> None:
        """Sum over the processes; the scatter moves to the common mean first."""
        shapes = gather_objects(group, tuple(self.class_sums.shape))
        if len(shapes) == 1:
            return
        num_classes, width = (max(s[i] for s in shapes) for i in (0, 1))
        self._allocate(width, num_classes, self.mean.device)
        local_count, local_mean = int(self.count), self.mean
        self.count = all_sum(group, self.count)
        self.class_counts = all_sum(group, self.class_counts)
        self.class_sums = all_sum(group, self.class_sums)
        self.mean = all_sum(group, local_mean * local_count) / max(int(self.count), 1)
        delta = local_mean - self.mean
        self.scatter = all_sum(group, self.scatter.addr(delta, delta, alpha=local_count))

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state."""
        return 8 * width * (width + num_classes)

    @property
    def num_samples(self) -> int:
        """Number of training images seen."""
        return int(self.count)

    @property
    def counts(self) -> Tensor:
        """Images per class, int64, shape (classes,); classes above the largest label seen are absent."""
        return self.class_counts

    @property
    def class_ids(self) -> Tensor:
        """Ids of the classes that have at least one image, ascending."""
        return self.class_counts.nonzero().flatten()

    @property
    def class_means(self) -> Tensor:
        """Mean feature of every class in `class_ids`, float64, shape (present classes, features)."""
        return self.class_sums[self.class_ids] / self.class_counts[self.class_ids, None]

    @property
    def total_covariance(self) -> Tensor:
        """(1/N) sum (x - mean)(x - mean)', float64, shape (features, features)."""
        return self.scatter / self.count

    @property
    def within_covariance(self) -> Tensor:
        """(1/N) sum (x - mu_y)(x - mu_y)': pooled over classes, every image with the same weight."""
        deviation = (self.class_means - self.mean) * self.class_counts[self.class_ids, None].sqrt()
        return (self.scatter - deviation.T @ deviation) / self.count

    def _move_mean(self, mean: Tensor, m: int) -> None:
        n = int(self.count)
        delta = mean - self.mean
        self.scatter.addr_(delta, delta, alpha=n * m / (n + m))
        self.mean += delta * (m / (n + m))
        self.count += m

    def _allocate(self, width: int, num_classes: int, device: torch.device) -> None:
        if len(self.mean) == 0:
            self.count = self.count.to(device)
            self.mean = torch.zeros(width, dtype=torch.float64, device=device)
            self.scatter = torch.zeros(width, width, dtype=torch.float64, device=device)
            self.class_counts = torch.zeros(num_classes, dtype=torch.int64, device=device)
            self.class_sums = torch.zeros(num_classes, width, dtype=torch.float64, device=device)
        missing = num_classes - len(self.class_counts)
        if missing > 0:
            self.class_counts = torch.nn.functional.pad(self.class_counts, (0, missing))
            self.class_sums = torch.nn.functional.pad(self.class_sums, (0, 0, 0, missing))


class ClassProbabilities(Statistic):
    """Mean softmax of the training images predicted as class k, in float64.

    The softmax itself is taken in float64: means of 1e-60 and less occur and matter (KL matching).
    Memory: C x C doubles.
    """

    needs = frozenset({"logits"})
    sums: Tensor
    class_counts: Tensor

    def __init__(self) -> None:
        """Start without a sample."""
        super().__init__(sync_on_compute=False)
        self.add_state("sums", torch.zeros(0, 0, dtype=torch.float64), dist_reduce_fx=None)
        self.add_state("class_counts", torch.zeros(0, dtype=torch.int64), dist_reduce_fx=None)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "ClassProbabilities":
        """One size fits all."""
        return cls()

    def accumulate(self, outputs: Outputs) -> None:
        """Take in one batch."""
        logits = outputs.require("logits")
        self._allocate(logits.shape[1], logits.device)
        self.class_counts += torch.bincount(outputs.predictions, minlength=logits.shape[1])
        self.sums.index_add_(0, outputs.predictions, logits.double().softmax(dim=1))

    def merge(self, other: "ClassProbabilities") -> None:
        """Take in what `other` has seen."""
        if other.num_samples == 0:
            return
        self._allocate(len(other.class_counts), other.sums.device)
        self.sums += other.sums
        self.class_counts += other.class_counts

    def synchronize(self, group: Group) -> None:
        """Sum over the processes."""
        sizes = gather_objects(group, len(self.class_counts))
        if len(sizes) == 1:
            return
        self._allocate(max(sizes), self.sums.device)
        self.sums, self.class_counts = all_sum(group, self.sums), all_sum(group, self.class_counts)

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state."""
        return 8 * num_classes * num_classes

    @property
    def num_samples(self) -> int:
        """Number of training images seen."""
        return int(self.class_counts.sum())

    @property
    def counts(self) -> Tensor:
        """Images predicted as each class, int64, shape (classes,)."""
        return self.class_counts

    @property
    def means(self) -> Tensor:
        """Mean softmax per predicted class, float64, (classes, classes); rows of never predicted classes are NaN."""
        return self.sums / self.class_counts[:, None]

    def _allocate(self, num_classes: int, device: torch.device) -> None:
        if len(self.class_counts) == 0:
            self.sums = torch.zeros(num_classes, num_classes, dtype=torch.float64, device=device)
            self.class_counts = torch.zeros(num_classes, dtype=torch.int64, device=device)


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
        self.add_state("seen", torch.zeros((), dtype=torch.int64), dist_reduce_fx=None)
        self._reset_blocks()

    def _reset_blocks(self) -> None:
        self._blocks: list[dict[str, Tensor]] = []
        self._held = 0

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
        if len(self._blocks) == 0:
            return
        order = torch.cat([b["hash"] for b in self._blocks]).sort(stable=True).indices[: self.rows]
        merged = {}
        for name in list(self._blocks[0]):
            merged[name] = torch.cat([b.pop(name) for b in self._blocks])[order]
        self._blocks, self._held = [merged], len(order)

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
    """

    needs = frozenset({"logits", "features"})
    default_rows: ClassVar[int] = 50_000

    def __init__(self, rows: int = default_rows) -> None:
        """Keep at most `rows` images."""
        super().__init__(rows)

    @classmethod
    def for_detectors(cls, detectors: Iterable[Any]) -> "TrainSample":
        """One size fits all."""
        return cls()

    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """Whatever of logits, features and labels the batch has."""
        names = ("logits", "features", "labels", "predictions")
        has = {n: getattr(outputs, n) for n in names[:3] if getattr(outputs, n) is not None}
        return has | ({} if outputs.logits is None else {"predictions": outputs.predictions})

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state: twice the rows, since they are cut only now and then."""
        assert self.rows is not None  # given in __init__
        return min(2 * self.rows, num_train) * (4 * (width + num_classes) + 24)

    @property
    def outputs(self) -> Outputs:
        """The kept rows as outputs, on the CPU."""
        self._compact()
        self.column("hash")  # the error for an empty sample
        return Outputs(**{n: v for n, v in self._blocks[0].items() if n in ("logits", "features", "labels")})


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
        sizes = [getattr(d, "bank_size", None) for d in detectors]
        return cls(None if None in sizes else max(sizes, default=None))

    def rows_of(self, outputs: Outputs) -> dict[str, Tensor]:
        """The features alone."""
        return {"features": outputs.require("features")}

    def estimate_bytes(self, *, width: int, num_classes: int, num_train: int) -> int:
        """Memory of the state."""
        rows = num_train if self.rows is None else min(2 * self.rows, num_train)
        return rows * (4 * width + 8)

    def features(self, rows: int | None = None) -> Tensor:
        """The first `rows` features in the order of their hashes (None = all), on the CPU."""
        return self.column("features")[:rows]


def train_labels(outputs: Outputs) -> Tensor:
    """Labels of a training batch.

    Raises:
        InvalidArgumentError: There are none, or one is negative; names the first keys.
    """
    labels = outputs.require("labels")
    bad = (labels < 0).nonzero().flatten().tolist()
    if bad:
        named = "" if outputs.keys is None else f" (first: {', '.join(outputs.keys[i] for i in bad[:3])})"
        raise InvalidArgumentError(
            f"{len(bad)} of {len(labels)} training images have no label{named}; the train stream needs labels >= 0"
        )
    return labels


def hash_rows(outputs: Outputs) -> Tensor:
    """A 63-bit hash per image, int64: of its key, or of its features or logits where there are no keys."""
    contents: Sequence[bytes]
    if outputs.keys is not None:
        contents = [key.encode() for key in outputs.keys]
    else:
        basis = outputs.features if outputs.features is not None else outputs.require("logits")
        contents = [row.tobytes() for row in basis.detach().cpu().numpy()]
    digests = (hashlib.blake2b(content, digest_size=8).digest() for content in contents)
    return torch.tensor([int.from_bytes(d, "big") >> 1 for d in digests], dtype=torch.int64)
