"""Inputs that cannot be shown have no thumbnail but a reason, and do not fail a run."""

import warnings
from typing import Any

import pytest
import torch
from PIL import Image

from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream
from oodlit.datamodules.pictures import NoPictureWarning
from oodlit.errors import DataError
from oodlit.roles import Role


def data(*images: Any, **options: Any) -> OODDataModule:
    samples = [Sample(str(i), image) for i, image in enumerate(images)]
    return OODDataModule([Stream("val", Role.ID, MemorySource(samples))], **options)


NONE = {
    "2 channels": torch.rand(2, 4, 4),
    "4 channels": torch.rand(4, 4, 4),
    "12 channels": torch.rand(12, 4, 4),
    "channels last": torch.rand(4, 4, 3),
    "a volume": torch.rand(1, 4, 4, 4),
    "a row": torch.rand(16),
    "a number": torch.tensor(1.0),
    "complex": torch.zeros(3, 4, 4, dtype=torch.complex64),
    "NaN": torch.full((3, 4, 4), float("nan")),
    "infinite": torch.full((1, 4, 4), float("inf")),
    "empty": torch.zeros(3, 0, 4),
    "no image file": b"rubbish",
    "sparse": torch.zeros(3, 4, 4).to_sparse(),
}


@pytest.mark.parametrize("case", NONE)
def test_unviewable_images_do_not_affect_others(case: str) -> None:
    with pytest.warns(
        NoPictureWarning, match=r"1 of 2 images cannot be shown as thumbnails \(first: 'val/0', "
    ) as told:
        images = data(NONE[case], torch.zeros(3, 4, 4)).read_images(["val/0", "val/1"])
    assert set(images) == {"val/1"}
    assert len(told) == 1


SHOWN = {
    "RGB": (torch.ones(3, 2, 2), (255, 255, 255)),
    "grey": (torch.ones(1, 2, 2), (255, 255, 255)),
    "without channels": (torch.ones(2, 2), (255, 255, 255)),
    "uint8": (torch.full((3, 2, 2), 7, dtype=torch.uint8), (7, 7, 7)),
    "bool": (torch.ones(1, 2, 2, dtype=torch.bool), (255, 255, 255)),
    "half": (torch.full((3, 2, 2), 0.5, dtype=torch.float16), (128, 128, 128)),
    "bfloat16": (torch.ones(3, 2, 2, dtype=torch.bfloat16), (255, 255, 255)),
    "double": (torch.ones(3, 2, 2, dtype=torch.float64), (255, 255, 255)),
    "with gradients": (torch.ones(3, 2, 2, requires_grad=True), (255, 255, 255)),
    "normalised": (torch.tensor([[[-2.0, 2.0]]]), (0, 0, 0)),
    "integers": (torch.tensor([[[-500, 500]]]), (0, 0, 0)),
    "constant": (torch.full((3, 2, 2), 9.0), (0, 0, 0)),
    "large": (torch.tensor([[[1e30, -1e30]]]), (255, 255, 255)),
    "PIL grey": (Image.new("L", (2, 2), 9), (9, 9, 9)),
}


@pytest.mark.parametrize("case", SHOWN)
def test_viewable_images(case: str) -> None:
    image, pixel = SHOWN[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = data(image).read_images(["val/0"])["val/0"]
    assert found.mode == "RGB"
    assert found.getpixel((0, 0)) == pixel


def test_a_failing_decoder_is_a_reason() -> None:
    def broken(_: bytes) -> Image.Image:
        raise ZeroDivisionError("no")

    with pytest.warns(NoPictureWarning, match="ZeroDivisionError: no"):
        assert data(b"...", decode=broken).read_images(["val/0"]) == {}


def test_an_unknown_key_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(DataError, match=r"keys .* not found"):
        data(torch.zeros(3, 1, 1)).read_images(["val/9"])
