"""The unit tests as a stream: groups, sizes of the ID images, formats, and what is wrong with a template."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.generated.unit_test_kinds import UNIT_TESTS, encode
from oodlit.datamodules.generated.unit_test_source import Template, UnitTestSource, unit_test_source, unit_test_stream
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.roles import Role
from tests.datamodules.test_unit_tests import PUBLISHED, photo


def id_source(n: int = 5) -> MemorySource:
    return MemorySource(
        [Sample(f"{i}.jpg", encode(np.asarray(photo(20 + i, 10 + i, i)), "JPEG"), label=i) for i in range(n)]
    )


def test_stream_has_all_tests_as_groups_at_the_sizes_of_id_images():
    stream = unit_test_stream(id_source(), count=3)
    assert stream.role is Role.UNIT_TEST
    assert stream.class_names == tuple(PUBLISHED)
    assert len(stream) == 17 * 3
    samples = list(stream.source.read(0, len(stream)))
    assert [s.group for s in samples] == sorted(list(range(17)) * 3)
    assert all(s.label == -1 for s in samples)
    assert len({s.key for s in samples}) == 17 * 3
    sizes = [decode_image(s.image).size for s in samples]
    assert sizes == sizes[:3] * 17
    assert set(sizes) <= {(20 + i, 10 + i) for i in range(5)}


@given(data=st.data())
def test_any_range_gives_the_same_files(data):
    source = unit_test_stream(id_source(), count=2).source
    start = data.draw(st.integers(0, len(source)))
    stop = data.draw(st.integers(start, len(source)))
    part = [(s.key, s.image) for s in source.read(start, stop)]
    assert part == [(s.key, s.image) for s in ALL][start:stop]


def test_same_pixels_after_pickling():
    source = pickle.loads(pickle.dumps(unit_test_stream(id_source(), count=2).source))
    assert [s.image for s in source.read(0, len(source))] == [s.image for s in ALL]
    wanted = {ALL[3].key, ALL[20].key, "unknown"}
    assert {s.key: s.image for s in source.find(wanted)} == {ALL[i].key: ALL[i].image for i in (3, 20)}


def test_pixel_perm_holds_the_pixels_of_an_id_image():
    source = unit_test_source(id_source(), 4, tests=["pixel_perm"])
    for template, sample in zip(source.templates, source.read(0, 4), strict=True):
        original = np.asarray(decode_image(source.images.samples[template.position].image)).reshape(-1, 3)
        permuted = np.asarray(decode_image(sample.image)).reshape(-1, 3)
        assert sorted(map(tuple, permuted)) == sorted(map(tuple, original))


def test_formats_follow_the_list():
    assert {t.format for t in unit_test_source(id_source(), 5).templates} == {"PNG"}
    assert {t.format for t in unit_test_source(id_source(), 5, format=None).templates} == {"JPEG"}
    pictures = MemorySource([Sample("a", photo())])
    assert unit_test_source(pictures, 2, format=None).templates == (Template(13, 7, "PNG", 0),) * 2
    (sample,) = UnitTestSource([Template(9, 8, "JPEG")], tests=["uni"]).read(0, 1)
    assert sample.key == "uni/0000%2Ejpg"
    assert sample.image[:2] == b"\xff\xd8"


@given(n=st.integers(1, 11), count=st.integers(1, 30), seed=st.integers(0, 99))
def test_every_id_image_serves_before_one_serves_twice(n, count, seed):
    source = unit_test_source(id_source(n), count, seed=seed, tests=["pixel_perm"])
    uses = Counter(source.images.samples[t.position].key for t in source.templates)
    assert len(source.templates) == count
    assert len(uses) == min(n, count)
    assert max(uses.values()) - (min(uses.values()) if len(uses) == n else 0) <= 1
    assert [(t.width, t.height) for t in source.templates] == [
        decode_image(source.images.samples[t.position].image).size for t in source.templates
    ]


def test_bad_templates_and_images():
    with pytest.raises(InvalidArgumentError, match="0 templates"):
        UnitTestSource([])
    with pytest.raises(InvalidArgumentError, match="'pixel_perm' permutes the pixels of ID images"):
        UnitTestSource([Template(3, 3)])
    with pytest.raises(UnknownNameError, match="'GIF'"):
        UnitTestSource([Template(3, 3, "GIF")], tests=["uni"])
    with pytest.raises(UnknownNameError, match="unknown unit test 'blob'; did you mean 'blobs'"):
        UnitTestSource([Template(3, 3)], tests=["blob"])
    with pytest.raises(InvalidArgumentError, match="expected at least 1 image per test, got count=0"):
        unit_test_source(id_source(), 0)
    with pytest.raises(DataError, match="key 'a': undecodable"):
        unit_test_source(MemorySource([Sample("a", b"no image", origin="shard x")]), 1)
    with pytest.raises(InvalidArgumentError, match="expected an image file or a PIL image, got a tensor"):
        unit_test_source(MemorySource([Sample("a", torch.zeros(3, 2, 2))]), 1)


def test_a_broken_id_image_becomes_the_error_of_its_sample():
    half = encode(np.asarray(photo(50, 50)), "JPEG")[:600]
    source = UnitTestSource(
        [Template(5, 5, position=0)], images=MemorySource([Sample("a", half)]), tests=["white", "pixel_perm"]
    )
    white, permuted = source.read(0, 2)
    assert white.error is None
    assert "ID image 'a'" in permuted.error


ALL = tuple(unit_test_stream(id_source(), count=2).source.read(0, 34))


def test_a_data_module_draws_them_for_its_id_images() -> None:
    samples = [Sample(str(i), Image.new("RGB", (5 + i, 4))) for i in range(3)]
    inside = Stream("val", Role.ID, MemorySource(samples))
    data = OODDataModule([inside], unit_tests=2)
    assert [(stream.name, stream.role, len(stream)) for stream in data.streams] == [
        ("val", Role.ID, 3),
        ("unit_tests", Role.UNIT_TEST, 34),
    ]
    assert data.streams[1].class_names == tuple(UNIT_TESTS)
    with pytest.raises(InvalidArgumentError, match="'unit_tests' occurs twice"):
        OODDataModule([inside, data.streams[1]], unit_tests=2)
    with pytest.raises(InvalidArgumentError, match="got count=0"):
        OODDataModule([inside], unit_tests=0)
