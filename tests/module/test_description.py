"""The description and the trial of a transform: what tells two apart, and what is one and the same."""

import os
import subprocess
import sys
import threading

import pytest
import torch
import torchvision.transforms.v2.functional as tf
from torch import nn
from torchvision.transforms import v2

from oodlit import OODModule
from oodlit.backbones.identity import examine
from oodlit.base.fingerprint import difference
from oodlit.base.value_description import MAX_SHOWN, describe, shown
from oodlit.testing.backbones import TinyConvNet


def small(image) -> torch.Tensor:
    return tf.center_crop(tf.to_image(image).float() / 255, [8])


class Holder:
    """Holds a set."""

    def __init__(self) -> None:
        self.modes = frozenset({"RGB", "L", "CMYK", "P", "LA"})
        self.by_name = {"one": {"a", "b", "c"}, "two": self.modes}

    def __call__(self, image):
        return small(image) if self.modes else None


class Shown(Holder):
    """Shows the set in its own repr."""

    def __repr__(self) -> str:
        return f"Shown({set(self.modes)})"


class Counter:
    """Counts its calls, and keeps what it made."""

    def __init__(self) -> None:
        self.calls, self.cache, self.size = 0, {}, 8
        self._last = None

    def __call__(self, image):
        self.calls += 1
        self._last = self.cache[self.calls] = small(image)
        return self._last


class Locked(Counter):
    """No copy can be made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def counting():
    calls = 0

    def transform(image):
        nonlocal calls
        calls += 1
        return small(image)

    return transform


def is_letter(image):
    return small(image) * (1.0 if str(image) in {"a", "b", "c", "d"} else 2.0)


@pytest.mark.integration
def test_sets_have_the_same_description_in_every_process():
    """The repr of a set of strings follows hash randomisation."""
    code = (
        "from tests.module.test_description import *\n"
        "print([describe(t) for t in (Holder(), Shown(), v2.Compose([Shown()]), is_letter, {'a', 'b', 'c', 'd'})])"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
    )
    here = [describe(t) for t in (Holder(), Shown(), v2.Compose([Shown()]), is_letter, {"a", "b", "c", "d"})]
    assert there.stdout.strip() == str(here)


def test_the_order_of_a_dictionary_does_not_matter():
    assert describe({"a": 1, "b": object}) == describe({"b": object, "a": 1})


@pytest.mark.parametrize("make", [Counter, Locked, counting, lambda: v2.Compose([Counter()])])
def test_state_that_a_transform_changes_is_left_out(make):
    transform = make()
    module = OODModule(TinyConvNet(6), transform=transform)
    before = module.fingerprint
    transform(torch.zeros(3, 9, 9))  # as a run does
    assert module.fingerprint == before == OODModule(TinyConvNet(6), transform=make()).fingerprint


def test_a_copy_of_the_transform_is_tried():
    transform = Counter()
    examine(transform, "net")
    assert transform.calls == 0


def test_settings_of_a_counting_transform_are_described():
    one, other = Counter(), Counter()
    other.size = 9
    assert examine(one, "net")[0] != examine(other, "net")[0]


class Own:
    """Keeps all that it does in hidden attributes."""

    def __init__(self, function, **settings) -> None:
        self._function, self._settings = function, settings

    def __call__(self, image):
        return self._function(image, **self._settings)

    def __repr__(self) -> str:
        return "Own()"


def resized(image, antialias: bool) -> torch.Tensor:
    return tf.center_crop(tf.resize(tf.to_image(image).float() / 255, [256], antialias=antialias), [224])


def squashed(image) -> torch.Tensor:
    return resized(image.resize((224, 224)) if max(image.size) > 320 else image, antialias=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda i: resized(i, antialias=True), lambda i: resized(i, antialias=False)),
        (lambda i: resized(i, antialias=True), squashed),
        (lambda i: resized(i, antialias=True), lambda i: resized(i.reduce(2) if min(i.size) > 400 else i, True)),
    ],
    ids=["antialias", "large ones squashed", "large ones reduced"],
)
def test_steps_that_only_affect_large_pictures_are_detected(one, other):
    """The fixed pictures were only ever made larger."""
    sketches = [f"pictures={examine(t, 'net')[1]}" for t in (one, other)]
    assert difference(*sketches) == "the output of the transform for built-in test pictures"


def gray(image, mean: float) -> torch.Tensor:
    assert image.mode == "L"
    return tf.to_image(image).float() / 255 - mean


@pytest.mark.parametrize(
    ("one", "other"),
    [(lambda x: (x - 0.5) / 0.5, lambda x: x * 1.0), (lambda i: gray(i, 0.1), lambda i: gray(i, 0.5))],
    ids=["tensors", "gray pictures"],
)
def test_transforms_of_tensors_and_gray_pictures_are_tried(one, other):
    sketches = [f"pictures={examine(t, 'net')[1]}" for t in (one, other)]
    assert difference(*sketches) == "the output of the transform for built-in test pictures"


class Twice(nn.Module):
    """A custom module with a buffer."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, record):
        return record["image"] * self.factor


def of_record(record, mean: float = 0.0, *, scale: float = 1.0):
    return (record["image"] - mean) * scale


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda r: r["image"] * 1, lambda r: r["image"] * 2),
        (lambda r: r["image"], lambda r: r["picture"]),
        (lambda r, m=0.0: r["image"] - m, lambda r, m=0.5: r["image"] - m),
        (lambda r, *, m=0.0: r["image"] - m, lambda r, *, m=0.5: r["image"] - m),
        (Own(of_record, mean=0.0), Own(of_record, mean=0.5)),
        (v2.Compose([Own(of_record, mean=0.0)]), v2.Compose([Own(of_record, mean=0.5)])),
        (Twice(2.0), Twice(3.0)),
    ],
    ids=["constant", "name", "default", "named default", "hidden attribute", "in a compose", "buffer"],
)
def test_a_transform_that_cannot_be_tried_is_identified_by_its_code(one, other):
    with pytest.warns(UserWarning, match=r"^net: the transform .* accepts neither pictures .* nor tensors.*"):
        hashes = [examine(t, "net")[0] for t in (one, other, one)]
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_record_keeps_the_beginning_of_a_long_description_and_tells_two_apart() -> None:
    """A transform that uses a data module holds its trainer, too: 30 million characters in run.json."""

    def holding(values: list[int]):
        return lambda image: small(image) * len(values)

    long = list(range(100_000))
    texts = {shown(holding(values)) for values in (long, [*long, 1], [*long, 2])}
    assert len(texts) == 3
    assert all(MAX_SHOWN < len(text) < MAX_SHOWN + 40 for text in texts)
    assert shown(holding(long)) in texts
    assert shown(holding([1, 2])) == describe(holding([1, 2]))
