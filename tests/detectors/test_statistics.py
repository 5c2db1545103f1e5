"""Statistics against plain numpy, for any cut, order, merge and number of processes."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from oodlit.detectors import DDU, KNN, MSP, CoRP, LaRD, Mahalanobis, WeiPer
from oodlit.detectors.contract.fitting import estimate_bytes, make_statistics
from oodlit.detectors.statistics import (
    ClassCovariances,
    ClassMoments,
    ClassProbabilities,
    ClassVariances,
    CorrectMeans,
    FeatureBank,
    FeatureMean,
    HiddenSample,
    PredictedMeans,
    ScalarSample,
    Statistic,
    Statistics,
    TrainSample,
    UnitMoments,
    fourier_moments,
    synchronize,
)
from oodlit.detectors.statistics.hashes import hash_contents, hash_rows
from oodlit.detectors.statistics.smallest_rows import SmallestRows
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.outputs import BackboneFacts, Outputs
from tests.callbacks.processes import check_ended, run_function

from .support import cut, normal, permutation


def first_logit(outputs: Outputs) -> torch.Tensor:
    return outputs.require("logits")[:, 0]


KINDS: dict[str, Callable[[], Statistic]] = {
    "ClassMoments": ClassMoments,
    "UnitMoments": UnitMoments,
    "FourierMoments": fourier_moments(8, 1.0, 0),
    "ClassProbabilities": ClassProbabilities,
    "FeatureMean": FeatureMean,
    "CorrectMeans": CorrectMeans,
    "PredictedMeans": PredictedMeans,
    "ClassCovariances": ClassCovariances,
    "ClassVariances": ClassVariances,
    "TrainSample": lambda: TrainSample(rows=40),
    "FeatureBank": FeatureBank,
    "ScalarSample": lambda: ScalarSample([first_logit], rows=40),
    "HiddenSample": lambda: HiddenSample(["block"], rows=40),
}


def train(n: int = 150, *, width: int = 5, classes: int = 6, mean: float = 1000.0, sd: float = 0.01) -> Outputs:
    """Labels have gaps: classes 0, 2 and 5 only."""
    features = mean + sd * normal(n, width).double()
    labels = torch.tensor([0, 2, 5])[torch.arange(n) % 3]
    logits = 5 * normal(n, classes, seed=1).double()
    hidden = {"block": normal(n, 3, 2, 2, seed=2)}
    return Outputs(logits, features, labels, keys=[f"train/{i}" for i in range(n)], hidden=hidden)


def facts_of(statistic: Statistic) -> dict[str, torch.Tensor]:
    """What detectors read of a statistic."""
    names = {
        "ClassMoments": (
            "counts",
            "class_ids",
            "class_means",
            "mean",
            "total_covariance",
            "within_covariance",
            "variances",
        ),
        "ClassProbabilities": ("counts", "means"),
        "FeatureMean": ("mean",),
        "PredictedMeans": ("counts", "means", "mean"),
        "CorrectMeans": ("right_counts", "means", "class_means", "mean"),
        "ClassCovariances": ("class_ids", "counts", "class_means", "covariances"),
        "ClassVariances": ("class_ids", "counts", "class_means", "variances"),
    }
    names["UnitMoments"] = names["FourierMoments"] = names["ClassMoments"]
    kind = type(statistic).__name__
    if kind in names:
        found = {n: getattr(statistic, n) for n in names[kind]}
    else:
        columns = {"TrainSample": ("hash", "logits", "features", "labels", "predictions"), "FeatureBank": ("features",)}
        columns["ScalarSample"] = ("hash", "scalar 0")
        found = {n: statistic.column(n) for n in columns.get(kind, ("hash", "block", "labels"))}
    return found | {"num_samples": torch.tensor(statistic.num_samples)}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], variance: float = 1e-4) -> None:
    for name, value in expected.items():
        # Variances are 1e-4 around a mean of 1000: the error is measured by them.
        atol = 1e-10 * variance if "varianc" in name or "covariance" in name else 0.0
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=atol, err_msg=name)


def made(kind: str, outputs: Outputs, size: int, order: torch.Tensor | None = None) -> Statistic:
    statistic = KINDS[kind]()
    for batch in cut(outputs, size, order):
        statistic.update(batch)
    return statistic


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
    """FAULTS: one-pass moments in float32 - 2000 x 4 normal, mean 1000, sd .01."""
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
    """FAULTS, as above: NCI and FDBD divide by the distance to the mean, which is of the size of the spread."""
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
    """Between-class scatter must not be subtracted from what is smaller; a first image that is far off is no excuse."""
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
    """FAULTS: shared covariance weighted by class instead of by sample - .9806, not .505 or 2.90."""
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


@pytest.mark.parametrize("kind", ["ClassMoments", "CorrectMeans", "ClassVariances"])
def test_missing_labels_name_the_first_keys(kind: str) -> None:
    outputs = Outputs(normal(3, 2), normal(3, 2), torch.tensor([0, -1, -1]), keys=["t/a", "t/b", "t/c"])
    with pytest.raises(InvalidArgumentError, match=r"2 of 3 training images have no label \(first: t/b, t/c\)"):
        KINDS[kind]().update(outputs)
    with pytest.raises(InvalidArgumentError, match=r"have no label \(first rows: 1, 2\)"):
        KINDS[kind]().update(Outputs(outputs.logits, outputs.features, outputs.labels))


@pytest.mark.parametrize("kind", ["ClassMoments", "FeatureMean", "FeatureBank"])
def test_changed_width_is_an_error(kind: str) -> None:
    statistic = made(kind, train(30), 30)
    with pytest.raises(InvalidArgumentError, match="a batch has"):
        statistic.update(train(30, width=7))


@pytest.mark.parametrize("kind", ["ClassMoments", "FeatureMean", "FeatureBank", "CorrectMeans", "ClassVariances"])
@pytest.mark.parametrize("width", [1, 7])
def test_parts_of_another_width_are_not_merged(kind: str, width: int) -> None:
    """A width of 1 would be broadcast in silence."""
    statistic, before = made(kind, train(30), 30), facts_of(made(kind, train(30), 30))
    with pytest.raises(InvalidArgumentError, match="what is merged differs in its shape"):
        statistic.merge(made(kind, train(30, width=width), 30))
    assert_same(facts_of(statistic), before)


@pytest.mark.parametrize("ordered", [True, False])
def test_banks_with_and_without_order_are_not_merged(ordered: bool) -> None:
    """Rows without a hash would be sorted by whatever the memory held."""
    bank, other = FeatureBank(ordered=ordered), FeatureBank(ordered=not ordered)
    bank.update(train(9))
    other.update(train(9))
    with pytest.raises(InvalidArgumentError, match=r"FeatureBank\(\): what is merged differs in its shape, .*hash"):
        bank.merge(other)
    assert bank.num_samples == 9


@pytest.mark.parametrize("fault", ["no label", "label 99", "NaN logit", "infinite feature"])
@pytest.mark.parametrize("at", [3, 4999])
def test_a_refused_batch_leaves_no_trace(fault: str, at: int) -> None:
    """Also not in the statistics that could have taken it, or of the rows before the one that is refused."""

    def statistics() -> Statistics:
        return Statistics([KINDS[kind]() for kind in KINDS if kind != "HiddenSample"])

    bad = train(5000, sd=1.0)
    if fault.endswith(("label", "99")):
        bad.require("labels")[at] = -1 if fault == "no label" else 99
    else:
        bad.require("logits" if fault == "NaN logit" else "features")[at, 1] = np.nan if "NaN" in fault else np.inf
    found, expected = statistics(), statistics()
    for part in (slice(0, 30), slice(30, 60)):
        found.update(train(60).select(part))
        expected.update(train(60).select(part))
        with pytest.raises(
            InvalidArgumentError, match=r"no label|has label 99|NaN in logits|infinite values in features"
        ):
            found.update(bad)
    for kind, statistic in expected.items():
        assert_same(facts_of(found[kind]), facts_of(statistic))


def test_one_large_batch_stays_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bank of few rows is cut while a batch comes in, not after it."""
    longest, append = 0, SmallestRows.append

    def watched(store: SmallestRows, columns: Mapping[str, torch.Tensor]) -> None:
        nonlocal longest
        append(store, columns)
        longest = max(longest, len(store))

    monkeypatch.setattr(SmallestRows, "append", watched)
    bank, whole = FeatureBank(rows=600), train(9000)
    bank.update(whole)
    assert longest <= 2 * 600
    small = FeatureBank(rows=600)
    for batch in cut(whole, 100):
        small.update(batch)
    assert_same(facts_of(bank), facts_of(small))


def test_full_covariances_refuse_with_the_number() -> None:
    statistic = ClassCovariances(max_bytes=1000)
    with pytest.raises(RequirementError, match=r"6 covariances of 5 features take 0\.0 GiB, above the limit"):
        statistic.update(train())


@pytest.mark.parametrize("kind", ["ClassMoments", "ClassCovariances", "ClassVariances"])
def test_labels_that_are_no_indices(kind: str) -> None:
    """WordNet offsets as labels would take 26 GB for every 768 features."""
    statistic = KINDS[kind]()
    with pytest.raises(InvalidArgumentError, match="label 1440764; labels are indices of classes"):
        statistic.update(Outputs(features=torch.ones(2, 3), labels=torch.tensor([0, 1_440_764])))
    assert statistic.num_samples == 0


def test_memory_is_estimated() -> None:
    facts = BackboneFacts(width=768, num_classes=1000, num_train=1_281_167)
    megabytes = {
        repr(d): estimate_bytes(make_statistics([d]), facts) / 1e6
        for d in (Mahalanobis(), KNN(), KNN(bank_size=100_000), DDU("diagonal"), DDU("full"), LaRD("feature_map"))
    }
    assert megabytes["Mahalanobis()"] == pytest.approx(45.3, rel=0.01)
    assert megabytes["KNN()"] == pytest.approx(4023, rel=0.01)
    assert megabytes["KNN(bank_size=100000)"] == pytest.approx(347.4, rel=0.01)
    assert megabytes["DDU(covariance='diagonal')"] == pytest.approx(12.3, rel=0.01)
    assert megabytes["DDU(covariance='full')"] == pytest.approx(4718, rel=0.01)
    assert megabytes["LaRD()"] == pytest.approx(173.7, rel=0.01)


def test_memory_that_detectors_keep_is_estimated() -> None:
    """Beside the statistics: perturbed weights where all of them are kept, axes of random features."""
    facts = BackboneFacts(width=2048, num_classes=1000, num_train=1_281_167)
    kept = {
        repr(d): estimate_bytes(Statistics(), facts, [d]) / 1e6
        for d in (MSP(), WeiPer(), WeiPer(copies=200), CoRP(size=4096))
    }
    assert kept == pytest.approx(
        {"MSP()": 0, "WeiPer()": 1638.4, "WeiPer(copies=200)": 16.384, "CoRP(size=4096)": 201.3}, rel=0.001
    )
    assert estimate_bytes(make_statistics([CoRP()]), facts) > 8 * 4096**2


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
    """Further passes are made for these images alone; the values are those of the smallest hashes all the same."""
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
