"""What tables say of needs and costs follows from what a detector declares, and is true of its fit."""

import pytest

from oodlit.detectors import (
    BATS,
    DICE,
    KNN,
    MSP,
    ODIN,
    CoP,
    CoRP,
    Detector,
    LaRD,
    MCDropout,
    RankFeat,
    ReAct,
    ViM,
    WeiPer,
    detectors,
    fit,
    overview,
)
from oodlit.detectors.contract.overview import READS
from oodlit.outputs import Outputs

from .support import normal, small_problem

every = pytest.mark.parametrize("kind", detectors().values(), ids=detectors())


@pytest.mark.parametrize(
    ("detector", "expected"),
    [
        (MSP(), ("logits", False, "closed form", "")),
        (ViM(), ("features and head", True, "closed form", "")),
        (KNN(), ("features", True, "bank", "")),
        (LaRD(), ("hidden activations", True, "closed form", "")),
        (LaRD(density="knn"), ("hidden activations", True, "bank", "")),
        (RankFeat(), ("hidden activations", False, "part of a pass", "")),
        (ODIN(), ("images", False, "2 extra forward passes", "")),
        (ODIN(epsilon=0.0), ("images", False, "closed form", "")),
        (MCDropout(passes=1), ("images", False, "1 extra forward pass", "")),
        (ReAct(then=MSP()), ("features and head", True, "closed form", "")),
        (CoP(), ("features", True, "closed form", "imagenet-resnet50")),
        (CoP(variance=0.5), ("features", True, "closed form", "")),
        (CoRP(), ("features", True, "closed form", "imagenet-resnet50")),
        (BATS.preset("cifar10"), ("features and head", True, "closed form", "cifar10")),
        (ReAct(then=BATS()), ("features and head", True, "closed form", "imagenet of BATS")),
        (ReAct(then=DICE(then=BATS())), ("features and head", True, "closed form", "imagenet of BATS of DICE")),
        (WeiPer(smooth=3), ("features and head", True, "closed form", "")),
        (BATS.preset("cifar10", then=MSP()), ("features and head", True, "closed form", "cifar10")),
    ],
    ids=repr,
)
def test_overview(detector: Detector, expected: tuple[object, ...]) -> None:
    assert tuple(overview(detector)) == expected


@every
def test_every_detector_has_one(kind: type[Detector]) -> None:
    about = overview(kind())
    assert about.reads in READS
    assert about.is_fitted is bool(kind().required_statistics)


@every
def test_tuned_presets_are_found_again(kind: type[Detector]) -> None:
    """Tuned settings are reported, and only those."""
    assert kind.tuned_presets <= kind.presets.keys()
    for name in kind.presets:
        found = overview(kind.preset(name)).tuned
        assert bool(found) is (name in kind.tuned_presets)


def fitted(kind: type[Detector], images: int) -> Detector:
    """With settings that fit a small problem; hidden activations are noise."""
    training, head = small_problem(n=images, width=8, signed=False)
    maps = {layer: normal(images, 3, 2, 2) for layer in kind().required_layers}
    outputs = Outputs(training.logits, training.features, training.labels, keys=training.keys, hidden=maps or None)
    detector = kind()
    fit([detector], [outputs], head)
    return detector


FITTED = [k for k in detectors().values() if overview(k()).is_fitted and "model" not in k().required_needs]


@pytest.mark.parametrize("kind", FITTED, ids=lambda k: k.key())
def test_a_bank_is_what_grows_with_the_training_set(kind: type[Detector]) -> None:
    """A matrix with a row for every training image would be a bank, and a cost that no table names."""
    rows = [{n: b.shape for n, b in fitted(kind, images).named_buffers()} for images in (60, 120)]
    grown = [n for n, shape in rows[0].items() if len(shape) > 1 and rows[1].get(n, shape)[0] == 2 * shape[0]]
    assert bool(grown) is (overview(kind()).cost == "bank"), f"{kind.__name__}: declare `compares_images`"


def test_a_bank_inside_another_detector_counts() -> None:
    detector = ReAct()
    detector.then = KNN(k=3)
    assert overview(detector).cost == "bank"
