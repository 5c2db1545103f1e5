"""An archive of NINCO's exact layout: all names and counts, the traps of the real one, tiny images."""

import hashlib
import io
import tarfile
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import PILToTensor

from oodlit.datamodules.generated.unit_test_kinds import UNIT_TESTS
from oodlit.datamodules.keys import unescape_key
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.published_sets import UnofficialArchiveWarning, build_set, list_set, set_stream, verify_set
from oodlit.datamodules.sets import describe
from oodlit.datamodules.sets.ninco import NINCO_CLASSES
from oodlit.datamodules.shards.manifest import write_info
from oodlit.datamodules.shards.verify import find_duplicates, shard_info, verify_shards
from oodlit.errors import DataError

SETS = ("ninco", "ninco_unit_tests", "ninco_popular")
POPULAR = {"Places": 153, "iNaturalist_OOD_Plants": 383, "Species": 172, "ImageNet_O": 309, "OpenImage_O": 368}
POPULAR |= {"Textures": 288, "COOD": 212, "ImageNet_1k_OOD_400_ood": 235, "SSB_easy": 151, "SSB_hard": 208}
POPULAR |= {"360OpenSet": 236}
TRAPS = ("jpg", "jpeg", "png", "JPG", "JPEG", "gif")


def picture(number: int, extension: str = "png") -> bytes:
    """A distinct picture in one of the color modes that occur: gray, palette, CMYK, EXIF."""
    pixels = np.random.default_rng(number).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    image, options = Image.fromarray(pixels), {}
    kind = extension.lower().replace("jpg", "jpeg")
    if kind == "jpeg" and number % 3 == 0:
        image = image.convert("CMYK")
    elif kind == "jpeg" and number % 3 == 1:
        exif = Image.Exif()
        exif[0x0112] = 6
        options["exif"] = exif
    elif number % 4 == 0:
        image = image.convert("L")
    elif kind != "jpeg":
        image = image.quantize(8)
    file = io.BytesIO()
    image.save(file, kind.upper(), **options)
    return file.getvalue()


@cache
def paths() -> dict[str, dict[str, str]]:
    """Group by path of every image, per set."""
    ninco = {
        f"NINCO/NINCO_OOD_classes/{c.folder}/{c.folder}_{i:03d}_photo{i}.{TRAPS[i % 5]}": c.folder
        for c in NINCO_CLASSES
        for i in range(c.n_images)
    }
    one = next(iter(ninco))
    ninco[one.rpartition(".")[0] + ".gif"] = ninco.pop(one)  # the one GIF
    tests = {
        f"NINCO/NINCO_OOD_unit_tests/{t}/{t}_{i:03d}_{t}_{i * 7}.{'png' if i % 2 else 'jpg'}": t
        for t in UNIT_TESTS
        for i in range(400)
    }
    popular = {
        # ImageNet-O's names have an extra dot; some sets have folders below
        f"NINCO/NINCO_popular_datasets_subsamples/{s}/"
        + (f"n0{i}_0.9976.JPEG" if s == "ImageNet_O" else f"sub {i % 3}/img_{i}.jpg" if i % 2 else f"img_{i}.jpg"): s
        for s, n in POPULAR.items()
        for i in range(n)
    }
    return dict(zip(SETS, (ninco, tests, popular), strict=True))


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("ninco") / "NINCO_all.tar.gz"
    everything = [p for group in paths().values() for p in group]
    shared = next(p for p in everything if "f_field_road" in p)  # NINCO and Places share images
    few = {extension: [picture(i, extension) for i in range(12)] for extension in TRAPS}
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name in [*everything, "NINCO/README.md", "NINCO/._x.jpg"]:
            extension = name.rpartition(".")[2]
            data = few.get(extension, [b"text"])[
                int(hashlib.md5(name.encode()).hexdigest(), 16) % 12 % len(few.get(extension, [0]))
            ]
            if name == shared or name.endswith("Places/img_0.jpg"):
                data = picture(1000, "jpeg")
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture(scope="module")
def shards(archive, tmp_path_factory) -> dict[str, Path]:
    """The three sets, built from the archive without unpacking it."""
    root = tmp_path_factory.mktemp("shards")
    for name in SETS:
        with pytest.warns(UnofficialArchiveWarning, match=f"{name}: .* .expected MD5 b9ffae324363cd900a81c"):
            build_set(describe(name), archive, root / name, shard_size=1000)
    return {name: root / name for name in SETS}


def below(name: str) -> dict[str, str]:
    """Group by path relative to the folder of the set."""
    return {path.split("/", 2)[2]: group for path, group in paths()[name].items()}


def test_the_layout_is_the_published_one():
    assert len(NINCO_CLASSES) == 64
    assert [len(paths()[name]) for name in SETS] == [5879, 6800, 2715]
    assert sum(" " in c.folder for c in NINCO_CLASSES) == 2
    assert sum(p.rpartition("/")[2].count(".") == 2 for p in paths()["ninco_popular"]) == 309
    assert Counter(p.rpartition(".")[2] for p in paths()["ninco"])["gif"] == 1
    assert sum(not c.in_21k for c in NINCO_CLASSES) == 9
    assert (
        len({c.name for c in NINCO_CLASSES} & {"crème brûlée", "Galápagos fur seal", "'ōhelo 'ai (flowering plant)"})
        == 3
    )


@pytest.mark.parametrize("name", SETS)
def test_every_file_name_comes_back_once_with_its_class(shards, name):
    stream = set_stream(describe(name), shards[name])
    groups = {unescape_key(s.key): stream.class_names[s.group] for s in stream.source.read(0, len(stream))}
    assert len(stream) == len(groups)
    assert groups == below(name)
    assert stream.class_names == tuple(describe(name).classes)


@pytest.mark.parametrize("name", SETS)
def test_it_verifies(shards, name):
    (report,) = verify_set(shards[name])
    assert report.problems == []
    assert report.num_samples == describe(name).expected_count


def test_verification_knows_the_published_numbers(part, tmp_path):
    build_set(describe("ninco"), part, tmp_path, complete=False)
    (known,) = verify_set(tmp_path)
    assert known.ok  # the manifest says that it is a part
    info = next(iter(shard_info(tmp_path).values()))
    write_info(tmp_path, replace(info, extra={}))
    (report,) = verify_set(tmp_path, decode=False)
    problems = [str(problem) for problem in report.problems]
    assert "expected 5879 images, got 147" in problems
    assert "class 'Caracal caracal caracal': expected 100 samples, found 3" in problems
    assert len(problems) == 1 + 64


def test_images_shared_between_ninco_and_places_are_found(shards):
    reports = [r for name in ("ninco", "ninco_popular") for r in verify_shards(shards[name], decode=False)]
    shared = [d.keys for d in find_duplicates(reports) if any("Places/img_0" in key for key in d.keys)]
    assert len(shared) == 1
    assert sorted(key.split("/")[0] for key in shared[0]) == ["ninco", "ninco_popular"]


@pytest.fixture(scope="module")
def part(archive, tmp_path_factory) -> Path:
    """Every 40th image of the classes, in shards of 23."""
    folder = tmp_path_factory.mktemp("part")
    wanted = list(paths()["ninco"])[::40]
    with tarfile.open(archive) as tar:
        for path in wanted:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(tar.extractfile(path).read())
    return folder


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 3])
@given(shard_size=st.integers(5, 60), batch_size=st.integers(1, 50))
@settings(max_examples=2)
def test_streams_exactly_once_for_any_readers(part, tmp_path_factory, world_size, workers, shard_size, batch_size):
    out = tmp_path_factory.mktemp("shards")
    build_set(describe("ninco"), part, out, complete=False, shard_size=shard_size)
    stream = set_stream(describe("ninco"), out, complete=False)
    seen = []
    for rank in range(world_size):
        loader = StreamLoader(
            stream, PILToTensor(), batch_size=batch_size, num_workers=workers, rank=rank, world_size=world_size
        )
        batches = list(loader)
        assert len(batches) == len(loader)
        seen += [(key, int(g)) for b in batches for key, g in zip(b["key"], b["group"], strict=True)]
    found = {unescape_key(key.removeprefix("ninco/")): stream.class_names[group] for key, group in seen}
    assert len(seen) == len(found) == len(stream)
    assert found == {path.split("/", 2)[2]: g for path, g in list(paths()["ninco"].items())[::40]}


def test_any_root_gives_the_same_keys(part):
    description = describe("ninco")
    roots = [part, part / "NINCO", part / "NINCO" / "NINCO_OOD_classes"]
    listings = [list_set(description, root, complete=False) for root in roots]
    keys = [sorted(entry.key for entry in listing) for listing in listings]
    assert keys[0] == keys[1] == keys[2]
    assert [e.group for e in listings[0]] == [e.group for e in listings[2]]


def test_a_missing_file_is_named(archive, part, tmp_path):
    with pytest.raises(
        DataError,
        match=r"ninco: expected 5879 images, got 147; expected 100 images in 'Caracal caracal caracal', got 3",
    ):
        build_set(describe("ninco"), part, tmp_path)
    with pytest.raises(
        DataError, match=r"ninco_popular: found no .*; expected layout: NINCO/NINCO_popular_datasets_subsamples"
    ):
        list_set(describe("ninco_popular"), part)
