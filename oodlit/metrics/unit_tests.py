"""Synthetic images that no classifier should accept: how many of the tests fail."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from oodlit.base.fractions import ShareLike
from oodlit.base.roles import Role
from oodlit.metrics.classwise import GroupedMetric
from oodlit.metrics.entry import Images, MetricEntry, Value
from oodlit.metrics.fpr import accepted_count
from oodlit.metrics.numerics.acceptance import exact_tpr
from oodlit.metrics.numerics.ranking import Ranking, ScoreLike, as_count, as_sorted, exact_share, rank
from oodlit.metrics.numerics.undefined import undefined


def unit_test_failures(
    id_scores: ScoreLike,
    test_scores: Sequence[ScoreLike],
    *,
    limit: ShareLike = 0.10,
    tpr: ShareLike = 0.95,
    rule: str = "attained",
) -> float:
    r"""Number of unit tests that fail: :math:`|\{i : \mathrm{FPR@TPR}_i > \mathrm{limit}\}|`, decided in integers.

    ID is the positive class. A test that accepts exactly the fraction `limit` passes. The number of passes is the
    number of tests minus the failures. Unit tests are never part of a mean over OOD classes.

    Args:
        id_scores: ID scores, higher = more in-distribution, shape (n,).
        test_scores: The scores of each test, each of shape (m_i,).
        limit: Largest fraction of accepted images at which a test passes, in (0, 1].
        tpr: Fraction of ID scores to keep, in (0, 1].
        rule: "attained" or "interpolated".

    Returns:
        A count, as a float. NaN with an `UndefinedMetricWarning` without ID scores or tests, or for an empty test.

    Raises:
        InvalidArgumentError: A setting is not allowed.
        NonFiniteScoreError: NaN among the scores.

    Example:
        >>> unit_test_failures(range(100), [[0] * 9 + [50], [0] * 8 + [50, 60]])
        1.0

    References:
        Bitterwolf, Müller, Hein: In or Out? Fixing ImageNet Out-of-Distribution Detection Evaluation. ICML 2023.
    """
    check_unit_test_settings(limit, tpr, rule)
    sorted_id = as_sorted(id_scores, "id_scores")
    return failures_of([rank(sorted_id, scores) for scores in test_scores], limit=limit, tpr=tpr, rule=rule)


def check_unit_test_settings(limit: ShareLike, tpr: ShareLike, rule: str) -> None:
    """Raise unless the settings are allowed."""
    exact_tpr(tpr, rule)
    exact_share(limit, "limit")


def fails(ranking: Ranking, *, limit: ShareLike, tpr: ShareLike, rule: str) -> bool:
    """Return whether a test with at least one image fails."""
    return accepted_count(ranking, tpr=tpr, rule=rule) > exact_share(limit, "limit") * ranking.n_ood


def failures_of(rankings: Sequence[Ranking], *, limit: ShareLike, tpr: ShareLike, rule: str) -> float:
    """Count failed tests among rankings."""
    if not rankings:
        return undefined("unit_test_failures", "there is no test")
    if not rankings[0].n_id:
        return undefined("unit_test_failures", "there is no ID score")
    if empty := [str(index) for index, ranking in enumerate(rankings) if not ranking.n_ood]:
        reason = f"no score for {len(empty)} of {len(rankings)} tests (first indices: {', '.join(empty[:5])})"
        return undefined("unit_test_failures", reason)
    return float(sum(fails(ranking, limit=limit, tpr=tpr, rule=rule) for ranking in rankings))


class UnitTestFailures(GroupedMetric):
    """Streaming `unit_test_failures` over a fixed number of tests; NaN while a test or the ID set has no images.

    Args:
        num_tests: Number of tests; groups are 0 to num_tests - 1.
        limit: Largest fraction of accepted images at which a test passes.
        tpr: Fraction of ID scores to keep.
        rule: "attained" or "interpolated".
        kwargs: Passed to `torchmetrics.Metric`.

    Raises:
        InvalidArgumentError: A setting is not allowed.

    Example:
        >>> import torch
        >>> metric = UnitTestFailures(num_tests=2)
        >>> metric.update(torch.arange(100.0), is_ood=torch.zeros(100, dtype=torch.bool), groups=torch.full((100,), -1))
        >>> tests = torch.tensor([0.0, 1.0, 50.0, 60.0])
        >>> metric.update(tests, is_ood=torch.ones(4, dtype=torch.bool), groups=torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    higher_is_better = False
    plot_upper_bound = None

    def __init__(
        self, num_tests: int, limit: ShareLike = 0.10, tpr: ShareLike = 0.95, rule: str = "attained", **kwargs: Any
    ) -> None:
        """Check the settings."""
        check_unit_test_settings(limit, tpr, rule)
        super().__init__(as_count(num_tests, "num_tests"), **kwargs)
        self.limit, self.tpr, self.rule = limit, tpr, rule

    def result(self) -> Tensor:
        """Return the number of failed tests."""
        return self._float(failures_of(self.rankings(), limit=self.limit, tpr=self.tpr, rule=self.rule))


def _compute_failures(images: Images) -> Value:
    settings = images.settings
    missing = [f"{name}: {reason}" for name, test in images.groups.items() if (reason := test.ranking.missing())]
    if missing:
        return Value.undefined("; ".join(missing[:3]))
    rankings = [test.ranking for test in images.groups.values()]
    return Value(failures_of(rankings, limit=settings.unit_test_limit, tpr=settings.tpr, rule=settings.rule))


def _compute_passes(images: Images) -> Value:
    failures = _compute_failures(images)
    return failures._replace(value=len(images.groups) - failures.value)


_FAILURES = MetricEntry(
    name="unit_test_failures",
    better="lower",
    of=(Role.UNIT_TEST,),
    text="number of unit tests with more than {limit} % of their images accepted",
    function=unit_test_failures,
    compute=_compute_failures,
    order=130,
    by_threshold=True,
    is_count=True,
    of_set=True,
)
_PASSES = replace(
    _FAILURES,
    name="unit_test_passes",
    better="higher",
    text="number of unit tests with at most {limit} % of their images accepted",
    compute=_compute_passes,
    order=131,
)
ENTRIES = (_FAILURES, _PASSES)
