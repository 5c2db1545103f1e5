"""Detection from the easiest to the hardest OOD classes: AUROC and FPR at levels of severity (COOD).

Both are linear in the OOD images: with w(x) = #{id > x} + #{id = x} / 2 the AUROC of any set of classes is the sum of w
over their images, divided by all pairs. Two binary searches per image, and prefix sums, determine every level in
integers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.fractions import ShareLike
from oodlit.metrics.numerics.acceptance import acceptance_threshold, exact_tpr
from oodlit.metrics.numerics.exact_sums import ExactSums
from oodlit.metrics.numerics.ranking import ScoreLike, as_groups, as_integers, as_numbers, as_scores, as_sorted
from oodlit.metrics.numerics.undefined import undefined
from oodlit.metrics.severity.levels import LEVELS, check_no_class_is_empty, level_starts, severity_order, window_values
from oodlit.metrics.streams import StreamMetric, check_batch


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Counts of the test images of every OOD class among the ID images.

    Args:
        n_id: Number of ID images.
        sizes: Test images of every class, shape (classes,).
        half_wins: Twice the number of pairs in which the ID image scores higher; a tie counts one. Shape (classes,).
        accepted: Test images at or above the threshold, shape (classes,).
    """

    n_id: int
    sizes: Tensor
    half_wins: Tensor
    accepted: Tensor

    @property
    def auroc(self) -> Float[Tensor, " classes"]:
        """AUROC of every class; NaN for a class without images."""
        return self.half_wins.double() / self.half_pairs.double()

    @property
    def fpr(self) -> Float[Tensor, " classes"]:
        """Fraction of accepted images of every class; NaN for a class without images."""
        return self.accepted.double() / self.sizes.double()

    @property
    def half_pairs(self) -> Int[Tensor, " classes"]:
        """Twice the number of pairs of an ID image and an image of the class."""
        return 2 * self.n_id * self.sizes


@dataclass(frozen=True, eq=False)
class Levels:
    """Detection along the sorted classes of a pool.

    Args:
        order: Classes from the easiest to the hardest, shape (classes,).
        starts: Position in `order` at which each level begins, shape (levels,).
        width: Number of classes of a level, n_ID.
        classes: Counts of the classes.
        auroc_windows: AUROC of every n_ID neighbors in `order`, shape (K - n_ID + 1,).
        fpr_windows: FPR of every n_ID neighbors in `order`, shape (K - n_ID + 1,).
    """

    order: Tensor
    starts: Tensor
    width: int
    classes: ClassCounts
    auroc_windows: Tensor
    fpr_windows: Tensor

    @property
    def auroc(self) -> Float[Tensor, " levels"]:
        """AUROC of all ID images against all test images of the level's classes."""
        return self.auroc_windows[self.starts]

    @property
    def fpr(self) -> Float[Tensor, " levels"]:
        """Fraction of the test images of the level's classes that are accepted."""
        return self.fpr_windows[self.starts]

    def members(self, level: int) -> Int[Tensor, " width"]:
        """Return the classes of a level, from the easiest to the hardest."""
        start = int(self.starts[level])
        return self.order[start : start + self.width]


def class_counts(
    id_scores: ScoreLike,
    scores: ScoreLike,
    groups: Int[Tensor, " m"],
    num_classes: int,
    *,
    tpr: ShareLike = 0.95,
    rule: str = "attained",
) -> ClassCounts:
    """Count the test images of every class against the ID images, for all classes in one call.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        scores: Scores of the test images of all classes, shape (m,).
        groups: Class of every test image, 0 .. num_classes - 1, shape (m,).
        num_classes: Number of classes.
        tpr: Fraction of ID scores to keep, in (0, 1].
        rule: "attained" or "interpolated", see `acceptance_threshold`.

    Returns:
        The counts.

    Raises:
        InvalidArgumentError: There are no ID scores, or shapes, groups or settings are not allowed.
        NonFiniteScoreError: NaN among the scores; infinities are ordered.

    Example:
        >>> counts = class_counts([1.0, 2.0, 3.0], [0.0, 2.0, 4.0], torch.tensor([0, 0, 1]), 2)
        >>> counts.auroc.tolist(), counts.fpr.tolist()
        ([0.75, 0.0], [0.5, 1.0])
    """
    sorted_id, values = as_sorted(id_scores, "id_scores"), as_scores(scores)
    classes = as_groups(groups, num_classes, len(values)).to(values.device)
    n = len(sorted_id)
    if n == 0:
        raise InvalidArgumentError("class_counts: expected at least one ID score, got none")
    threshold = acceptance_threshold(sorted_id, tpr=tpr, rule=rule)
    half_wins = 2 * n - sorted_id.count_below(values) - sorted_id.count_at_most(values)
    # Both sides in float64: a float32 score equal to the threshold it gave must stay equal.
    accepted = values.double() >= threshold

    def per_class(of_images: Tensor) -> Tensor:
        zeros = torch.zeros(num_classes, dtype=torch.int64, device=classes.device)
        return zeros.index_add_(0, classes, of_images.to(classes.device, torch.int64))

    return ClassCounts(n, per_class(torch.ones_like(classes)), per_class(half_wins), per_class(accepted))


def levels_of(
    counts: ClassCounts,
    severities: ScoreLike,
    *,
    id_classes: int,
    levels: int = LEVELS,
    class_names: Sequence[str] = (),
) -> Levels:
    """Compute levels from class counts; see `severity_levels`."""
    order = severity_order(severities)
    if len(order) != len(counts.sizes):
        raise InvalidArgumentError(f"severities: expected one entry per class ({len(counts.sizes)}), got {len(order)}")
    if class_names and len(class_names) != len(order):
        raise InvalidArgumentError(
            f"class_names: expected one name per class ({len(order)}) or none, got {len(class_names)}"
        )
    if len(set(class_names)) < len(class_names):
        twice = next(name for name in class_names if list(class_names).count(name) > 1)
        raise InvalidArgumentError(f"two classes of the pool are named {twice!r}; rename one")
    starts = torch.tensor(level_starts(len(order), id_classes, levels))
    check_no_class_is_empty(counts.sizes, "test", class_names)
    order = order.to(counts.sizes.device)
    return Levels(
        order,
        starts,
        id_classes,
        counts,
        window_values(counts.half_wins, counts.half_pairs, order, id_classes),
        window_values(counts.accepted, counts.sizes, order, id_classes),
    )


def severity_levels(
    id_scores: ScoreLike,
    scores: ScoreLike,
    groups: Int[Tensor, " m"],
    severities: ScoreLike,
    *,
    id_classes: int,
    levels: int = LEVELS,
    tpr: ShareLike = 0.95,
    rule: str = "attained",
    class_names: Sequence[str] = (),
) -> Levels:
    """AUROC and FPR from the easiest to the hardest OOD classes of a pool, for one model and one confidence.

    Classes are sorted by the mean confidence of their *estimation* images; a level consists of n_ID neighbors, and its
    value is that of all ID images against the *test* images of these classes, pooled. See `level_starts` for the
    levels.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        scores: Scores of the test images of all classes, shape (m,).
        groups: Class of every test image, 0 .. K - 1, shape (m,).
        severities: Mean confidence of the estimation images of every class, higher = harder, shape (K,).
        id_classes: Number of classes that the classifier knows, and of the classes of a level.
        levels: Number of levels.
        tpr: Fraction of ID scores to keep, in (0, 1].
        rule: "attained" or "interpolated", see `acceptance_threshold`.
        class_names: Names for messages; empty = numbers.

    Returns:
        Levels, with the values of all windows.

    Raises:
        InvalidArgumentError: There are fewer classes than in a level, two with the same name, or one without test
            images.
        NonFiniteScoreError: NaN among scores or severities; infinities are ordered.

    Example:
        >>> found = severity_levels([3.0, 4.0], [1.0, 3.0, 5.0], torch.tensor([2, 0, 1]), [0.5, 0.9, 0.1], id_classes=1)
        >>> found.order.tolist(), found.auroc_windows.tolist(), found.auroc.mean().item()
        ([2, 0, 1], [1.0, 0.75, 0.0], 0.5681818181818182)

    References:
        Galil, Dabbah and El-Yaniv: A framework for benchmarking class-out-of-distribution detection and its application
        to ImageNet. ICLR 2023.
    """
    num_classes = len(as_scores(severities, "severities"))
    counts = class_counts(id_scores, scores, groups, num_classes, tpr=tpr, rule=rule)
    return levels_of(counts, severities, id_classes=id_classes, levels=levels, class_names=class_names)


class SeverityLevels(StreamMetric):
    """Streaming `severity_levels`: classes are sorted by the mean confidence of the images that are not test images.

    `compute` returns `{"auroc": shape (levels,), "fpr": shape (levels,), "mean_auroc": scalar, "mean_fpr": scalar,
    "severities": shape (classes,)}`; all NaN until there is an ID image. Batches may have any size and order, from any
    number of processes: sums of confidences are exact, so that equal classes stay equal. Memory is 8 bytes per score.

    Args:
        num_classes: Number of OOD classes; groups are 0 to num_classes - 1.
        id_classes: Number of classes that the classifier knows.
        levels: Number of levels.
        tpr: Fraction of ID scores to keep, in (0, 1].
        rule: "attained" or "interpolated".
        kwargs: Passed to `torchmetrics.Metric`.

    Raises:
        InvalidArgumentError: A setting is not allowed, or the pool is smaller than a level.

    Example:
        >>> metric = SeverityLevels(num_classes=3, id_classes=1, levels=3)
        >>> scores, groups = torch.tensor([3.0, 4.0, 1.0, 2.0, 3.0, 5.0]), torch.tensor([-1, -1, 2, 1, 0, 1])
        >>> metric.update(scores, is_ood=groups >= 0, groups=groups, is_test=torch.ones(6, dtype=torch.bool))
        >>> metric.update(scores[2:], groups[2:] >= 0, groups[2:], torch.zeros(4, dtype=torch.bool))
        >>> {name: [round(v, 4) for v in value.view(-1).tolist()] for name, value in metric.compute().items()}
        {'auroc': [1.0, 0.75, 0.5], 'fpr': [0.0, 1.0, 0.5], 'mean_auroc': [0.75], 'mean_fpr': [0.5], \
'severities': [3.0, 3.5, 1.0]}
    """

    higher_is_better = True  # the AUROC
    plot_lower_bound = plot_upper_bound = None
    streams: ClassVar = dict.fromkeys(("id_scores", "test_scores", "confidences"), torch.float64) | dict.fromkeys(
        ("test_groups", "estimation_groups"), torch.int64
    )

    def __init__(
        self,
        num_classes: int,
        id_classes: int,
        levels: int = LEVELS,
        tpr: ShareLike = 0.95,
        rule: str = "attained",
        **kwargs: Any,
    ) -> None:
        """Check the settings."""
        level_starts(num_classes, id_classes, levels)
        exact_tpr(tpr, rule)
        super().__init__(**kwargs)
        self.num_classes, self.id_classes, self.levels, self.tpr, self.rule = num_classes, id_classes, levels, tpr, rule

    def update(
        self,
        scores: Tensor,
        is_ood: Tensor,
        groups: Int[Tensor, " batch"],
        is_test: Tensor,
        confidences: Tensor | None = None,
    ) -> None:
        """Add one batch with any mixture of ID images, and estimation and test images of the pool.

        Args:
            scores: Higher = more in-distribution, shape (batch,).
            is_ood: True for images of the pool, boolean, shape (batch,).
            groups: Class of every image of the pool, shape (batch,); ignored for ID images.
            is_test: True for test images of the pool, boolean, shape (batch,); ignored for ID images.
            confidences: Values to average, shape (batch,), such as those of `Detector.confidences`; None = the scores.

        Raises:
            InvalidArgumentError: Shapes or types do not match, or a group is out of range.
        """
        scores, (is_ood, is_test) = check_batch(scores, is_ood=is_ood, is_test=is_test)
        averaged = scores if confidences is None else as_numbers(confidences, "confidences").to(scores.device)
        if len(averaged) != len(scores):
            raise InvalidArgumentError(
                f"confidences: expected {len(scores)} values, one per score, got {len(averaged)}"
            )
        all_groups = as_integers(groups, "groups", like=scores)
        as_groups(all_groups[is_ood], self.num_classes, int(is_ood.sum()))
        estimation, test = is_ood & ~is_test, is_ood & is_test
        self.append("id_scores", scores[~is_ood])
        self.append("test_scores", scores[test])
        self.append("test_groups", all_groups[test])
        self.append("confidences", averaged[estimation])
        self.append("estimation_groups", all_groups[estimation])

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Keep the documented shapes: torchmetrics makes scalars of tensors with one element."""
        wrapped = super()._wrap_compute(compute)

        @wraps(compute)
        def shaped(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            found = wrapped(*args, **kwargs)
            return {name: value if name.startswith("mean_") else value.reshape(-1) for name, value in found.items()}

        return shaped

    def result(self) -> dict[str, Tensor]:
        """Return values of the levels, their means, and the severities.

        Raises:
            InvalidArgumentError: There are ID images, but a class has no estimation or test images.
        """
        if len(self.stream("id_scores")) == 0:
            nan = undefined("severity_levels", "there is no ID score")
            many = {"auroc": self.levels, "fpr": self.levels, "severities": self.num_classes}
            return {name: self._float([nan] * size) for name, size in many.items()} | {
                name: self._float(nan) for name in ("mean_auroc", "mean_fpr")
            }
        sums = ExactSums(self.num_classes)
        sums.add(self.stream("estimation_groups").cpu(), as_scores(self.stream("confidences"), "confidences").cpu())
        check_no_class_is_empty(sums.counts, "estimation")
        severities = sums.means()
        id_scores, scores, groups = (self.stream(name) for name in ("id_scores", "test_scores", "test_groups"))
        settings: Any = {name: getattr(self, name) for name in ("id_classes", "levels", "tpr", "rule")}
        found = severity_levels(id_scores, scores, groups, severities, **settings)
        values = {"auroc": found.auroc.tolist(), "fpr": found.fpr.tolist()}
        means = {f"mean_{name}": sum(of_levels) / len(of_levels) for name, of_levels in values.items()}
        return {
            name: self._float(value) for name, value in (values | means | {"severities": severities.tolist()}).items()
        }
