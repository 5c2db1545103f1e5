"""Pictures of annotated objects are identified by what is in them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from oodlit import Role
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.stream_identity import identity, other_fact
from oodlit.objects.files.annotations import parse_annotations
from oodlit.objects.files.picture_source import PictureSource


def source(folder: Path, *, seed: int, orientation=None) -> PictureSource:
    folder.mkdir()
    values = np.random.default_rng(seed).integers(256, size=(4, 8, 8, 3), dtype=np.uint8)
    for place, pixels in enumerate(values):
        Image.fromarray(pixels).save(folder / f"{place}.png")
    images = [{"id": place, "file_name": f"{place}.png", "width": 8, "height": 8} for place in range(4)]
    content = {"images": images, "annotations": [], "categories": []}
    return PictureSource(parse_annotations(content, "near", folder / "near.json"), folder, orientation)


def test_other_pictures_of_the_same_names_are_other_data(tmp_path: Path) -> None:
    for orientation in (None, "stored"):
        made = [
            source(tmp_path / f"{n}-{orientation}", seed=seed, orientation=orientation)
            for n, seed in enumerate([0, 0, 1])
        ]
        one, same, other = (identity(Stream("near", Role.OOD, pictures)) for pictures in made)
        assert other_fact(one, same) == ""
        assert other_fact(one, other) == "sample"


def test_pictures_are_found_and_picked_by_position(tmp_path: Path) -> None:
    pictures = source(tmp_path / "set", seed=0)
    assert [sample.key for sample in pictures.pick([1, 3])] == ["1", "3"]
    assert [sample.key for sample in pictures.find({"2"})] == ["2"]
    assert torch.tensor([len(sample.image) for sample in pictures.read(0, 9)]).gt(0).sum() == 4
