"""What several detectors need of a batch is computed once, whatever their number."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oodlit.detectors import (
    DDU,
    GEN,
    KNN,
    MSP,
    Cosine,
    Detector,
    Energy,
    Entropy,
    GradNorm,
    KLMatching,
    Mahalanobis,
    MaxLogit,
    NNGuide,
    RelativeCosine,
    RelativeMahalanobis,
    Residual,
    TrainFreeDetector,
    ViM,
    fit,
)
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.detectors.formulas.gaussian import class_gaussians
from oodlit.detectors.statistics import ClassMoments, FeatureBank, Statistics, TrainSample
from oodlit.errors import InvalidArgumentError
from oodlit.outputs import Head, Outputs

from .support import small_problem


class Calls(TorchDispatchMode):
    """Counts operations on tensors that are, or hold the memory of, one of those that are watched."""

    def __init__(self, watched: torch.Tensor) -> None:
        super().__init__()
        self.watched = watched.untyped_storage().data_ptr()
        self.on_watched: Counter[str] = Counter()
        self.everywhere: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        self.everywhere[name] += 1
        self.on_watched[name] += any(t.untyped_storage().data_ptr() == self.watched for t in tensors)
        return func(*args, **(kwargs or {}))


def calls(detectors: list[Detector], field: str, dtype: torch.dtype = torch.float64) -> Calls:
    """Operations while one batch is scored by all detectors."""
    train, head = small_problem(dtype=dtype)
    fit(detectors, [train], head)
    outputs = Outputs(train.logits, train.features)
    with Calls(outputs.require(field)) as counted:
        for detector in detectors:
            detector.score(outputs)
    return counted


def test_softmax_and_the_largest_logits_once() -> None:
    detectors = [MSP(), MaxLogit(), Energy(), Entropy(), GEN(), KLMatching(), GradNorm(), ViM(), NNGuide(k=2)]
    counted = calls(detectors, "logits")
    assert counted.on_watched["_softmax"] == 1
    assert counted.on_watched["amax"] == 1
    assert counted.on_watched["argmax"] == 1
    assert counted.everywhere["_log_softmax"] == counted.everywhere["logsumexp"] == 0
    assert counted.everywhere["exp"] <= 2  # of logarithms in GEN


@pytest.mark.parametrize(("dtype", "look"), [(torch.float32, "sum"), (torch.float64, "aminmax")])
def test_looks_for_values_that_cannot_be_scored_once(dtype: torch.dtype, look: str) -> None:
    many = calls([Residual(), Residual(dim=2), ViM(), ViM(dim=2)], "features", dtype)
    one = calls([Residual()], "features", dtype)
    assert many.on_watched[look] == one.on_watched[look] == 1


@pytest.mark.parametrize(
    ("one", "several"),
    [
        (lambda: [Mahalanobis()], lambda: [Mahalanobis(), RelativeMahalanobis()]),
        (lambda: [Mahalanobis()], lambda: [Mahalanobis(), DDU("tied")]),
        (lambda: [Residual()], lambda: [Residual(), ViM()]),
        (lambda: [Cosine()], lambda: [Cosine(), RelativeCosine()]),
    ],
    ids=["class-distances", "tied-covariance", "residual", "cosines"],
)
def test_large_products_once(one, several) -> None:
    """Relative Mahalanobis adds two smaller products, along at most classes - 1 axes; the others add none."""

    def products(counted: Calls) -> int:
        return sum(counted.everywhere[name] for name in ("mm", "addmm", "bmm"))

    added = products(calls(several(), "features")) - products(calls(one(), "features"))
    assert added == (2 if any(isinstance(d, RelativeMahalanobis) for d in several()) else 0)


def test_unit_features_once() -> None:
    assert calls([NNGuide(k=2), NNGuide(k=3), NNGuide(k=4)], "features").on_watched["div"] == 1


def test_decompositions_of_a_fit_once() -> None:
    train, head = small_problem()
    detectors = [Mahalanobis(), RelativeMahalanobis(), DDU("tied"), ViM(), ViM(dim=2), Residual()]
    with Calls(train.require("features")) as counted:
        fit(detectors, [train], head)
    assert counted.everywhere["linalg_cholesky_ex"] <= 2  # within classes, total
    assert counted.everywhere["_linalg_eigh"] <= 1 + 2  # of ViM, and where a Cholesky factor is not exact enough
    assert counted.everywhere["linalg_lstsq"] == 1


class Careless(TrainFreeDetector):
    """A user's detector that writes to what the others read."""

    needs = frozenset({"logits", "features"})
    reference = MSP.reference

    def __init__(self, write: str = "max_logits") -> None:
        super().__init__()
        self.write = write

    def _score(self, outputs: Outputs) -> torch.Tensor:
        if self.write == "memo":
            shared = outputs.memo("of mine", lambda: outputs.require("logits") * 1)
        else:
            shared = getattr(outputs, self.write)
        shared -= 1
        return outputs.require("logits").amax(dim=1)


DERIVED = ("max_logits", "logsumexp", "probabilities", "log_probabilities", "feature_norms", "unit_features", "memo")


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("write", DERIVED)
def test_a_write_to_shared_tensors_is_refused_and_has_no_effect(write: str, inference: bool) -> None:
    """Also in inference mode, as in a run."""
    train, head = small_problem()
    others = [Energy(), MaxLogit(), MSP(), GradNorm(), Mahalanobis(), Cosine(), ViM(dim=2)]
    fit(others, [train], head)
    expected = [detector.score(Outputs(train.logits, train.features)) for detector in others]
    with torch.inference_mode(mode=inference):
        outputs = Outputs(train.require("logits") * 1, train.require("features") * 1)
        with pytest.raises(InvalidArgumentError, match=r"Careless.* shares with other detectors: .*; use out-of-place"):
            Careless(write).score(outputs)
        for detector, scores in zip(others, expected, strict=True):
            assert torch.equal(detector.score(outputs), scores)


@pytest.mark.parametrize("write", ["logits", "features"])
def test_modified_inputs_are_refused_from_then_on(write: str) -> None:
    train, _ = small_problem()
    outputs = Outputs(train.require("logits").clone(), train.require("features").clone())
    with pytest.raises(InvalidArgumentError, match=f"shares with other detectors: {write}"):
        Careless(write).score(outputs)
    with pytest.raises(InvalidArgumentError, match=rf"Energy\(\): .* wrote to .*outputs: {write}; compute"):
        Energy().score(outputs)
    with torch.inference_mode():
        outputs = Outputs(train.require("logits") * 1, train.require("features") * 1)
        with pytest.raises(InvalidArgumentError, match="shares with other detectors: logits, features"):
            Careless(write).score(outputs)  # torch says that something was written to, not what
        with pytest.raises(InvalidArgumentError, match=r"Energy\(\): .* wrote to .*outputs: logits, features"):
            Energy().score(outputs)


@pytest.mark.parametrize("kind", [MSP, Energy, MaxLogit, Mahalanobis, Residual, ViM, Cosine, KLMatching])
def test_scores_are_never_views_of_shared_tensors(kind: type[Detector]) -> None:
    """`MaxLogit().score(outputs).zero_()` must not change Energy."""
    train, head = small_problem()
    detectors = [kind() if kind is not ViM else ViM(dim=2), Energy(), MaxLogit()]
    fit(detectors, [train], head)
    outputs = Outputs(train.logits, train.features)
    first = [detector.score(outputs).clone() for detector in detectors]
    for detector in detectors:
        detector.score(outputs).zero_()
    for detector, scores in zip(detectors, first, strict=True):
        assert torch.equal(detector.score(outputs), scores)


class Greedy(Detector):
    """A user's detector that writes to what others are fitted on."""

    needs = frozenset({"features", "head", "labels"})
    statistics = (ClassMoments, TrainSample, FeatureBank)
    reference = MSP.reference

    def __init__(self, write: str = "state") -> None:
        super().__init__()
        self.write = write

    def _fit(self, statistics: Statistics, head: Head | None) -> None:
        assert head is not None
        {
            "state": lambda: statistics[ClassMoments].counts,
            "column": lambda: statistics[TrainSample].column("features"),
            "sample": lambda: statistics[TrainSample].outputs.require("features"),
            "bank": lambda: statistics[FeatureBank].bank()[0],
            "memo": lambda: class_gaussians(statistics)["whiten"],
            "head": lambda: head.weight,
        }[self.write]().mul_(2)

    def _score(self, outputs: Outputs) -> torch.Tensor:
        return outputs.feature_norms


@pytest.mark.parametrize("write", ["state", "column", "sample", "bank", "memo", "head"])
@pytest.mark.parametrize("warm", [False, True])
def test_a_fit_that_writes_to_shared_tensors_is_refused(write: str, warm: bool) -> None:
    """Others are then fitted as without it, or are refused as well."""
    train, head = small_problem()
    head = Head(head.weight.clone(), head.offset.clone())
    others = [Mahalanobis(), KNN(k=3), NNGuide(k=3)]
    fit(others, [train], head)
    expected = [detector.score(train) for detector in others]
    statistics = make_statistics([Greedy(), *others])
    statistics.update(train)
    if warm:
        Mahalanobis().fit(statistics, head)
    with pytest.raises(InvalidArgumentError, match=r"Greedy.* other detectors are fitted on"):
        Greedy(write).fit(statistics, head)
    if write in ("state", "column", "sample", "bank"):
        with pytest.raises(InvalidArgumentError, match=r"a detector wrote to .*compute the statistics again"):
            Mahalanobis().fit(statistics, head)
        return
    for detector, scores in zip(others, expected, strict=True):
        detector.fit(statistics, head)
        assert torch.equal(detector.score(train), scores)
