"""Levels of severity against plain loops, and the properties of the protocol (COOD, ICLR 2023)."""

import math
import pickle
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import oodlit.metrics as m
from oodlit.errors import InvalidArgumentError, NonFiniteScoreError
from oodlit.metrics.numerics.exact_sums import ExactSums
from oodlit.metrics.severity.level_intervals import level_intervals
from oodlit.metrics.severity.levels import window_values


@st.composite
def pools(draw, least=5, most=60):
    """A pool of K classes with unequal numbers of images and many ties, and as many ID classes or fewer."""
    num_classes = draw(st.integers(least, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    coarse = draw(st.sampled_from([4, 1000]))
    sizes = rng.integers(1, 8, num_classes)
    groups = np.repeat(np.arange(num_classes), sizes)
    scores = np.round(rng.normal(size=len(groups)) * coarse) / coarse
    estimation = np.repeat(np.arange(num_classes), rng.integers(1, 6, num_classes))
    return {
        "id_scores": torch.from_numpy(np.round(rng.normal(1, 1, draw(st.integers(1, 40))) * coarse) / coarse),
        "scores": torch.from_numpy(scores),
        "groups": torch.from_numpy(groups),
        "estimation": torch.from_numpy(np.round(rng.normal(size=len(estimation)) * coarse) / coarse),
        "estimation_groups": torch.from_numpy(estimation),
        "num_classes": num_classes,
        "id_classes": draw(st.integers(1, num_classes)),
        "levels": draw(st.integers(2, 13)),
    }


def severities_of(pool):
    sums = ExactSums(pool["num_classes"])
    sums.add(pool["estimation_groups"], pool["estimation"])
    return sums.means()


def levels(pool, **changes):
    pool = pool | changes
    return m.severity_levels(
        pool["id_scores"],
        pool["scores"],
        pool["groups"],
        pool["severities"] if "severities" in pool else severities_of(pool),
        id_classes=pool["id_classes"],
        levels=pool["levels"],
    )


def plain(pool):
    """The protocol as it is written, with loops over classes and pairs of images."""
    k, width, count = pool["num_classes"], pool["id_classes"], pool["levels"]
    ids, scores, groups = (pool[name].tolist() for name in ("id_scores", "scores", "groups"))
    estimation = list(zip(pool["estimation"].tolist(), pool["estimation_groups"].tolist(), strict=True))
    severity = []
    for c in range(k):
        own = [value for value, group in estimation if group == c]
        severity.append(math.fsum(own) / len(own))
    order = sorted(range(k), key=lambda c: (severity[c], c))
    windows = [order[start : start + width] for start in range(k - width + 1)]
    threshold = sorted(ids)[len(ids) - math.ceil(Fraction(95, 100) * len(ids))]
    auroc, fpr = [], []
    for window in windows:
        own = [score for score, group in zip(scores, groups, strict=True) if group in window]
        pairs = [(i > o) + (i == o) / 2 for i in ids for o in own]
        auroc.append(sum(pairs) / len(pairs))
        fpr.append(sum(o >= threshold for o in own) / len(own))
    starts = [min(i * len(windows) // (count - 1), len(windows) - 1) for i in range(count)]
    return order, starts, auroc, fpr


@given(pools())
def test_plain_loops_give_the_same(pool):
    order, starts, auroc, fpr = plain(pool)
    found = levels(pool)
    assert found.order.tolist() == order
    assert found.starts.tolist() == starts
    np.testing.assert_allclose(found.auroc_windows, auroc, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.fpr_windows, fpr, rtol=0, atol=1e-12)
    assert found.auroc.tolist() == [found.auroc_windows.tolist()[start] for start in starts]
    assert [found.members(i).tolist() for i in range(len(starts))] == [
        order[start : start + pool["id_classes"]] for start in starts
    ]


@given(pools())
def test_a_level_is_the_pooled_metric_and_the_weighted_mean_of_its_classes(pool):
    found = levels(pool)
    for level in range(pool["levels"]):
        members = found.members(level)
        own = pool["scores"][torch.isin(pool["groups"], members)]
        assert float(found.auroc[level]) == m.auroc(pool["id_scores"], own)  # to the last digit
        assert float(found.fpr[level]) == m.fpr_at_tpr(pool["id_scores"], own)
        weights = found.classes.sizes[members].double()
        for of_level, of_classes in ((found.auroc, found.classes.auroc), (found.fpr, found.classes.fpr)):
            mean = float((of_classes[members] * weights).sum() / weights.sum())
            assert float(of_level[level]) == pytest.approx(mean, abs=1e-12)


@given(pools(), st.randoms(use_true_random=False))
def test_the_order_of_images_changes_no_digit(pool, random):
    test, estimation = list(range(len(pool["scores"]))), list(range(len(pool["estimation"])))
    random.shuffle(test)
    random.shuffle(estimation)
    shuffled = {name: pool[name][test] for name in ("scores", "groups")}
    shuffled |= {name: pool[name][estimation] for name in ("estimation", "estimation_groups")}
    one, other = levels(pool), levels(pool, **shuffled)
    assert one.order.tolist() == other.order.tolist()
    assert one.auroc_windows.tolist() == other.auroc_windows.tolist()
    assert one.fpr_windows.tolist() == other.fpr_windows.tolist()


@given(pools(), st.randoms(use_true_random=False))
def test_other_numbers_of_the_classes_permute_equal_ones_alone(pool, random):
    """Ties by index: classes that are equally hard may change places, and nothing else."""
    names = list(range(pool["num_classes"]))
    random.shuffle(names)
    renamed = torch.tensor(names)
    severities = severities_of(pool)
    one = levels(pool)
    other = levels(pool, groups=renamed[pool["groups"]], estimation_groups=renamed[pool["estimation_groups"]])
    back = torch.empty_like(renamed)
    back[renamed] = torch.arange(len(renamed))
    assert severities[one.order].tolist() == severities[back[other.order]].tolist()
    if len(set(severities.tolist())) == len(severities):
        assert back[other.order].tolist() == one.order.tolist()
        assert one.auroc_windows.tolist() == other.auroc_windows.tolist()


@given(pools(), st.sampled_from([0.5, 2.0, 1024.0]), st.integers(-5, 5))
def test_an_affine_map_of_the_confidence_changes_nothing(pool, slope, shift):
    """Rounding is monotone, but may make equal what was not."""
    mapped = slope * severities_of(pool) + shift
    one, other = levels(pool), levels(pool, severities=mapped)
    if len(set(mapped.tolist())) == pool["num_classes"]:
        assert one.order.tolist() == other.order.tolist()
        assert one.auroc.tolist() == other.auroc.tolist()


@given(pools())
def test_a_map_that_is_not_affine_changes_levels_but_no_class(pool):
    one, other = levels(pool), levels(pool, estimation=pool["estimation"].exp())
    assert one.classes.auroc.tolist() == other.classes.auroc.tolist()
    assert one.classes.fpr.tolist() == other.classes.fpr.tolist()


def test_a_map_that_is_not_affine_can_exchange_classes():
    """Probabilities .5 and .5 have the mean .5; .9 and .05 have .475, and a far lower mean of logarithms."""
    p, groups = torch.tensor([0.52, 0.52, 0.9, 0.2]), torch.tensor([0, 0, 1, 1])
    orders = []
    for confidences in (p, p.log()):
        sums = ExactSums(2)
        sums.add(groups, confidences)
        orders.append(m.severity_order(sums.means()).tolist())
    assert orders == [[0, 1], [1, 0]]


@given(st.integers(1, 30_000), st.integers(1, 30_000), st.integers(2, 50))
@example(11_000, 1000, 11)
@example(1000, 1000, 11)
def test_starts(extra, id_classes, count):
    num_classes = id_classes + extra - 1
    starts = m.level_starts(num_classes, id_classes, count)
    assert len(starts) == count
    assert (starts[0], starts[-1]) == (0, num_classes - id_classes)
    assert all(a <= b for a, b in pairwise(starts))
    # As the authors' program has it, where it stays below the last window.
    assert starts == [min(math.floor(Fraction(i * extra, count - 1)), extra - 1) for i in range(count)]


def test_eleven_thousand_classes_are_parted_by_eleven_levels():
    assert m.level_starts(11_000, 1000) == list(range(0, 11_000, 1000))


def test_a_pool_as_large_as_the_classifier_has_one_window():
    found = m.severity_levels([3.0, 1.0], [0.0, 2.0, 2.0], torch.tensor([0, 1, 1]), [0.5, 0.1], id_classes=2)
    assert found.auroc.tolist() == [m.auroc([3.0, 1.0], [0.0, 2.0, 2.0])] * 11
    assert len(found.auroc_windows) == 1


def test_infinities_are_ordered():
    low, high = -math.inf, math.inf
    found = m.severity_levels([low, 1.0, high], [low, high], torch.tensor([0, 1]), [0.3, low], id_classes=1, levels=2)
    assert found.order.tolist() == [1, 0]
    assert found.classes.auroc.tolist() == [5 / 6, 1 / 6]
    sums = ExactSums(3)
    sums.add(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([low, 5.0, high, low, high]))
    assert sums.means()[:2].tolist() == [low, high]
    assert math.isnan(sums.means()[2])


GROUPS = torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id_classes": 4}, "the pool has 3 classes, but each level requires 4, as many as .*; use a larger pool"),
        ({"id_classes": 0}, "id_classes to be an integer >= 1, got 0"),
        ({"levels": 1}, "levels to be an integer >= 2, got 1"),
        (
            {"groups": torch.tensor([0, 0, 2])},
            r"1 of 3 classes \(first: 'b'\) has no test images. Every class requires",
        ),
        ({"groups": torch.tensor([0, 1, 3])}, "groups: expected values from 0 to 2, got 0 to 3"),
        ({"groups": torch.tensor([0, 1])}, r"groups: .*3.*2"),
        ({"class_names": ("a", "b")}, r"class_names: expected one name per class \(3\) or none, got 2"),
        ({"class_names": ("a", "b", "a")}, "two classes of the pool are named 'a'"),
        (
            {"severities": np.array([[0.1, 0.2, 0.3]])},
            r"severities: expected a one-dimensional array, .* got shape \(1, 3\)",
        ),
        ({"id_scores": []}, "expected at least one ID score"),
        ({"rule": "best"}, "got 'best'"),
    ],
)
def test_what_is_refused(changes, message):
    given_ = {
        "id_scores": [1.0, 2.0],
        "scores": [0.0, 1.0, 2.0],
        "groups": GROUPS,
        "severities": [0.1, 0.2, 0.3],
        "id_classes": 1,
        "class_names": ("a", "b", "c"),
    } | changes
    with pytest.raises(InvalidArgumentError, match=message):
        m.severity_levels(**given_)


def test_nan_is_never_ordered():
    for place in ("id_scores", "scores", "severities"):
        values = {"id_scores": [1.0, 2.0, 3.0], "scores": [0.0, 1.0, 2.0], "severities": [0.1, 0.2, 0.3]}
        values[place][1] = math.nan
        with pytest.raises(NonFiniteScoreError, match="NaN"):
            m.severity_levels(**values, groups=GROUPS, id_classes=1)
    with pytest.raises(NonFiniteScoreError, match="1 of 2 values is NaN"):
        ExactSums(1).add(torch.tensor([0, 0]), torch.tensor([1.0, math.nan]))


def test_windows_need_one_entry_for_each_class():
    sizes = torch.tensor([1, 2, 3])
    with pytest.raises((InvalidArgumentError, TypeError), match=r"2 totals, 3 sizes and 3 classes|Type-check"):
        window_values(sizes[:2], sizes, torch.arange(3), 1)


# --- the class ----------------------------------------------------------------------------------------------------


def streamed(pool, batches):
    """Each batch has ID, estimation and test images."""
    none = torch.full_like(pool["id_scores"], -1).long()
    scores = torch.cat([pool["id_scores"], pool["scores"], pool["estimation"]])
    groups = torch.cat([none, pool["groups"], pool["estimation_groups"]])
    is_test = torch.arange(len(scores)) < len(none) + len(pool["scores"])
    metric = m.SeverityLevels(pool["num_classes"], pool["id_classes"], pool["levels"])
    for rows in batches(len(scores)):
        metric.update(scores[rows], groups[rows] >= 0, groups[rows], is_test[rows])
    return metric


@given(pools(), st.integers(1, 9))
def test_the_class_gives_what_the_function_gives(pool, size):
    found = levels(pool)
    value = streamed(pool, lambda total: torch.arange(total).flip(0).split(size)).compute()
    assert value["auroc"].tolist() == found.auroc.tolist()
    assert value["fpr"].tolist() == found.fpr.tolist()
    assert value["severities"].tolist() == severities_of(pool).tolist()
    assert float(value["mean_auroc"]) == pytest.approx(float(found.auroc.mean()), abs=1e-15)
    halves = [streamed(pool, lambda total, i=i: [torch.arange(total)[i::2]]) for i in range(2)]
    halves[0].merge_state(halves[1])
    assert halves[0].compute()["auroc"].tolist() == found.auroc.tolist()


def test_the_class_names_what_is_missing():
    metric = m.SeverityLevels(2, 1)
    with pytest.warns(m.UndefinedMetricWarning, match="no ID score"):
        assert math.isnan(metric.compute()["mean_auroc"])
    flags = torch.tensor([False, True])
    metric.update(torch.tensor([1.0, 0.0]), flags, torch.tensor([-1, 0]), flags)
    with pytest.raises(
        InvalidArgumentError, match=r"2 of 2 classes \(first: index 0, index 1\) have no estimation images"
    ):
        metric.compute()
    with pytest.raises(InvalidArgumentError, match=r"confidences: expected 2 values, one per score, got 1"):
        metric.update(torch.tensor([1.0, 0.0]), flags, torch.tensor([-1, 0]), flags, torch.tensor([1.0]))
    with pytest.raises(InvalidArgumentError, match="the pool has 2 classes, but each level requires 3"):
        m.SeverityLevels(2, 3)


# --- exact sums ---------------------------------------------------------------------------------------------------

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)


@given(st.lists(st.tuples(st.integers(0, 2), FLOATS), max_size=30), st.randoms(use_true_random=False))
@example([(0, 5e-324), (0, 1.7e308), (0, -1.7e308)], None)
@example([(0, 1e308), (0, 1e308)], None)
@example([(0, 1.0), (0, 1e308), (0, 1e308)], None)  # more than float64 holds, and a place below it
@example([(0, -1.0), (0, -1e308), (0, -1e308)], None)
def test_sums_are_those_of_fractions_in_any_order(entries, random):
    expected = []
    for cell in range(3):
        total = sum((Fraction(value) for c, value in entries if c == cell), Fraction(0))
        try:
            expected.append(float(total))
        except OverflowError:
            expected.append(math.inf if total > 0 else -math.inf)
    if random is not None:
        random.shuffle(entries)
    half = len(entries) // 2
    parts = []
    for part in (entries[:half], entries[half:]):
        sums = ExactSums(3)
        sums.add(torch.tensor([c for c, _ in part]).long(), torch.tensor([v for _, v in part], dtype=torch.float64))
        parts.append(sums)
    one, other = (part.to_columns() for part in parts)  # as integers, which add up over processes
    total = ExactSums.from_columns({name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}})
    assert total.sums().tolist() == expected
    assert total.counts.sum() == len(entries)


# --- intervals ----------------------------------------------------------------------------------------------------


def test_intervals_widen_with_the_spread_of_the_classes_and_shrink_with_their_number():
    rng = np.random.default_rng(0)

    def width(num_classes, spread):
        values = torch.from_numpy(np.clip(rng.normal(0.8, spread, num_classes), 0, 1))
        (low, high), mean = (
            level_intervals(values, torch.full((num_classes,), 50), torch.arange(num_classes), [0], num_classes)[0][0],
            None,
        )
        assert mean is None
        assert low <= float(values.mean()) <= high
        return high - low

    assert width(10, 0.01) < width(10, 0.1)
    assert width(1000, 0.05) < width(10, 0.05) / 5


def test_the_mean_of_a_partition_has_the_variance_of_independent_levels():
    values = torch.rand(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 2 + 0.4
    sizes = torch.full((200,), 1000)
    single, mean = level_intervals(values, sizes, torch.arange(200), [0, 100], 100)
    halves = [(high - low) / 2 for low, high in single]
    assert (mean[1] - mean[0]) / 2 == pytest.approx(math.hypot(*halves) / 2, rel=0.02)
    same = level_intervals(values, sizes, torch.arange(200), [0, 0], 100)
    assert same[1] == pytest.approx(same[0][0], rel=1e-9)  # one level twice knows no more than once


def test_intervals_cover_what_they_say():
    rng, hits = np.random.default_rng(2), 0
    for _ in range(400):
        values = torch.from_numpy(np.clip(rng.beta(8, 2, 12), 0, 1))
        (low, high) = level_intervals(values, torch.full((12,), 50), torch.arange(12), [0], 12)[0][0]
        hits += low <= 0.8 <= high
    assert 0.92 <= hits / 400 <= 0.985


def test_one_class_alone_has_no_interval():
    intervals, mean = level_intervals(torch.tensor([0.5, 0.9]), torch.tensor([3, 3]), torch.arange(2), [0, 1], 1)
    assert np.isnan([*intervals[0], *intervals[1], *mean]).all()


@pytest.mark.parametrize(("num_classes", "levels"), [(1, 2), (1, 11), (3, 2)])
def test_streamed_values_have_the_documented_shapes(num_classes: int, levels: int) -> None:
    """Also with one class, and after pickling."""
    metric = m.SeverityLevels(num_classes=num_classes, id_classes=1, levels=levels)
    groups = torch.cat([torch.tensor([-1, -1]), torch.arange(num_classes).repeat(2)])
    is_test = torch.arange(len(groups)) < 2 + num_classes
    for one in (metric, pickle.loads(pickle.dumps(metric))):
        one.update(torch.arange(len(groups)).double(), groups >= 0, groups, is_test)
        shapes = {name: tuple(value.shape) for name, value in one.compute().items()}
        assert shapes == {
            "auroc": (levels,), "fpr": (levels,), "mean_auroc": (), "mean_fpr": (), "severities": (num_classes,)
        }  # fmt: skip
