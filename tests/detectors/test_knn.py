"""KNN against naive distances in float64, at every scale and closeness."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from oodlit.detectors import KNN, BackboneFacts, LaRD, fit, load, save
from oodlit.detectors.formulas import neighbors as neighbours
from oodlit.detectors.statistics.feature_bank import exact_scaling
from oodlit.errors import InvalidArgumentError, NotFittedError
from oodlit.outputs import Outputs

from .support import as_outputs, normal


def reference(queries: torch.Tensor, bank: torch.Tensor, k: int) -> np.ndarray:
    def unit(rows: np.ndarray) -> np.ndarray:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(norms > 0, norms, 1)

    q, b = (unit(exact_scaling(t).double().numpy()) for t in (queries, bank))
    return np.array([np.sort(np.linalg.norm(b - row, axis=1))[k - 1] for row in q])


def fitted(bank: torch.Tensor, k: int) -> KNN:
    detector = KNN(k=k)
    fit([detector], [Outputs(features=bank)])
    return detector


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1.0, 1e20, 1e37])
@pytest.mark.parametrize("k", [1, 3, 40])
def test_distances_at_any_scale(scale: float, k: int) -> None:
    bank, queries = normal(300, 20), normal(20, 20, seed=1)
    scores = fitted(bank * scale, k).score(Outputs(features=queries * scale))
    np.testing.assert_allclose(-scores, reference(queries * scale, bank * scale, k), rtol=1e-4)


@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-5, 3e-7])
@pytest.mark.parametrize("mean", [1.0, 100.0])
def test_distances_between_near_neighbours(noise: float, mean: float) -> None:
    """Float32 products of unit vectors cannot tell these apart."""
    bank, queries = mean * (1 + noise * normal(500, 32)), mean * (1 + noise * normal(50, 32, seed=1))
    scores = fitted(bank, 10).score(Outputs(features=queries))
    np.testing.assert_allclose(-scores, reference(queries, bank, 10), rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_images_have_distance_zero(dtype: torch.dtype) -> None:
    bank = normal(50, 8).to(dtype)
    scores = fitted(bank, 1).score(Outputs(features=bank))
    assert scores.abs().max() < 1e-12


def test_float64_images_closer_than_float64_products_can_tell() -> None:
    bank = 1 + 1e-7 * normal(500, 4).double()
    queries = 1 + 1e-7 * normal(20, 4, seed=1).double()
    scores = fitted(bank, 3).score(Outputs(features=queries))
    np.testing.assert_allclose(-scores, reference(queries, bank, 3), rtol=1e-4)


def test_detectors_share_one_bank() -> None:
    near, far = KNN(k=1), KNN(k=9)
    fit([near, far], [Outputs(features=normal(50, 8))])
    assert near.bank.data_ptr() == far.bank.data_ptr()


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, queries = normal(700, 16), normal(30, 16, seed=1)
    detector = fitted(bank, 25)
    whole = detector.score(Outputs(features=queries))
    monkeypatch.setattr(neighbours, "BUDGET", 64)
    np.testing.assert_allclose(detector.score(Outputs(features=queries)), whole, rtol=1e-6)


class LargestTensor(TorchDispatchMode):
    """Remembers how many values the largest tensor had that was made."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, tuple | list) else [made]:
            if isinstance(value, torch.Tensor) and "t.default" not in str(func):  # a view of the bank is not made
                shared = any(isinstance(a, torch.Tensor) and a.data_ptr() == value.data_ptr() for a in args)
                self.most = self.most if shared else max(self.most, value.numel())
        return made


def test_memory_is_bounded_whatever_the_size_of_the_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BUDGET", 6000)
    bank, queries = normal(5000, 4), Outputs(features=normal(30, 4, seed=1))
    detector = fitted(bank, 20)
    with LargestTensor() as seen:
        detector.score(queries)
    assert seen.most == 6000  # of 150 000 products


@settings(max_examples=60)
@given(
    st.integers(1, 4),
    st.integers(1, 300),
    st.integers(1, 20),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(1, 5),
    st.integers(0, 2**16),
)
def test_the_largest_are_found_by_groups_as_by_a_search_of_all(
    batch: int, columns: int, k: int, dtype: torch.dtype, kinds: int, seed: int
) -> None:
    """Ties (few kinds of values), infinities, columns that fill no group: the same values, each at its own column."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(10**kinds, (batch, columns), generator=generator).to(dtype)
    values[values == 0] = -torch.inf
    k = min(k, columns)
    found, at = neighbours.largest(values, k)
    assert torch.equal(found.sort(dim=1).values, values.topk(k, dim=1).values.flip(1))
    assert torch.equal(values.gather(1, at), found)
    assert all(len(set(row)) == k for row in at.tolist())


def test_zero_vectors_keep_the_zero_direction() -> None:
    detector = fitted(torch.tensor([[0.0, 0.0], [3.0, 0.0]]), 1)
    scores = detector.score(as_outputs([[0.0, 0.0], [5.0, 0.0], [0.0, -2.0]]))
    np.testing.assert_allclose(-scores, [0.0, 0.0, 1.0], atol=1e-12)


def test_k_above_the_bank_names_both_numbers() -> None:
    """`k` is checked against the number of training images."""
    detector = KNN(k=5)
    with pytest.raises(InvalidArgumentError, match=re.escape("k=5, but the bank contains 3 training images")):
        fit([detector], [Outputs(features=normal(3, 4))])
    with pytest.raises(NotFittedError, match="is not fitted"):
        detector.score(Outputs(features=normal(3, 4)))
    with pytest.raises(InvalidArgumentError, match="k=5 is above bank_size=3"):
        KNN(k=5, bank_size=3)
    with pytest.raises(InvalidArgumentError, match="expected k to be at least 1, got 0"):
        KNN(k=0)


def test_empty_bank_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"expected training images to fit on, got none .*FeatureBank"):
        fit([KNN(k=1)], [])


def test_bank_size_takes_the_same_images_beside_a_larger_bank() -> None:
    train = Outputs(features=normal(100, 4), keys=[f"t/{i}" for i in range(100)])
    query = Outputs(features=normal(9, 4, seed=2))
    alone, beside = KNN(k=3, bank_size=20), KNN(k=3, bank_size=20)
    fit([alone], [train])
    fit([KNN(k=3), beside], [train])
    assert torch.equal(alone.score(query), beside.score(query))


@pytest.mark.parametrize(("images", "k"), [(1, 1), (20, 1), (150, 1), (300, 3), (5000, 10), (50_000, 50)])
def test_default_k_depends_on_the_size_of_the_bank(images: int, k: int) -> None:
    """Small training sets require no setting, and the paper's sizes have the paper's values."""
    train = Outputs(features=torch.randn(images, 3, generator=torch.Generator().manual_seed(0)))
    default, named = KNN(), KNN(k=k)
    assert default.why_not(BackboneFacts(num_train=images)) == ""
    fit([default, named], [train])
    assert torch.equal(default.score(train.select(slice(100))), named.score(train.select(slice(100))))
    assert f"k={k}, chosen for a bank of {images} training image{'s' if images > 1 else ''}" in default.notes[0]
    assert not named.notes
    assert default.settings == {"k": None, "bank_size": None}


def test_default_k_of_a_partial_bank_depends_on_its_own_size() -> None:
    train = Outputs(features=torch.randn(2000, 3), keys=[f"a/{i}" for i in range(2000)])
    detector = KNN(bank_size=500)
    fit([detector], [train])
    assert int(detector.neighbour) == 5


def test_a_saved_fit_keeps_its_k(tmp_path: Path) -> None:
    train = Outputs(features=torch.randn(300, 3, generator=torch.Generator().manual_seed(0)))
    detector = KNN()
    fit([detector], [train])
    save({"knn": detector}, tmp_path)
    loaded = load(tmp_path)[0]["knn"]
    assert torch.equal(loaded.score(train), detector.score(train))
    assert loaded.notes == detector.notes


def test_published_settings_are_presets() -> None:
    assert repr(KNN.preset("full")) == "KNN(k=1000)"
    assert repr(KNN.preset("1-percent")) == "KNN(k=10, bank_size=12811)"
    assert "at least 1000 training images" in KNN.preset("full").why_not(BackboneFacts(num_train=150))


def test_default_k_of_lard_depends_on_the_number_of_images() -> None:
    maps = torch.randn(300, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    train = Outputs(features=maps.mean(dim=(2, 3)), hidden={"feature_map": maps})
    default, named = LaRD(density="knn"), LaRD(density="knn", k=3)
    fit([default, named], [train])
    assert torch.equal(default.score(train), named.score(train))
    assert "k=3" in default.notes[0]
    assert "at least 10 training images" in LaRD(density="gmm").why_not(BackboneFacts(num_train=9))
