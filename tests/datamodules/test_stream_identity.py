"""What makes two streams the same data: names, sizes, labels, settings, and what is in sampled images."""

import random
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import Subset

from oodlit import Role
from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.sources import DatasetSource, FileSource, MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.datamodules.stream_identity import decoder_of, identity, other_fact
from oodlit.datamodules.thinning import thinned


def write_pictures(folder: Path, *, seed: int = 0, size: int = 8, number: int = 5) -> list[Path]:
    folder.mkdir(parents=True)
    values = np.random.default_rng(seed).integers(256, size=(number, size, size, 3), dtype=np.uint8)
    paths = [folder / f"{place}.png" for place in range(number)]
    for path, pixels in zip(paths, values, strict=True):
        Image.fromarray(pixels).save(path)
    return paths


def facts(source) -> dict:
    return identity(Stream("set", Role.OOD, source))


def test_folders_with_equal_names_and_other_pictures_differ(tmp_path):
    light, heavy = (FileSource(write_pictures(tmp_path / f"fog/{level}", seed=level)) for level in (1, 5))
    assert light.keys == heavy.keys
    assert other_fact(facts(light), facts(heavy)) == "sample"


def test_a_moved_folder_is_the_same(tmp_path):
    paths = write_pictures(tmp_path / "before")
    before = facts(FileSource(paths))
    (tmp_path / "before").rename(tmp_path / "after")
    assert other_fact(before, facts(FileSource(sorted((tmp_path / "after").iterdir())))) == ""


def test_resized_copies_differ(tmp_path):
    small, large = (FileSource(write_pictures(tmp_path / str(size), size=size)) for size in (8, 9))
    assert other_fact(facts(small), facts(large)) == "sample"


def test_the_size_of_every_file_counts(tmp_path):
    paths = write_pictures(tmp_path / "many", size=2, number=200)
    before = facts(FileSource(paths))
    for place, path in enumerate(paths):
        content = path.read_bytes()
        path.write_bytes(content + b"more")
        assert other_fact(before, facts(FileSource(paths))) == "sample", place
        path.write_bytes(content)
    assert other_fact(before, facts(FileSource(paths))) == ""


def test_a_thinned_source_sees_its_files(tmp_path):
    streams = [Stream("set", Role.OOD, FileSource(write_pictures(tmp_path / str(seed), seed=seed))) for seed in (0, 1)]
    one, other = (identity(thinned(stream, 2)) for stream in streams)
    assert other_fact(one, other) == "sample"


class Pictures:
    """A map-style data set, as torchvision's `ImageFolder`."""

    def __init__(self, *, seed=0, transform=None, targets=(0, 1, 2), target_transform=None):
        self.values = np.random.default_rng(seed).integers(256, size=(3, 4, 4, 3), dtype=np.uint8)
        self.transform, self.targets, self.target_transform = transform, list(targets), target_transform

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        image, target = Image.fromarray(self.values[index]), self.targets[index]
        image = self.transform(image) if self.transform else image
        return image, self.target_transform(target) if self.target_transform else target


def turned(image):
    return image.rotate(90)


def at_random(image):
    return image.point(lambda value: value ^ random.randrange(256))


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"transform": turned},
        {"transform": ImageOps.mirror},
        {"targets": (0, 2, 1)},
        {"target_transform": lambda target: 2 - target},
    ],
)
def test_data_sets_with_other_pictures_transforms_or_labels_differ(changed):
    assert other_fact(facts(DatasetSource(Pictures())), facts(DatasetSource(Pictures()))) == ""
    assert other_fact(facts(DatasetSource(Pictures())), facts(DatasetSource(Pictures(**changed)))) == "sample"


def test_subsets_of_other_items_differ():
    one, other = (DatasetSource(Subset(Pictures(), places)) for places in ([0, 1], [0, 2]))
    assert other_fact(facts(one), facts(other)) == "sample"


def test_transforms_that_draw_at_random_are_not_compared():
    source = DatasetSource(Pictures(transform=at_random))
    assert other_fact(facts(source), facts(source)) == ""


class Coarse:
    """A decoder or transform with a setting, whose repr hides it; `calls` changes whenever it is called."""

    def __init__(self, levels, *, draws=False):
        self.levels, self.draws, self.calls = levels, draws, 0

    def __call__(self, image):
        image = at_random(image) if self.draws else image
        return ImageOps.posterize(image, self.levels)

    def decode(self, data):
        return self(decode_image(data))


class Counting(Coarse):
    def __call__(self, image):
        self.calls += 1
        return super().__call__(image)


@pytest.mark.parametrize("changed", [{"targets": (0, 2, 1)}, {"transform": Coarse(3, draws=True)}])
def test_settings_are_compared_where_images_are_random(changed):
    usual = {"transform": Coarse(4, draws=True)}
    one, same, other = (DatasetSource(Pictures(**(usual | more))) for more in ({}, {}, changed))
    assert other_fact(facts(one), facts(same)) == ""
    assert other_fact(facts(one), facts(other)) == "sample"


def test_objects_that_count_their_calls_stay_the_same():
    source = DatasetSource(Pictures(transform=Counting(4)))
    assert other_fact(facts(source), facts(source)) == ""


class Labels:
    """Something of a data set's own."""


@pytest.mark.parametrize(
    "value",
    [[[0], [0, 1], [2]], [None, 1, "a"], {"a": [1]}, Labels(), torch.ones(3, requires_grad=True), lambda: [0, 1, 2]],
)
def test_data_sets_may_have_any_attribute(value):
    one, other = Pictures(), Pictures()
    one.labels = other.labels = value
    one.dataset = one
    assert other_fact(facts(DatasetSource(one)), facts(DatasetSource(one))) == ""
    assert facts(DatasetSource(one))["sample"]
    if isinstance(value, list | dict):
        other.labels = [[0], [0, 2], [2]]
        assert other_fact(facts(DatasetSource(one)), facts(DatasetSource(other))) == "sample"


@pytest.mark.parametrize("place", range(0, 300, 7))
def test_every_sample_in_memory_counts(place):
    samples = [Sample(str(i), torch.full((3, 2, 2), float(i))) for i in range(300)]
    before = facts(MemorySource(samples))
    samples[place] = Sample(str(place), torch.full((3, 2, 2), place + 0.5))
    assert other_fact(before, facts(MemorySource(samples))) == "sample"


class OwnSource:
    """A source of the user's that has no `content`."""

    def __init__(self, offset):
        self.offset = offset

    def __len__(self):
        return 10

    def read(self, start, stop):
        return (Sample(str(place), bytes([place + self.offset])) for place in range(start, stop))


def test_custom_sources_are_identified_by_their_first_middle_and_last_sample():
    assert other_fact(facts(OwnSource(0)), facts(OwnSource(0))) == ""
    assert other_fact(facts(OwnSource(0)), facts(OwnSource(1))) == "sample"


class BrokenSource(OwnSource):
    def read(self, start, stop):
        raise RuntimeError("no such server")


def test_a_source_that_cannot_be_read_is_left_to_the_run():
    assert facts(BrokenSource(0))["sample"] == ""


def test_records_of_earlier_versions_are_compared_in_what_they_have(tmp_path):
    now = facts(FileSource(write_pictures(tmp_path / "set")))
    earlier = {fact: value for fact, value in now.items() if fact != "sample"}
    assert other_fact(earlier, now) == ""
    assert other_fact(earlier | {"images": 4}, now) == "images"


def test_an_unreadable_file_is_left_to_the_run(tmp_path):
    paths = write_pictures(tmp_path / "set")
    before = facts(FileSource(paths))
    paths[0].unlink()
    assert other_fact(before, facts(FileSource(paths))) == "sample"
    shutil.rmtree(tmp_path / "set")
    assert facts(FileSource(paths))["sample"]


def coarse(data, *, levels=4):
    return ImageOps.posterize(decode_image(data), levels)


def within(function):
    def decode(data):
        return function(decode_image(data))

    return decode


def test_decoders_have_names_that_differ():
    every = [decode_image, partial(decode_image, reduce_to=8), partial(decode_image, reduce_to=16), coarse]
    every += [
        partial(coarse, levels=2),
        lambda data: decode_image(data).quantize(),
        lambda data: decode_image(data).convert("L"),
    ]
    every += [Coarse(4).decode, Coarse(3).decode, partial(Coarse.decode, Coarse(4))]
    every += [partial(Coarse.decode, Coarse(3)), within(ImageOps.mirror), within(ImageOps.flip)]
    every += [within(lambda image: image), within(lambda image: image.rotate(90))]
    names = [decoder_of(decode) for decode in every]
    assert len(set(names)) == len(names)
    assert names == [decoder_of(decode) for decode in every]
    assert names[0] == decoder_of(partial(decode_image, max_pixels=10)) == ""
