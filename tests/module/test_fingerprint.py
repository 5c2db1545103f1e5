"""What a fit belongs to: weights, head and transform, by what they are and by what they do."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torchvision.transforms import v2

from oodlit import OODModule
from oodlit.base.fingerprint import NUM_PROJECTIONS, _signs, difference, sketch
from oodlit.detectors import KNN, MSP, FitOrigin, Mahalanobis, fit, load, save
from oodlit.errors import FingerprintError
from oodlit.outputs import Outputs
from oodlit.testing.backbones import TinyConvNet, arithmetic, fill_arithmetic_

IMAGES = arithmetic(40, 3, 8, 8).float()
LABELS = torch.arange(40) % 6


def to_tensor(size: int = 8, resample=Image.Resampling.BILINEAR):
    def transform(image):
        return torch.from_numpy(np.array(image.resize((size, size), resample))).permute(2, 0, 1).float() / 255

    return transform


class My:
    """A custom step without a repr."""

    def __init__(self, size: int = 8, resample=Image.Resampling.BILINEAR) -> None:
        self.inner = to_tensor(size, resample)

    def __call__(self, image):
        return self.inner(image)


class Silent(My):
    """Its settings show nowhere."""

    def __repr__(self) -> str:
        return "Silent()"


def compose(*steps):
    return v2.Compose(list(steps))


def call(shift, image):
    return to_tensor()(image) + shift


SAME = to_tensor()
PAIRS = {
    "normalise behind an own step": (compose(My(), v2.Normalize([0], [1])), compose(My(), v2.Normalize([0.5], [0.1]))),
    "resize before an own step": (compose(v2.CenterCrop(64), My()), compose(v2.CenterCrop(60), My())),
    "settings of an own step": (My(8), My(8, Image.Resampling.BICUBIC)),
    "settings that show nowhere": (Silent(8), Silent(8, Image.Resampling.NEAREST)),
    "size that shows nowhere": (Silent(8), Silent(16)),
    "lambdas": (lambda image: SAME(image) * 1.0, lambda image: SAME(image) * 1.1),
    "lambdas in a compose": (compose(lambda i: SAME(i).flip(2)), compose(lambda i: SAME(i).flip(0))),
    "partial": (functools.partial(call, 0.0), functools.partial(call, 0.2)),
    "partial of a lambda": (
        functools.partial(lambda s, i: SAME(i) + s, 0.0),
        functools.partial(lambda s, i: SAME(i) - s, 0.2),
    ),
    "closures": (to_tensor(8), to_tensor(8, Image.Resampling.LANCZOS)),
    "bound methods": (My(8).__call__, My(8, Image.Resampling.BOX).__call__),
    "none": (None, to_tensor()),
}


def origin_of(module: OODModule) -> FitOrigin:
    return FitOrigin(module.fingerprint)


@pytest.mark.parametrize(("one", "other"), PAIRS.values(), ids=PAIRS)
def test_another_transform_is_refused(one, other):
    """Custom classes, partials, lambdas, and steps of a Compose with a custom step."""
    first, second = (OODModule(TinyConvNet(6), transform=t) for t in (one, other))
    origin_of(first).check(OODModule(TinyConvNet(6), transform=one))
    with pytest.raises(FingerprintError, match=r"transform differs|transform for built-in test pictures differs"):
        origin_of(first).check(second)


class TwoHeads(nn.Module):
    """Two heads of equal width, on two poolings."""

    def __init__(self, pool: str = "mean", use: str = "a") -> None:
        super().__init__()
        self.a, self.b, self.pool, self.use = nn.Linear(3, 4), nn.Linear(3, 4), pool, use
        fill_arithmetic_(self)

    def forward(self, images):
        pooled = images.mean(dim=(2, 3)) if self.pool == "mean" else images.amax(dim=(2, 3))
        return getattr(self, self.use)(pooled)


def with_transform(network: nn.Module, **settings) -> OODModule:
    return OODModule(network, transform=to_tensor(), **settings)


@pytest.mark.parametrize(
    "other",
    [
        lambda: with_transform(TwoHeads(pool="max")),
        lambda: with_transform(TwoHeads(use="b")),
        lambda: with_transform(TwoHeads(use="b"), head="b"),
        lambda: with_transform(TwoHeads(), features_only=True),
    ],
    ids=["pooling", "head", "named head", "features alone"],
)
def test_another_layer_or_pooling_with_equal_weights_is_refused(other):
    first = with_transform(TwoHeads())
    origin_of(first).check(with_transform(TwoHeads(), head="a"))
    with pytest.raises(
        FingerprintError, match=r"the layer that the features come from|the output of the network for built-in"
    ):
        origin_of(first).check(other())


def test_without_pictures_the_network_is_tried_with_images_of_the_run():
    modules = [OODModule(TwoHeads()), OODModule(TwoHeads(pool="max"))]
    for module in modules:
        module.probe(IMAGES)
    assert difference(*(m.fingerprint for m in modules)) == "the output of the network for built-in test pictures"


@given(
    st.sampled_from([(torch.float32, 1.01), (torch.float16, 1.12), (torch.bfloat16, 1.12)]),
    st.floats(1, 3),
    st.floats(-6, 6),
)
def test_multiplied_outputs_differ_at_every_size(kind, more, log_size):
    """Also where the outputs are large: the tolerance of the logarithm does not grow with it."""
    dtype, factor = kind
    outputs = arithmetic(4, 50) * np.exp(log_size)
    one, rounded, other = (
        "network=" + sketch(values.to(dtype)) for values in (outputs, outputs.bfloat16(), outputs * factor * more)
    )
    assert difference(one, other) == "the output of the network for built-in test pictures"
    assert difference(one, rounded) == "" or dtype == torch.float32


def test_random_transforms_are_warned_about_and_have_no_sketch():
    random = compose(My(), v2.RandomErasing(p=0.5))
    torch.manual_seed(3)
    np.random.seed(3)
    state = torch.random.get_rng_state()
    with pytest.warns(
        UserWarning, match="TinyConvNet: the transform returned different results for the same picture, .* and differ"
    ):
        text = OODModule(TinyConvNet(6), transform=random).fingerprint
    assert "pictures=" not in text
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "change",
    [
        lambda module: torch.set_num_threads(2),
        lambda module: module.network.to(memory_format=torch.channels_last),
        lambda module: setattr(module, "transform", lambda i: SAME(i) * (1 + 1e-6)),
    ],
)
def test_rounding_does_not_matter(change):
    def same(image):
        return SAME(image)

    module = with_transform(TinyConvNet(6))
    module.transform = same
    before = module.fingerprint
    threads = torch.get_num_threads()
    try:
        change(module)
        what = difference(before, module.fingerprint)
        assert what in ("", "the transform")  # the description of another lambda, not what it does
    finally:
        torch.set_num_threads(threads)


@pytest.mark.integration
def test_another_process_has_the_same_fingerprint():
    code = (
        "from tests.module.test_fingerprint import *\n"
        "print(OODModule(TinyConvNet(6), transform=compose(My(), v2.Normalize([0.5], [0.2]))).fingerprint)"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    here = OODModule(TinyConvNet(6), transform=compose(My(), v2.Normalize([0.5], [0.2]))).fingerprint
    assert difference(here, there) == ""
    assert there == here


def _batches(module: OODModule) -> list[Outputs]:
    from dataclasses import replace

    with torch.no_grad():
        return [
            replace(module(part), labels=labels)
            for part, labels in zip(IMAGES.split(10), LABELS.split(10), strict=True)
        ]


@torch.no_grad()
def test_outputs_of_another_network_are_refused(tmp_path):
    """A loaded fit checks the outputs that it scores."""
    module = OODModule(TinyConvNet(6))
    detectors = {"mahalanobis": Mahalanobis(), "knn": KNN(k=3), "msp": MSP()}
    fit(list(detectors.values()), _batches(module), module.head)
    save(detectors, tmp_path, FitOrigin(module.fingerprint))
    loaded, origin = load(tmp_path)
    other = TinyConvNet(6)
    other.conv.weight.mul_(1.01)
    others = OODModule(other)(IMAGES)
    for detector in (detectors["mahalanobis"], detectors["knn"], loaded["mahalanobis"], loaded["knn"]):
        detector.score(module(IMAGES))
        detector.score(module(IMAGES).select(slice(3)).to(dtype=torch.float64))
        detector.score(OODModule(TinyConvNet(6), transform=to_tensor())(IMAGES))  # weights and head alone are known
        message = r"^(Mahalanobis|KNN).* belongs to another backbone or transform: the state of the weights"
        with pytest.raises(FingerprintError, match=message):
            detector.score(others)
        detector.score(Outputs(others.logits, others.features))  # made by hand: nothing is known
    loaded["msp"].score(others)  # nothing was fitted
    origin.check(module)
    with pytest.raises(FingerprintError, match="the saved fit belongs to another backbone or transform: "):
        origin.check(OODModule(other))


@torch.no_grad()
def test_training_outputs_of_two_networks_are_refused():
    first, second = TinyConvNet(6), TinyConvNet(6)
    second.conv.weight.mul_(1.01)
    batches = [*_batches(OODModule(first))[:2], *_batches(OODModule(second))[2:]]
    with pytest.raises(FingerprintError, match="but the state of the weights differs between batches; compute"):
        fit([Mahalanobis()], batches)


@torch.no_grad()
def test_changed_weights_are_detected():
    module = OODModule(TinyConvNet(6))
    detector = KNN(k=3)
    fit([detector], _batches(module))
    module.network.head.bias.add_(1.0)
    with pytest.raises(FingerprintError):
        detector.score(module(IMAGES))


def turn_round(values: torch.Tensor) -> None:
    values.copy_(values.flip(0))


@torch.no_grad()
@pytest.mark.parametrize(
    "change", [lambda v: v.mul_(1.7), lambda v: v.add_(1.0), turn_round], ids=["scale", "shift", "swap"]
)
def test_writes_to_data_are_detected(change):
    """An average of weights is swapped in by `.data`, which raises no version: the hash stayed that of before."""
    module, fresh = OODModule(TinyConvNet(6)), OODModule(TinyConvNet(6))
    detector = KNN(k=3)
    fit([detector], _batches(module))
    before = module.fingerprint
    change(module.network.conv.weight.data)
    fresh.network.load_state_dict(module.network.state_dict())
    with pytest.raises(FingerprintError):
        detector.score(module(IMAGES))
    assert difference(before, module.fingerprint) == "the state of the weights"
    assert difference(fresh.fingerprint, module.fingerprint) == ""


@torch.inference_mode()
def test_changed_buffers_and_inference_tensors_are_detected():
    network = nn.Sequential(nn.BatchNorm2d(3), TinyConvNet(6)).eval()
    module = OODModule(network)
    before = module(IMAGES).backbone
    module.network[0].running_mean.data.add_(1.0)
    assert module(IMAGES).backbone != before


@given(length=st.integers(0, 3000), seed=st.integers(1, NUM_PROJECTIONS))
def test_signs_of_a_sketch_follow_from_whole_numbers(length, seed):
    expected = []
    for index in range(length):
        mixed = (index * 1_103_515_245 + seed * 747_796_405) % 2**31
        mixed = ((mixed ^ (mixed >> 15)) * 277_803_737) % 2**31
        expected.append((mixed >> 16) % 2 * 2 - 1)
    assert _signs(length, seed).tolist() == expected
