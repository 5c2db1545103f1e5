"""Label subset and mask, overlap between sets, preprocessing of the backbone."""

import numpy as np
import pytest
import timm.data
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from oodlit.datamodules.pool import DuplicateImageWarning, PooledSource, pooled_stream
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import InvalidArgumentError
from oodlit.metrics.class_subsets import subset_predictions
from oodlit.roles import Role

# Label subset and logits mask


def test_label_subset_and_logits_mask():
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0, 5.0]])
    assert subset_predictions(logits, (0, 2, 3), protocol="masked").tolist() == [0]
    assert subset_predictions(logits, (0, 2, 3), protocol="unmasked").tolist() == [4]


@given(seed=st.integers(0, 2**31), subset=st.sets(st.integers(0, 9), min_size=1))
def test_masked_predictions_are_the_best_of_the_subset(seed, subset):
    logits = torch.randn(5, 10, generator=torch.Generator().manual_seed(seed))
    masked = subset_predictions(logits, tuple(subset), protocol="masked")
    expected = [max(subset, key=lambda c: row[c].item()) for row in logits]
    assert masked.tolist() == expected
    whole = subset_predictions(logits, tuple(range(10)), protocol="masked")
    assert torch.equal(whole, subset_predictions(logits, tuple(subset), protocol="unmasked"))


def test_bad_protocols():
    logits = torch.zeros(1, 3)
    with pytest.raises(InvalidArgumentError, match="protocol to be 'unmasked' or 'masked', got 'mask'"):
        subset_predictions(logits, (0,), protocol="mask")
    for labels, wrong in (
        ((), "none$"),
        ((1, 0, 0), r".*\(\[0\]\)"),
        ((0, 3), r".*\(\[3\]\)"),
        ((-1, 1), r".*\(\[-1\]\)"),
    ):
        text = f"distinct class indices from 0 to 2, got {wrong}"
        with pytest.raises(InvalidArgumentError, match=text):
            subset_predictions(logits, labels, protocol="masked")


# Overlap between OOD sets


def stream(name: str, images: str, role: Role = Role.OOD) -> Stream:
    return Stream(name, role, MemorySource([Sample(f"{i}%2Ejpg", c.encode()) for i, c in enumerate(images)]))


def test_overlap_two_sets_of_three_that_share_one_file():
    with pytest.warns(
        DuplicateImageWarning,
        match=r"data set 'pool': 1 image \(first: 'b/2\.jpg'\) repeats earlier images; 5 images remain",
    ):
        pool = pooled_stream("pool", [stream("a", "xyz"), stream("b", "uvx")])
    samples = list(pool.source.read(0, len(pool)))
    assert len(pool) == 5
    assert [s.key for s in samples] == ["a/0%2Ejpg", "a/1%2Ejpg", "a/2%2Ejpg", "b/0%2Ejpg", "b/1%2Ejpg"]
    assert [s.group for s in samples] == [0, 0, 0, 1, 1]
    assert pool.class_names == ("a", "b")


@given(
    texts=st.lists(st.text("abcdef", min_size=1), min_size=1, max_size=3),
    start=st.integers(0, 9),
    stop=st.integers(0, 9),
)
def test_the_pool_holds_every_content_once_in_any_range(texts, start, stop):
    source = PooledSource([stream(str(i), text) for i, text in enumerate(texts)])
    images = [s.image for s in source.read(0, len(source))]
    assert sorted(images) == sorted({c.encode() for text in texts for c in text})
    assert len(source) + len(source.repeated) == sum(map(len, texts))
    assert [s.image for s in source.read(start, stop)] == images[start:stop]


def test_unreadable_images_stay_apart():
    broken = [Sample(str(i), b"", error="gone") for i in range(2)]
    assert len(PooledSource([Stream("a", Role.OOD, MemorySource(broken))])) == 2


def test_pools_that_make_no_sense():
    with pytest.raises(InvalidArgumentError, match="at least one stream"):
        PooledSource([])
    with pytest.raises(InvalidArgumentError, match="got ood, shift"):
        pooled_stream("pool", [stream("a", "x"), stream("b", "y", Role.SHIFT)])
    with pytest.raises(InvalidArgumentError, match=r"data set 'a' returns decoded images"):
        PooledSource([Stream("a", Role.OOD, MemorySource([Sample("0", Image.new("RGB", (1, 1)))]))])


# Preprocessing of the backbone


@pytest.mark.parametrize("size", [(500, 375), (300, 300), (384, 384), (30, 700)])
def test_preprocessing_not_that_of_the_backbone(size):
    """3 x 384 x 384, crop 1.0, bicubic, mean .5, std .5: 384 x 384, no padding, white = 1.0."""
    config = {
        "input_size": (3, 384, 384),
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
    }
    transform = timm.data.create_transform(**config, is_training=False)
    value = transform(Image.fromarray(np.full((*size[::-1], 3), 255, np.uint8)))
    assert value.shape == (3, 384, 384)
    assert torch.all(value == 1.0)
