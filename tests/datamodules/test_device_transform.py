"""A transform on a device gives the numbers of the transform itself, or is refused by the name of its step."""

import warnings
from typing import Any

import numpy as np
import pytest
import timm.data.transforms as timm_steps
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import create_transform
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from oodlit.datamodules.device.steps import KNOWN, DeviceTransform
from oodlit.datamodules.transforms import compose, without_resize
from oodlit.errors import InvalidArgumentError

BICUBIC = v1.InterpolationMode.BICUBIC
TRANSFORMS: dict[str, Any] = {
    "torchvision": v1.Compose(
        [v1.Resize(20), v1.CenterCrop(16), v1.ToTensor(), v1.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.1))]
    ),
    "v2": v2.Compose(
        [
            v2.Resize((18, 21), BICUBIC),
            v2.CenterCrop((16, 19)),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.5,), (0.5,)),
        ]
    ),
    "nested": compose([compose([v1.Resize(9, max_size=30)]), v1.PILToTensor(), v1.ConvertImageDtype(torch.float64)]),
    "whole numbers": compose([v1.CenterCrop(12), v1.PILToTensor()]),
    "not scaled": v1.Compose([v1.Resize([17]), timm_steps.ToTensor()]),
    "a step alone": v1.ToTensor(),
    **{
        f"timm {mode} {interpolation}": create_transform(
            (3, *size), crop_pct=0.8, crop_mode=mode, interpolation=interpolation, mean=(0.1, 0.5, 0.7)
        )
        for mode in ("center", "squash", "border")
        for interpolation in ("bilinear", "bicubic", "lanczos")
        for size in ((16, 16), (16, 20))
    },
    "timm without scaling": create_transform(16, normalize=False),
}


def image_of(height: int, width: int, seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def on_device(transform: Any, images: list[Image.Image]) -> torch.Tensor:
    made = DeviceTransform(transform)
    return made.scaled(torch.stack([made.shaped(as_tensor(image)) for image in images]))


@pytest.mark.parametrize("name", TRANSFORMS)
@given(height=st.integers(3, 60), width=st.integers(3, 60), seed=st.integers(0, 99))
def test_every_number_is_that_of_the_transform(name, height, width, seed):
    images = [image_of(height, width, seed), image_of(height, width, seed + 1)]
    exact = torch.stack([torch.as_tensor(TRANSFORMS[name](image)) for image in images])
    made = on_device(TRANSFORMS[name], images)
    assert made.dtype == exact.dtype
    assert torch.equal(made, exact.as_subclass(torch.Tensor))


def test_every_step_that_is_known_is_swept():
    swept = set()
    for transform in TRANSFORMS.values():
        swept |= {type(step).__name__ for step in getattr(transform, "transforms", [transform])}
    assert {name for package, name in KNOWN if package != "open_clip"} <= swept | {"Resize"}
    assert len(KNOWN) >= 14


@pytest.mark.parametrize("size", [(16, 16), (32, 24)])
def test_images_of_the_right_size_are_not_resized_where_they_are_prepared(size):
    transform = without_resize(TRANSFORMS["torchvision"])
    image = image_of(*size, 0)
    assert torch.equal(on_device(transform, [image])[0], transform(image))


def test_a_level_is_what_one_of_255_is_worth():
    level = DeviceTransform(TRANSFORMS["torchvision"]).level()
    assert level.shape == (3, 1, 1)
    known = 1 / 255 / torch.tensor([0.2, 0.3, 0.1], dtype=torch.float64)
    torch.testing.assert_close(level.flatten(), known, rtol=1e-6, atol=0)
    assert DeviceTransform(TRANSFORMS["whole numbers"]).level().unique().tolist() == [1]


class Mine(v1.CenterCrop):
    """Does what only its author knows."""


def own_step(image: Image.Image) -> Image.Image:
    return image


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([own_step, v1.ToTensor()], r"^decode_on_device: the step <function own_step at .*> of the transform is not"),
        ([Mine(4), v1.ToTensor()], r"the step Mine\(size=\(4, 4\)\) of the transform is not known on a device; leave"),
        (
            [v1.ToTensor(), v1.Resize(4)],
            r"the step Resize\(.*\) of the transform is not known on a device at this place",
        ),
        ([v1.Normalize(0.5, 0.5)], r"the step Normalize\(.*\) of the transform is not known on a device at this place"),
        (
            [v1.Resize(4, v1.InterpolationMode.NEAREST), v1.ToTensor()],
            r"interpolates by 'nearest', one of box, bilinear",
        ),
        ([v1.Resize(4)], r"the transform Compose\(\s+Resize.* makes no tensor; it needs a step such as ToTensor"),
        ([v1.PILToTensor(), v1.Normalize(0.5, 0.5)], "its steps fail on an image of one pixel: .*float tensor"),
        ([v1.RandomApply([v1.CenterCrop(4)]), v1.ToTensor()], "the step RandomApply"),
    ],
)
def test_unknown_steps_are_refused_by_name(steps, message):
    with pytest.raises(InvalidArgumentError, match=f"(?s){message}"):
        DeviceTransform(v1.Compose(steps)).level()


def test_crops_of_small_images_are_padded_alike():
    transform = v1.Compose([v1.CenterCrop(9), v1.ToTensor()])
    for height, width in ((4, 30), (30, 4), (5, 5)):
        image = image_of(height, width, 3)
        assert torch.equal(on_device(transform, [image])[0], transform(image))


def test_the_step_of_open_clip_that_makes_images_rgb_does_nothing():
    def _convert_to_rgb(image: Image.Image) -> Image.Image:
        return image.convert("RGB")

    _convert_to_rgb.__module__ = "open_clip.transform"
    steps = [v1.Resize(12, BICUBIC), v1.CenterCrop(10), _convert_to_rgb, v1.ToTensor()]
    image = image_of(30, 21, 5)
    assert torch.equal(on_device(v1.Compose(steps), [image])[0], v1.Compose(steps)(image))


def test_no_warning_comes_of_a_size_without_memory():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_device(TRANSFORMS["torchvision"], [image_of(30, 40, 0)])


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [
                v2.Resize(8),
                v2.CenterCrop(8),
                v2.ToImage(),
                v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}),
            ],
            r"on tensors, the steps .* give \(3, 8, 8\) of torch.uint8 where .* gives \(3, 8, 8\) of torch.float32;",
        ),
        ([v1.PILToTensor(), v1.ToTensor()], "transform: it fails on an image of 48 x 40: TypeError: pic should be"),
        ([v1.ToTensor(), v1.Normalize(0.5, 0.0)], "transform: it fails on an image of 48 x 40: ValueError: std"),
    ],
)
def test_transforms_that_are_not_their_steps_on_tensors_are_refused(steps, message):
    transform = v2.Compose(steps)
    with pytest.raises(InvalidArgumentError, match=f"(?s){message}"):
        DeviceTransform(transform).check(transform)


def test_steps_that_give_other_values_are_refused(monkeypatch):
    transform = TRANSFORMS["torchvision"]
    on_device = DeviceTransform(transform)
    on_device.check(transform)
    monkeypatch.setattr(on_device, "_shaping", [lambda images: images[..., :16, :16]])
    with pytest.raises(InvalidArgumentError, match=r"give (other values|\(3, 16, 16\)) .*leave decode_on_device out"):
        on_device.check(transform)
