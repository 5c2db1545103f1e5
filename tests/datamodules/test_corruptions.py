"""ImageNet-C on the fly: seeded per image, the 224-pixel protocol, labels kept."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor

from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.generated.corruptions import CORRUPTIONS, CorruptedSource, corrupt, corrupted_stream, prepare
from oodlit.datamodules.generated.unit_test_kinds import encode
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.datamodules.transforms import without_resize
from oodlit.errors import DataError, InvalidArgumentError, MissingExtraError, UnknownNameError
from oodlit.roles import Role

library = pytest.importorskip("imagecorruptions", reason="needs the extra 'corruptions'")


def photo(seed: int = 0, width: int = 60, height: int = 50) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(seed).integers(0, 40, (height, width, 3))
    return Image.fromarray((np.stack([x * 3, y * 4, x + y], axis=2) + noise).clip(0, 255).astype(np.uint8))


def id_source(n: int = 3) -> MemorySource:
    return MemorySource(
        [Sample(f"val/{i}%2EJPEG", encode(np.asarray(photo(i)), "JPEG"), label=10 + i) for i in range(n)]
    )


def test_our_list_is_the_library_s():
    assert tuple(library.get_corruption_names("all")) == CORRUPTIONS


@pytest.mark.filterwarnings("ignore")  # the library's own
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_every_kind_is_a_function_of_key_and_seed_alone(kind):
    image = prepare(photo())
    np.random.seed(1)
    first = corrupt(image, kind, 3, key="a")
    state = np.random.random()
    np.random.seed(2)
    again = corrupt(image, kind, 3, key="a")
    np.random.seed(1)
    assert np.random.random() == state  # the global generator is left as it was
    assert np.array_equal(first, again)
    assert first.shape == (224, 224, 3)
    assert not np.array_equal(first, np.asarray(image))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["gaussian_noise", "impulse_noise", "glass_blur"])
def test_key_and_seed_matter(kind):
    image = prepare(photo())
    first = corrupt(image, kind, 2, key="a")
    assert not np.array_equal(first, corrupt(image, kind, 2, key="b"))
    assert not np.array_equal(first, corrupt(image, kind, 2, key="a", seed=1))


def test_stream_keeps_labels_and_names_groups():
    stream = corrupted_stream(id_source(), kinds=["contrast", "brightness"], severities=[1, 5])
    assert stream.role is Role.SHIFT
    assert stream.prepared
    assert stream.class_names == ("contrast/1", "contrast/5", "brightness/1", "brightness/5")
    samples = list(stream.source.read(0, len(stream)))
    assert [s.label for s in samples] == [10, 11, 12] * 4
    assert [s.group for s in samples] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert samples[3].key == "contrast/5/val/0%2EJPEG"
    assert len({s.key for s in samples}) == len(stream) == 12
    assert {decode_image(s.image).size for s in samples} == {(224, 224)}


SOURCE = CorruptedSource(id_source(), kinds=["gaussian_noise", "contrast"], severities=[1, 2], quality=None)


@given(data=st.data())
@settings(max_examples=10)
def test_any_range_gives_the_same_images(data):
    everything = list(SOURCE.read(0, len(SOURCE)))
    start = data.draw(st.integers(0, len(SOURCE)))
    stop = data.draw(st.integers(start, len(SOURCE)))
    expected = [(s.key, s.image) for s in everything][start:stop]
    assert [(s.key, s.image) for s in SOURCE.read(start, stop)] == expected


def test_a_broken_image_stays_an_error():
    source = CorruptedSource(MemorySource([Sample("a", b"x"), Sample("b", b"", error="gone")]), kinds=["fog"])
    first, second = source.read(0, 2)
    assert "undecodable" in first.error
    assert second.error.endswith(": gone")


def test_bad_settings(monkeypatch):
    with pytest.raises(UnknownNameError, match="unknown corruption 'gausian_noise'; did you mean 'gaussian_noise'"):
        CorruptedSource(id_source(), kinds=["gausian_noise"])
    with pytest.raises(InvalidArgumentError, match=r"fog.: expected severity .* got 6"):
        CorruptedSource(id_source(), kinds=["fog"], severities=[6])
    with pytest.raises(
        InvalidArgumentError, match="expected kinds and severities to be non-empty and without repetition"
    ):
        CorruptedSource(id_source(), kinds=["fog", "fog"])
    with pytest.raises(InvalidArgumentError, match="at least 32 x 32 pixels, got 31 x 40"):
        corrupt(Image.new("RGB", (31, 40)), "fog", 1)
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'oodlit\[corruptions\]'"):
        CorruptedSource(id_source())


# Preprocessing and lossy storage (ImageNet-C)


def stripes() -> Image.Image:
    return Image.fromarray(np.repeat(np.array([0, 255] * 112, np.uint8)[:, None, None], 224, 1).repeat(3, 2))


def imagenet_transform(size: int = 224) -> Compose:
    return Compose([Resize(size * 8 // 7), CenterCrop(size), ToTensor(), Normalize([0.5] * 3, [0.5] * 3)])


def test_224_protocol_has_no_resize_and_crop():
    deviation = {
        name: float(transform(stripes()).std(correction=0)) * 127.5
        for name, transform in [("whole", imagenet_transform()), ("224", without_resize(imagenet_transform()))]
    }
    assert deviation["224"] == pytest.approx(127.5, abs=0.01)
    assert deviation["whole"] == pytest.approx(72.9, abs=3)  # what resizing would make of it


def test_other_sizes_take_the_whole_transform():
    prepared = without_resize(imagenet_transform(384))
    assert prepared(stripes()).shape == (3, 384, 384)
    assert torch.equal(prepared(photo()), imagenet_transform(384)(photo()))
    assert "Normalize" in repr(prepared)


def test_a_transform_without_a_crop_cannot_follow_the_protocol():
    with pytest.raises(InvalidArgumentError, match="expected exactly one center crop"):
        without_resize(ToTensor())


def test_the_data_module_follows_the_protocol_for_prepared_streams():
    source = MemorySource([Sample("a", encode(np.asarray(stripes())))])
    streams = [Stream("val", Role.ID, source), Stream("c", Role.SHIFT, source, prepared=True)]
    whole, prepared = (
        next(iter(loader))["image"]
        for loader in OODDataModule(streams, transform=imagenet_transform()).predict_dataloader()
    )
    assert prepared.abs().min() == 1
    assert whole.abs().min() < 1


def test_prepare_is_the_published_geometry():
    assert prepare(Image.new("RGB", (500, 375))).size == (224, 224)
    assert prepare(Image.new("RGB", (10, 300))).size == (224, 224)
    with pytest.raises(DataError, match="empty"):
        decode_image(b"")
