"""Resizing on a device gives Pillow's pixels, all of them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from oodlit.datamodules.device import resize as module
from oodlit.datamodules.device.resize import FILTERS, resize

PILLOW = {name: Image.Resampling[name.upper()] for name in FILTERS}


def by_pillow(image: np.ndarray, height: int, width: int, filter: str) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((width, height), PILLOW[filter]))


def by_us(image: np.ndarray, height: int, width: int, filter: str) -> np.ndarray:
    return resize(torch.from_numpy(image).permute(2, 0, 1), height, width, filter).permute(1, 2, 0).numpy()


sides = st.integers(1, 70)


@pytest.mark.parametrize("filter", FILTERS)
@given(before=st.tuples(sides, sides), after=st.tuples(sides, sides), seed=st.integers(0, 99), extreme=st.booleans())
def test_every_pixel_is_pillows(filter, before, after, seed, extreme):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (*before, 3), dtype=np.uint8)
    if extreme:  # the negative lobes overshoot
        image = np.where(image > 127, 255, 0).astype(np.uint8)
    assert np.array_equal(by_us(image, *after, filter), by_pillow(image, *after, filter))


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize(("before", "after"), [((375, 500), (256, 341)), ((1200, 7), (224, 8)), ((3, 900), (9, 256))])
def test_usual_sizes(filter, before, after):
    image = np.random.default_rng(0).integers(0, 256, (*before, 3), dtype=np.uint8)
    assert np.array_equal(by_us(image, *after, filter), by_pillow(image, *after, filter))


def test_images_of_a_size_together_and_few_at_a_time(monkeypatch):
    images = torch.randint(0, 256, (4, 3, 40, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    alone = torch.stack([resize(image, 20, 30, "bicubic") for image in images])
    for most in (1, 3 * 40 * 30 * 9, 2**30):
        monkeypatch.setitem(module._MOST_VALUES, "cpu", most)
        assert torch.equal(resize(images, 20, 30, "bicubic"), alone)
