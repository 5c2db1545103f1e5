"""ImageNetBenchmark: sets from shards, folders and timm's layout; missing sets are errors before anything runs."""

import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor

import oodlit.datamodules as public
from oodlit.base.known_classes.imagenet import class_names, wnids
from oodlit.datamodules import ImageNetBenchmark
from oodlit.datamodules.generated.unit_test_kinds import encode
from oodlit.datamodules.generated.unit_test_source import UnitTestListing, UnitTestSource
from oodlit.datamodules.published_sets import build_set, list_set
from oodlit.datamodules.sets import describe
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import DataError, InvalidArgumentError, MissingExtraError, UnknownNameError
from oodlit.roles import Role

TRANSFORM = Compose([Resize(36), CenterCrop(32), ToTensor(), Normalize([0.5] * 3, [0.5] * 3)])


def picture(number: int) -> bytes:
    return encode(np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8), "JPEG")


def tree(folder: Path, paths: list[str]) -> Path:
    for number, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(picture(number))
    return folder


def timm_shards(folder: Path, split: str, lengths: list[int], digits: int) -> None:
    """Shards as published for timm: jpg, cls, json, and _info.json with the lengths."""
    folder.mkdir(exist_ok=True)
    names, number = [], 0
    for shard, length in enumerate(lengths):
        names.append(f"imagenet1k-{split}-{shard:0{digits}d}.tar")
        with tarfile.open(folder / names[-1], "w") as tar:
            for _ in range(length):
                label = number * 7 % 1000
                meta = {"label": label, "width": 50, "height": 40, "filename": f"{wnids()[label]}_{number}.JPEG"}
                for field, data in [
                    ("jpg", picture(number)),
                    ("cls", str(label).encode()),
                    ("json", json.dumps(meta).encode()),
                ]:
                    info = tarfile.TarInfo(f"{number:08d}.{field}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
                number += 1
    path = folder / "_info.json"
    splits = json.loads(path.read_text())["splits"] if path.exists() else {}
    splits[split] = {"name": split, "num_samples": sum(lengths), "filenames": names, "shard_lengths": lengths}
    path.write_text(json.dumps({"splits": splits}))


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("root")
    source = tmp_path_factory.mktemp("source")
    tree(source / "val", [f"{wnid}/{wnid}_{i}.JPEG" for wnid in wnids()[:4] for i in range(2)])
    build_set(describe("imagenet_val"), source / "val", root / "imagenet_val", complete=False)
    tree(root / "ninco", [f"NINCO/NINCO_OOD_classes/{name}/{name}_000_x.jpg" for name in ("donuts", "high heels")])
    tree(root / "imagenet_r", [f"imagenet-r/{wnids()[i]}/art_{i}.jpg" for i in (1, 2, 4)])
    return root


def test_sets_from_shards_and_folders(root):
    data = ImageNetBenchmark(
        root, ["ninco", "unit_tests", "imagenet_r"], transform=TRANSFORM, complete=False, per_test=2
    )
    assert [(s.name, s.role, len(s)) for s in data.streams] == [
        ("imagenet_val", Role.ID, 8),
        ("ninco", Role.OOD, 2),
        ("unit_tests", Role.UNIT_TEST, 34),
        ("imagenet_r", Role.SHIFT, 3),
    ]
    assert data.stream("imagenet_val").class_names == class_names()
    assert data.stream("ninco").class_names == tuple(describe("ninco").classes)
    batches = [next(iter(loader)) for loader in data.predict_dataloader()]
    assert all(b["image"].shape[1:] == (3, 32, 32) for b in batches)
    assert batches[0]["label"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert batches[3]["label"].tolist() == [1, 2, 4]
    names = data.stream("ninco").class_names
    assert [names[g] for g in batches[1]["group"].tolist()] == ["donuts", "high heels"]


def test_timm_shards_as_they_are(tmp_path):
    timm_shards(tmp_path, "train", [5, 3], 4)
    timm_shards(tmp_path, "validation", [2, 4], 2)
    data = ImageNetBenchmark(tmp_path, ["unit_tests"], transform=TRANSFORM, complete=False, per_test=1)
    assert [(s.name, s.role, len(s)) for s in data.streams][:2] == [
        ("imagenet_train", Role.TRAIN, 8),
        ("imagenet_val", Role.ID, 6),
    ]
    labels = torch.cat([b["label"] for b in data.predict_dataloader()[0]])
    assert labels.tolist() == [i * 7 for i in range(8)]
    assert len(ImageNetBenchmark(tmp_path, [], train=False, complete=False).streams) == 1


def test_corruptions_are_generated_where_they_are_not_there(root, monkeypatch):
    pytest.importorskip("imagecorruptions", reason="needs the extra 'corruptions'")
    data = ImageNetBenchmark(root, ["imagenet_c"], complete=False)
    stream = data.stream("imagenet_c")
    assert len(stream) == 8 * 75
    assert stream.prepared
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(MissingExtraError, match=r"ImageNet-C on the fly requires .*oodlit\[corruptions\]"):
        ImageNetBenchmark(root, ["imagenet_c"], complete=False)


def test_generated_unit_tests_equal_those_from_shards(root, tmp_path):
    """The same keys and files, whether drawn in the run or built before from the shards of the ID images."""
    drawn = ImageNetBenchmark(root, ["unit_tests"], complete=False, per_test=400).stream("unit_tests")
    listing = list_set(describe("unit_tests"), root / "imagenet_val")
    assert len(listing) == len(drawn) == 6800
    assert listing.class_names == drawn.class_names
    few = UnitTestListing(UnitTestSource(listing.source.templates[:2], images=listing.source.images))
    info = build_set(describe("unit_tests"), few, tmp_path / "u", shard_size=7)
    assert info.extra["format"] == ["PNG"]
    stream = ImageNetBenchmark(root, ["unit_tests"], complete=False, locations={"unit_tests": tmp_path / "u"}).stream(
        "unit_tests"
    )
    assert stream.class_names == drawn.class_names
    built = [(s.key, s.image, s.group) for s in stream.source.read(0, 34)]
    assert built == [(s.key, s.image, s.group) for p in range(17) for s in drawn.source.read(400 * p, 400 * p + 2)]


def test_own_streams_and_other_places(root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (root / "ninco" / "NINCO").rename(tmp_path / "elsewhere" / "NINCO")
    try:
        own = Stream("mine", Role.OOD, MemorySource([Sample("a", Image.new("RGB", (40, 40)))]))
        data = ImageNetBenchmark(
            root, ["ninco"], locations={"ninco": tmp_path / "elsewhere"}, streams=[own], complete=False
        )
        assert [s.name for s in data.streams] == ["imagenet_val", "ninco", "mine"]
    finally:
        (tmp_path / "elsewhere" / "NINCO").rename(root / "ninco" / "NINCO")


def test_what_is_missing_is_said(root, tmp_path):
    with pytest.raises(
        DataError, match=r"imagenet_val \(.*\) does not exist; '.*' contains nothing\. Build this set with"
    ):
        ImageNetBenchmark(tmp_path / "nothing", ["ninco"])
    with pytest.raises(DataError, match=r"published set .expected 50000 images, got 8"):
        ImageNetBenchmark(root, ["ninco"])
    with pytest.raises(
        DataError,
        match=r"ninco: expected 5879 images, got 2; no images in 62 of 64 classes \(first: 'Caracal caracal caracal', ",
    ):
        ImageNetBenchmark(root, ["ninco"], locations={"imagenet_val": fifty_thousand(tmp_path)})
    with pytest.raises(DataError, match=r"textures \(.*\) does not exist; .* contains imagenet_r, imagenet_val, ninco"):
        ImageNetBenchmark(root, ["textures"], complete=False)
    with pytest.raises(DataError, match=r"imagenet_train \(.*\) does not exist"):
        ImageNetBenchmark(root, [], train=True, complete=False)
    with pytest.raises(UnknownNameError, match="did you mean 'ninco'"):
        ImageNetBenchmark(root, ["nincoo"], complete=False)
    with pytest.raises(InvalidArgumentError, match="expected only test sets, got 'imagenet_val'"):
        ImageNetBenchmark(root, ["imagenet_val"], complete=False)
    with pytest.raises(InvalidArgumentError, match=r"locations: 'sun' is not one of the sets .*imagenet_val"):
        ImageNetBenchmark(root, ["ninco"], locations={"sun": root}, complete=False)
    with pytest.raises(InvalidArgumentError, match="'ninco' occurs twice"):
        ImageNetBenchmark(root, ["ninco", "ninco"], complete=False)


def fifty_thousand(folder: Path) -> Path:
    """A manifest of the true size over one tiny shard: sizes are compared before any image is read."""
    timm_shards(folder / "val", "validation", [1], 2)
    info = json.loads((folder / "val" / "_info.json").read_text())
    info["splits"]["validation"] |= {"num_samples": 50_000, "shard_lengths": [50_000]}
    (folder / "val" / "_info.json").write_text(json.dumps(info))
    return folder / "val"


def test_public_names_exist():
    for name in public.__all__:
        assert getattr(public, name).__name__ if name not in ("CORRUPTIONS", "UNIT_TESTS") else getattr(public, name)
    assert (len(public.CORRUPTIONS), len(public.UNIT_TESTS)) == (19, 17)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = public.Nothing
