"""Statistics against plain numpy, for any cut, order, merge and number of processes."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from oodlit.detectors.statistics import ClassMoments, FeatureMean, ScalarSample, synchronize
from oodlit.detectors.statistics.hashes import hash_contents, hash_rows
from oodlit.outputs import Outputs
from tests.callbacks.processes import check_ended, run_function

from .statistics_support import KINDS, assert_same, facts_of, first_logit, made, train
from .support import cut, normal, permutation


@pytest.mark.parametrize("kind", KINDS)
@given(size=st.integers(1, 150), seed=st.integers(0, 9))
def test_any_cut_and_order(kind: str, size: int, seed: int) -> None:
    outputs = train(60)
    whole = facts_of(made(kind, outputs, 60))
    assert_same(facts_of(made(kind, outputs, size, permutation(60, seed))), whole)


@pytest.mark.parametrize("kind", KINDS)
@given(at=st.integers(0, 60))
def test_merging_two_parts_equals_the_whole(kind: str, at: int) -> None:
    outputs = train(60)
    first, second = (made(kind, outputs.select(rows), 16) for rows in (slice(0, at), slice(at, 60)))
    before = second.num_samples
    first.merge(second)
    assert second.num_samples == before
    assert_same(facts_of(first), facts_of(made(kind, outputs, 60)))


@pytest.mark.parametrize("kind", KINDS)
def test_reset_forgets(kind: str) -> None:
    statistic = made(kind, train(60), 16)
    statistic.reset()
    assert statistic.num_samples == 0
    for batch in cut(train(60), 16):
        statistic.update(batch)
    assert_same(facts_of(statistic), facts_of(made(kind, train(60), 60)))


@pytest.mark.parametrize("kind", KINDS)
def test_empty_batches_are_taken(kind: str) -> None:
    statistic = made(kind, train(60), 16)
    statistic.update(train(60).select(slice(0, 0)))
    assert_same(facts_of(statistic), facts_of(made(kind, train(60), 60)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_pass_moments_far_from_zero(dtype: torch.dtype) -> None:
    """One-pass moments in float32 would lose all digits here: mean 1000, standard deviation 0.01."""
    outputs = Outputs(features=(1000 + 0.01 * normal(2000, 4).double()).to(dtype), labels=torch.arange(2000) % 5)
    x = outputs.require("features").double().numpy()
    moments = made("ClassMoments", outputs, 37)
    variances = moments.total_covariance.diagonal().numpy()
    np.testing.assert_allclose(variances, x.var(axis=0), rtol=1e-9)
    assert (variances > 0.5e-4).all()
    means = np.stack([x[i::5].mean(axis=0) for i in range(5)])
    centred = x - means[np.arange(2000) % 5]
    np.testing.assert_allclose(moments.within_covariance, centred.T @ centred / 2000, rtol=1e-7, atol=1e-13)
    np.testing.assert_allclose(moments.class_means, means, rtol=1e-13)


def test_parts_far_from_zero_merge_without_loss() -> None:
    """Class means are rounded at their distance from zero, 1e-9 here; what is merged is not formed from them."""
    x = 1e7 + 1e-4 * np.random.default_rng(0).normal(size=(90, 4))
    outputs = Outputs(features=torch.from_numpy(x), labels=torch.arange(90) % 2)
    parts = [made("ClassMoments", outputs.select(slice(i, i + 9)), 9) for i in range(0, 90, 9)]
    for part in parts[1:]:
        parts[0].merge(part)
    whole = made("ClassMoments", outputs, 90)
    assert isinstance(whole, ClassMoments)
    assert isinstance(parts[0], ClassMoments)
    np.testing.assert_allclose(parts[0].within_covariance, whole.within_covariance, rtol=0, atol=1e-12 * 1e-8)


@pytest.mark.parametrize("size", [1, 37, 2000])
def test_means_of_float32_far_from_zero(size: int) -> None:
    """NCI and FDBD divide by the distance to the mean, which has the size of the spread."""
    outputs = Outputs(features=1000 + 0.01 * normal(2000, 4))
    statistic = made("FeatureMean", outputs, size)
    assert isinstance(statistic, FeatureMean)
    exact = outputs.require("features").double().mean(dim=0)
    np.testing.assert_allclose(statistic.mean, exact, rtol=0, atol=1e-7 * 0.01)


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_means_near_the_end_of_float32(value: float) -> None:
    features = torch.full((700, 2), value)
    features[::2, 1] *= -1
    statistic = made("FeatureMean", Outputs(features=features), 700)
    assert isinstance(statistic, FeatureMean)
    np.testing.assert_allclose(statistic.mean, [features[0, 0], 0.0], rtol=1e-12)


@pytest.mark.parametrize("cut_into", [1, 7, 150])
@pytest.mark.parametrize("outlier", [0.0, 1e6])
def test_classes_far_apart_cost_no_digits(cut_into: int, outlier: float) -> None:
    """Between-class scatter must not be subtracted from a smaller scatter, even if the first image is an outlier."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [30, 50, 70])  # counts that are no squares
    x = 1e7 * np.array([0.0, 1.0, 3.0])[labels][:, None] + 0.01 * rng.normal(size=(150, 4))
    x[30, 0] += outlier
    exact = [np.cov((x[labels == c] - x[labels == c][1]).T, bias=True) * (labels == c).sum() for c in range(3)]
    within = sum(exact) / 150
    outputs = Outputs(features=torch.from_numpy(x), labels=torch.from_numpy(labels))
    moments = made("ClassMoments", outputs, cut_into)
    np.testing.assert_allclose(moments.within_covariance, within, rtol=1e-6, atol=1e-6 * within.diagonal().min())
    assert torch.linalg.eigvalsh(moments.within_covariance).min() > 0


def test_a_whole_set_in_one_batch_is_taken_in_parts() -> None:
    outputs = train(9001, sd=1.0)
    for kind in KINDS:
        assert_same(facts_of(made(kind, outputs, 9001)), facts_of(made(kind, outputs, 500)), variance=1.0)


def test_pooled_covariance_weighs_by_sample() -> None:
    """The shared covariance is weighted by image rather than by class: 0.9806, not 0.505 or 2.90."""
    a, b = [-1.0] * 50 + [1.0] * 50, [9.9, 10.1]
    outputs = Outputs(features=torch.tensor([a + b]).double().T, labels=torch.tensor([0] * 100 + [1] * 2))
    assert float(made("ClassMoments", outputs, 13).within_covariance) == pytest.approx(0.98058823, rel=1e-6)


def test_class_scatter_against_numpy() -> None:
    outputs = train()
    x, y = outputs.require("features").numpy(), outputs.require("labels").numpy()
    covariances = np.stack([np.cov(x[y == c].T, bias=True) for c in (0, 2, 5)])
    np.testing.assert_allclose(facts_of(made("ClassCovariances", outputs, 7))["covariances"], covariances, atol=1e-14)
    diagonals = np.stack([np.diag(c) for c in covariances])
    np.testing.assert_allclose(facts_of(made("ClassVariances", outputs, 7))["variances"], diagonals, atol=1e-14)


def test_correct_means_against_loops() -> None:
    outputs = train()
    x, y, z = (outputs.require(n).numpy() for n in ("features", "labels", "logits"))
    statistic = made("CorrectMeans", outputs, 7)
    for c in range(6):
        mine = x[(y == c) & (z.argmax(axis=1) == c)]
        assert int(statistic.right_counts[c]) == len(mine)
        if len(mine):
            np.testing.assert_allclose(statistic.means[c], mine.mean(axis=0), rtol=1e-12)


def _work(folder: str) -> None:
    """Rank 1 of 3 has no batch at all; the others have unequal parts."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=3)
    outputs = train()
    parts = {0: outputs.select(slice(0, 37)), 2: outputs.select(slice(37, 150))}
    statistics = {kind: make() for kind, make in KINDS.items()}
    if rank in parts:
        for statistic in statistics.values():
            for batch in cut(parts[rank], 16):
                statistic.update(batch)
    synchronize(statistics.values())
    tensors = {f"{k}.{n}": v.contiguous().clone() for k, s in statistics.items() for n, v in facts_of(s).items()}
    save_file(tensors, f"{folder}/{rank}.safetensors")
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.destroy_process_group()
    del backend  # last: torch < 2.8 would wait for gloo's threads with the interpreter's lock, for which they wait


@pytest.mark.integration
@pytest.mark.ddp
def test_three_processes_equal_one(tmp_path: Path) -> None:
    each = [{"RANK": str(rank)} for rank in range(3)]
    check_ended(run_function(_work, str(tmp_path), folder=tmp_path / "logs", each=each, timeout=120))
    expected = {f"{k}.{n}": v for k in KINDS for n, v in facts_of(made(k, train(), 16)).items()}
    for rank in range(3):
        found = load_file(tmp_path / f"{rank}.safetensors")
        assert found.keys() == expected.keys()
        assert_same(found, expected)


def test_content_hashes_tell_rows_apart_and_spread_evenly():
    rows = torch.cat([torch.randn(20_000, 4), torch.randn(20_000, 4).round(), torch.eye(4), torch.zeros(1, 4)])
    distinct = torch.unique(rows + 0.0, dim=0)  # -0.0 and 0.0 have different bits, and are made one here
    hashes = hash_contents(distinct)
    assert len(torch.unique(hashes)) == len(distinct)
    assert (hashes >= 0).all()
    assert abs(float((hashes < 2**62).double().mean()) - 0.5) < 0.02
    assert torch.equal(hash_contents(distinct.double())[:3] == hash_contents(distinct)[:3], torch.zeros(3).bool())
    assert torch.equal(hash_contents(distinct.T.contiguous().T), hashes)


@pytest.mark.parametrize(("size", "seed"), [(1, 0), (7, 1), (64, 2), (4000, 3)])
def test_a_bounded_sample_asks_only_for_what_it_may_keep(size: int, seed: int) -> None:
    """Extra forward passes are only made for these images; the values are still those of the smallest hashes."""
    asked: list[int] = []

    def counted(outputs: Outputs) -> torch.Tensor:
        asked.append(len(outputs))
        return first_logit(outputs)

    outputs, sample = train(4000), ScalarSample([counted], rows=20)
    for batch in cut(outputs, size, permutation(4000, seed)):
        sample.update(batch)
    smallest = hash_rows(outputs).sort().indices[:20]
    np.testing.assert_array_equal(sample.values(counted), first_logit(outputs)[smallest].sort().values)
    assert sample.num_samples == 4000
    assert sum(asked) < 300 + size
