"""Official archives of sets with a list: releases of ImageNet-21k as tars of tars, and the ImageNet-C of OpenOOD."""

import io
import shutil
import tarfile
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from torchvision.transforms import ToTensor

from oodlit.base.known_classes.imagenet import wnids
from oodlit.cli.main import main
from oodlit.datamodules import DatasetDescription, ShardSource, StreamLoader, published_sets
from oodlit.datamodules.benchmarks.lists import published_list
from oodlit.datamodules.keys import unescape_key
from oodlit.datamodules.published_sets import build_set, list_set, set_stream, verify_set
from oodlit.datamodules.sets import describe, descriptions
from oodlit.datamodules.stream import Stream
from oodlit.errors import DataError
from tests.tiny_shards import tiny_image

LISTED = 40
LISTS = {"ssb_hard": "ssb_hard_49000", "imagenet_ood": "imagenet_ood_31802"}


def toy_list(name: str) -> tuple[str, ...]:
    """Images of a published list, of several classes."""
    names = published_list(name)
    return names[:: len(names) // LISTED]


def toy_set(name: str) -> DatasetDescription:
    """A set with the images of the toy list."""
    return replace(describe(name), expected_count=len(toy_list(LISTS[name])))


@pytest.fixture(autouse=True)
def toy_lists(monkeypatch) -> None:
    monkeypatch.setattr(published_sets, "published_list", toy_list)


def add(tar: tarfile.TarFile, path: str, data: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def tar_of(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for path, data in files.items():
            add(tar, path, data)
    return file.getvalue()


def release(kind: str, folder: Path, names: list[str]) -> Path:
    """A release of ImageNet-21k with these images: one tar per class in a folder, a tar, or a compressed tar."""
    classes: dict[str, dict[str, bytes]] = {"n00000001": {"n00000001_1.JPEG": tiny_image(0)}}
    for number, name in enumerate(names):
        wnid, _, file = name.partition("/")
        classes.setdefault(wnid, {"README": b"x"})[file] = tiny_image(number)
    tars = {f"{wnid}.tar": tar_of(files) for wnid, files in classes.items()}
    if kind == "folder":
        (folder / kind).mkdir(parents=True)
        for name, data in tars.items():
            (folder / kind / name).write_bytes(data)
        return folder / kind
    path = folder / f"winter21_whole.{kind}"
    with tarfile.open(path, {"tar": "w", "tar.gz": "w:gz", "tar.xz": "w:xz"}[kind]) as tar:
        for name, data in tars.items():
            add(tar, f"winter21_whole/{name}", data)
            add(tar, f"winter21_whole/._{name}", b"macOS")
    return path


def read(stream: Stream, processes: int) -> Counter[str]:
    """How often each file is read by some processes, each with its part."""
    seen: Counter[str] = Counter()
    for rank in range(processes):
        for batch in StreamLoader(stream, ToTensor(), batch_size=4, rank=rank, world_size=processes):
            seen.update(unescape_key(key.partition("/")[2]) for key in batch["key"])
    return seen


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("kind", ["folder", "tar", "tar.gz", "tar.xz"])
def test_a_release_of_imagenet21k_has_exactly_the_listed_images(name: str, kind: str, tmp_path: Path) -> None:
    names = toy_list(LISTS[name])
    stored = [*names[2:], names[0].lower(), names[1].replace(".JPEG", ".png"), names[0].replace(".JPEG", "0.JPEG")]
    source = release(kind, tmp_path, stored)
    info = build_set(toy_set(name), source, tmp_path / "shards", shard_size=7)
    assert info.extra["list"] == LISTS[name]
    (report,) = verify_set(tmp_path / "shards")
    assert report.ok, report.problems
    stream = set_stream(describe(name), tmp_path / "shards", complete=False)
    expected = dict.fromkeys(stored[:-1], 1)
    assert read(stream, 1) == read(stream, 2) == expected
    assert stream.class_names == tuple(sorted({PurePosixPath(one).parent.name for one in names}))
    images = {unescape_key(s.key): s.image for s in stream.source.read(0, len(stream))}
    assert images == {one: tiny_image(number) for number, one in enumerate(stored[:-1])}
    again = build_set(toy_set(name), source, tmp_path / "shards", shard_size=7)
    assert again == info


@pytest.mark.parametrize("kind", ["folder", "tar.gz"])
def test_listed_images_that_are_missing_are_named(kind: str, tmp_path: Path) -> None:
    names = toy_list("ssb_hard_49000")
    source = release(kind, tmp_path, list(names[2:]))
    with pytest.raises(
        DataError, match=f"could not find 2 of {len(names)} listed files .first: '{names[0]}', '{names[1]}'"
    ):
        build_set(toy_set("ssb_hard"), source, tmp_path / "shards")
    assert not (tmp_path / "shards").exists()
    with pytest.warns(
        UserWarning, match=f"could not find 2 of {len(names)} listed files .*; the missing files are left out"
    ):
        info = build_set(describe("ssb_hard"), source, tmp_path / "shards", complete=False)
    assert info.num_samples == len(names) - 2
    with pytest.raises(DataError, match=r"expected 49000 images, got 38"):
        set_stream(describe("ssb_hard"), tmp_path / "shards")
    (source / "n00470682.tar" if kind == "folder" else source).write_bytes(b"no tar")
    with pytest.raises(DataError, match=r"damaged|another format"):
        build_set(describe("ssb_hard"), source, tmp_path / "other")


def test_a_folder_of_the_set_is_checked_with_its_list(tmp_path: Path) -> None:
    names = toy_list("imagenet_ood_31802")
    for number, one in enumerate([*names, "n00000001/n00000001_1.JPEG"]):
        (tmp_path / one).parent.mkdir(exist_ok=True)
        (tmp_path / one).write_bytes(tiny_image(number))
    with pytest.raises(DataError, match=f"imagenet_ood: expected 31802 images, got {len(names)}"):
        list_set(describe("imagenet_ood"), tmp_path)
    shutil.rmtree(tmp_path / "n00000001")
    assert len(list_set(describe("imagenet_ood"), tmp_path, complete=False)) == len(names)


@pytest.mark.parametrize("kind", ["folder", "tar", "zip"])
@pytest.mark.parametrize("name", [name for name, about in descriptions().items() if about.file_list])
def test_images_outside_the_list_are_left_out_of_folders_and_archives(
    name: str, kind: str, tmp_path: Path, capsys
) -> None:
    """One image in a class of the list and one in another class; some listed images are missing."""
    names = toy_list(describe(name).file_list)
    others = [f"{PurePosixPath(names[0]).parent}/other.JPEG", "n00000001/n00000001_1.JPEG"]
    for number, one in enumerate([*names[:-1], *others]):
        (tmp_path / "set" / one).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / one).write_bytes(tiny_image(number))
    source = tmp_path / "set"
    if kind != "folder":
        source = Path(shutil.make_archive(str(tmp_path / "packed"), kind, source))
    with (
        pytest.warns(UserWarning, match=f"could not find 1 of {len(names)} listed files"),
        pytest.warns(
            UserWarning,
            match=f"{name}: left out 2 images that are not in the published list '{describe(name).file_list}'",
        ),
    ):
        assert main(["shards", "build", name, str(source), "--out", str(tmp_path / "out"), "--incomplete"]) == 0
    assert {fact.path for fact in ShardSource(tmp_path / "out").facts()} == {*names[:-1]}


def test_a_set_without_a_list_is_not_a_whole_release(tmp_path: Path, capsys) -> None:
    source = release("tar", tmp_path, ["n01443537/n01443537_1.JPEG", "n02102040/n02102040_2.JPEG"])
    with pytest.raises(DataError, match=r"ssb_easy: .*winter21_whole\.tar contains one tar per class.*only="):
        list_set(describe("ssb_easy"), source)
    release("folder", tmp_path / "ssb_easy", ["n01443537/n01443537_1.JPEG"])
    assert main(["data", "check", str(tmp_path)]) == 1
    assert "pass a list of files with --file_list to 'oodlit shards build'" in capsys.readouterr().out
    listing = list_set(describe("ssb_easy"), source, only=["ssb_easy/n02102040/n02102040_2.JPEG"])
    assert list(listing.assignments) == ["n02102040/n02102040_2.JPEG"]
    with pytest.warns(UserWarning, match=r"imagenet_train: 1 image .* is left out"):
        train = build_set(describe("imagenet_train"), source, tmp_path / "train", complete=False)
    assert train.label_counts == {1: 1, 217: 1}  # the official archive of the training images is a tar of tars, too


def flat_c(folder: Path, names: tuple[str, ...], above: str) -> tuple[Path, Path]:
    """OpenOOD's archive of ImageNet-C, which is unpacked into a folder imagenet_c, and its list with labels."""
    with zipfile.ZipFile(folder / "imagenet_c.zip", "w") as file:
        for number, one in enumerate(names):
            file.writestr(f"{above}{one}", tiny_image(number))
    labels = folder / "test_imagenet_c.txt"
    labels.write_text("".join(f"imagenet_c/{one} {i % 1000}\n" for i, one in enumerate(names[:-1])))
    return folder / "imagenet_c.zip", labels


@pytest.mark.parametrize("above", ["", "imagenet_c/"])
def test_flat_corruptions_have_exactly_the_listed_images(above: str, tmp_path: Path, capsys, monkeypatch) -> None:
    names = toy_list("imagenet_c_10000")
    others = [names[-2].lower(), names[-1].replace(".JPEG", ".png")]
    stored = (*names[:-2], *others, names[0].replace("brightness/1", "snow/2"))
    archive, labels = flat_c(tmp_path, stored, above)
    command = ["shards", "build", "imagenet_c", str(archive), "--out", str(tmp_path / "shards")]
    assert main(command) == 1
    assert "--labels" in capsys.readouterr().err
    assert main([*command, "--labels", str(labels)]) == 1
    assert f"imagenet_c: expected 10000 images, got {len(names)}" in capsys.readouterr().err
    monkeypatch.setattr("oodlit.datamodules.sets.imagenet_shift.NUM_FLAT_C", len(names))
    assert main([*command, "--labels", str(labels)]) == 0
    assert main(["shards", "verify", str(tmp_path / "shards")]) == 0
    stream = set_stream(describe("imagenet_c"), tmp_path / "shards", complete=False)
    assert read(stream, 1) == read(stream, 2) == dict.fromkeys(stored[:-1], 1)
    facts = {f.path: (f.label, stream.class_names[f.group]) for f in ShardSource(tmp_path / "shards").facts()}
    assert facts == {one: (i % 1000, one.rpartition("/")[0]) for i, one in enumerate(stored[:-1])}
    assert stream.prepared
    labels.write_text("\n".join(labels.read_text().splitlines()[1:]))
    assert main([*command[:-1], str(tmp_path / "other"), "--labels", str(labels)]) == 1
    assert names[0] in (error := capsys.readouterr().err)
    assert "has no label" in error


def test_lists_of_sets_exist() -> None:
    for about in descriptions().values():
        assert not about.file_list or len(published_list(about.file_list)) == about.expected_count
    assert wnids()[217] == "n02102040"
