"""A transform on a device gives nearly the numbers of the transform itself, or is refused by the name of its step."""

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
    "without antialias": v1.Compose([v1.Resize(9, antialias=False), v1.ToTensor()]),
    "whole numbers": compose([v1.CenterCrop(12), v1.PILToTensor()]),
    "not scaled": v1.Compose([v1.Resize([17]), timm_steps.ToTensor()]),
    "a step alone": v1.ToTensor(),
    **{
        f"timm {mode} {interpolation}": create_transform(
            (3, *size), crop_pct=0.8, crop_mode=mode, interpolation=interpolation, mean=(0.1, 0.5, 0.7)
        )
        for mode in ("center", "squash")
        for interpolation in ("bilinear", "bicubic")
        for size in ((16, 16), (16, 20))
    },
    "timm without scaling": create_transform(16, normalize=False),
}


def image_of(height: int, width: int, seed: int) -> Image.Image:
    """Noise far from 0 and 255: Pillow clips bicubic overshoot after each axis, torchvision at the end."""
    return Image.fromarray(np.random.default_rng(seed).integers(60, 196, (height, width, 3), dtype=np.uint8))


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def check_close(transform: Any, images: list[Image.Image]) -> None:
    on_device = DeviceTransform(transform)
    exact = torch.stack([torch.as_tensor(transform(image)).as_subclass(torch.Tensor) for image in images])
    made = on_device(torch.stack([as_tensor(image) for image in images]))
    assert made.dtype == exact.dtype
    steps = (made.double() - exact.double()).abs() / on_device.level()
    assert steps.max() < 2.5  # of 255: torchvision's antialiased resizing of tensors differs from Pillow's


@pytest.mark.filterwarnings("ignore:Anti-alias option is always applied")
@pytest.mark.parametrize("name", TRANSFORMS)
@given(height=st.integers(12, 60), width=st.integers(12, 60), seed=st.integers(0, 99))
def test_numbers_are_close_to_those_of_the_transform(name, height, width, seed):
    check_close(TRANSFORMS[name], [image_of(height, width, seed), image_of(height, width, seed + 1)])


def test_every_supported_step_is_tested():
    tested = set()
    for transform in TRANSFORMS.values():
        tested |= {type(step).__name__ for step in getattr(transform, "transforms", [transform])}
    assert {name for package, name in KNOWN if package != "open_clip"} <= tested | {"Resize"}
    assert len(KNOWN) >= 13


@pytest.mark.parametrize("size", [(16, 16), (32, 24)])
def test_prepared_images_of_the_right_size_are_not_resized(size):
    transform = without_resize(TRANSFORMS["torchvision"])
    image = image_of(*size, 0)
    check_close(transform, [image])
    if size == (16, 16):
        assert torch.equal(DeviceTransform(transform)(as_tensor(image)), transform(image))


def test_level_is_the_value_of_one_of_255():
    level = DeviceTransform(TRANSFORMS["torchvision"]).level()
    assert level.shape == (3, 1, 1)
    known = 1 / 255 / torch.tensor([0.2, 0.3, 0.1], dtype=torch.float64)
    torch.testing.assert_close(level.flatten(), known, rtol=1e-6, atol=0)
    assert DeviceTransform(TRANSFORMS["whole numbers"]).level().unique().tolist() == [1]


class Mine(v1.CenterCrop):
    """Does what only its author knows."""


def own_step(image: Image.Image) -> Image.Image:
    return image


NEAREST = v1.InterpolationMode.NEAREST


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([own_step, v1.ToTensor()], "step <function own_step at "),
        ([Mine(4), v1.ToTensor()], r"step Mine\(size=\(4, 4\)\)"),
        ([v1.Resize(4, NEAREST), v1.ToTensor()], "got 'nearest'"),
        ([v1.RandomApply([v1.CenterCrop(4)]), v1.ToTensor()], "step RandomApply"),
        ([timm_steps.CenterCropOrPad(9, fill=3), v1.ToTensor()], "step CenterCropOrPad"),
    ],
)
def test_unsupported_steps_are_refused_by_name(steps, message):
    with pytest.raises(InvalidArgumentError, match=f"(?s)^decode_on_device.*{message}.*omit decode_on_device"):
        DeviceTransform(v1.Compose(steps))


def test_crops_of_small_images_are_padded_alike():
    transform = v1.Compose([v1.CenterCrop(9), v1.ToTensor()])
    for height, width in ((4, 30), (30, 4), (5, 5)):
        image = image_of(height, width, 3)
        assert torch.equal(DeviceTransform(transform)(as_tensor(image)), transform(image))


def test_the_step_of_open_clip_that_makes_images_rgb_does_nothing():
    def _convert_to_rgb(image: Image.Image) -> Image.Image:
        return image.convert("RGB")

    _convert_to_rgb.__module__ = "open_clip.transform"
    steps = [v1.Resize(12, BICUBIC), v1.CenterCrop(10), _convert_to_rgb, v1.ToTensor()]
    check_close(v1.Compose(steps), [image_of(30, 21, 5)])


TYPED = {tv_tensors.Image: torch.float32, "others": None}


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [v2.CenterCrop(8), v2.ToImage(), v2.ToDtype(TYPED)],
            r"\(3, 8, 8\) and dtype torch.uint8 .* \(3, 8, 8\) and dtype torch.flo",
        ),
        ([v1.Resize(4)], r"\(3, 4, 4\) and dtype torch.uint8 for a tensor, but Image for a PIL image"),
        ([v1.PILToTensor(), v1.ToTensor()], r"48 x 40 pixels \(TypeError: pic should be"),
        ([v1.ToTensor(), v1.Normalize(0.5, 0.0)], r"48 x 40 pixels \(ValueError: std"),
        ([v1.Normalize(0.5, 0.5)], r"48 x 40 pixels \(TypeError"),
    ],
)
def test_transforms_that_differ_from_their_steps_on_tensors_are_refused(steps, message):
    transform = v2.Compose(steps)
    with pytest.raises(InvalidArgumentError, match=f"(?s){message}"):
        DeviceTransform(transform).check(transform)


@pytest.mark.parametrize("wrong", [lambda images: images + 4, lambda images: images.roll(1, -1)])
def test_steps_with_other_values_are_refused(monkeypatch, wrong):
    transform = v1.Compose([v1.CenterCrop(30), v1.PILToTensor()])
    on_device = DeviceTransform(transform)
    on_device.check(transform)
    monkeypatch.setattr(on_device, "_steps", [v1.CenterCrop(30), wrong])
    with pytest.raises(InvalidArgumentError, match=r"returns different values .*; omit decode_on_device"):
        on_device.check(transform)
