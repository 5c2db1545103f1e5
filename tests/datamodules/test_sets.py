"""Official layouts, made small: every file comes back once with its class."""

import io
import tarfile
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit.datamodules.generated.unit_test_kinds import encode
from oodlit.datamodules.keys import unescape_key
from oodlit.datamodules.published_sets import build_set, list_set, read_file_list, set_stream, verify_set
from oodlit.datamodules.sets import describe, descriptions
from oodlit.datamodules.sets.description import DatasetDescription, Membership, select
from oodlit.datamodules.shards import shard_info
from oodlit.datamodules.shards.manifest import write_info
from oodlit.errors import DataError, UnknownNameError
from oodlit.roles import Role

PNG = encode(np.zeros((1, 1, 3), np.uint8))


def tree(folder: Path, paths: list[str]) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(PNG)
    return folder


# The registry


def test_every_set_is_described_completely():
    known = descriptions()
    assert len(known) == 22
    for name, description in known.items():
        assert name == description.name
        assert name.replace("_", "").isalnum()
        assert name == name.lower()
        assert all(
            (description.title, description.layout, description.licence, description.source, description.citation)
        )
        total = [n for n in description.classes.values() if n is not None]
        if total and len(total) == len(description.classes):
            assert sum(total) == description.expected_count


def test_unknown_set():
    with pytest.raises(UnknownNameError, match="unknown data set 'imagenet-r'; did you mean 'imagenet_r'"):
        describe("imagenet-r")


# OOD sets in folders


def test_textures_and_imagenet_o_have_the_known_number_of_classes():
    paths = [f"dtd/images/texture{i:02d}/texture{i:02d}_{j}.jpg" for i in range(47) for j in range(120)]
    selection = select(describe("textures"), [*paths, "dtd/labels/labels_joint_anno.txt"])
    assert len(selection.paths) == 5640
    assert len(selection.group_names) == 47
    with pytest.raises(DataError, match="textures: expected 5640 images, got 5520; expected 47 classes, got 46"):
        select(describe("textures"), paths[120:])


def test_file_list_picks_from_a_larger_folder(tmp_path):
    tree(tmp_path / "test", [f"{i:02d}.jpg" for i in range(10)])
    (tmp_path / "list.txt").write_text("test/03.jpg -1\ntest/07.jpg -1\n05.jpg\n")
    names = read_file_list(tmp_path / "list.txt")
    assert names == ["test/03.jpg", "test/07.jpg", "05.jpg"]
    description = replace(describe("openimage_o"), expected_count=3)
    listing = list_set(description, tmp_path / "test", only=names)
    assert list(listing.assignments) == ["03.jpg", "05.jpg", "07.jpg"]
    with pytest.raises(
        DataError, match=r"could not find 1 of 4 listed files \(first: '99\.jpg'\).* or pass complete=False"
    ):
        list_set(description, tmp_path / "test", only=[*names, "99.jpg"])
    for complete in (True, False):  # without any of the images, complete=False is no way out
        with pytest.raises(DataError, match=r"could not find 1 of 1 listed files .* is the right data set$"):
            list_set(description, tmp_path / "test", only=["99.jpg"], complete=complete)
    tree(tmp_path / "test" / "again", ["03.jpg"])
    with pytest.raises(DataError, match=r"2 images, such as .*, match the listed file '03\.jpg'"):
        list_set(description, tmp_path / "test", only=names)
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(DataError, match="empty file"):
        read_file_list(tmp_path / "list.txt")


# Numbers and versions of published sets, overlaps between OOD sets


def small(**options: object) -> DatasetDescription:
    def place(path: PurePosixPath) -> Membership:
        return Membership(group=path.parent.name)

    return DatasetDescription("small", "Small", Role.OOD, "<class>/<file>", place, **options)


def test_wrong_versions_a_set_with_one_file_missing():
    description = small(expected_count=3, classes={"a": 2, "b": 1})
    complete = ["a/1.png", "a/2.png", "b/1.png"]
    assert len(select(description, complete).paths) == 3
    with pytest.raises(DataError, match="small: expected 3 images, got 2; expected 2 images in 'a', got 1"):
        select(description, complete[1:])
    partly = select(description, complete[:2], complete=False)
    assert partly.group_names == ("a", "b")
    assert partly.groups == [0, 0]


def test_an_unknown_class_is_named():
    with pytest.raises(
        DataError, match=r"unknown class 'c'.* or rename or move folders that are not classes of this set$"
    ):
        select(small(classes={"a": None}), ["a/1.png", "c/1.png"])
    with pytest.raises(
        DataError, match=r"small: 1 image is in folders that are not classes of this set \('c'\); rename"
    ):
        select(small(classes={"a": None}), ["a/1.png", "c/1.png"], complete=False)


@pytest.mark.parametrize("folder", ["", "NINCO/NINCO_OOD_classes/"])
@pytest.mark.parametrize("name", ["High heels", "HIGH_HEELS", "high-heels"])
@pytest.mark.parametrize("complete", [True, False])
def test_a_class_in_another_spelling_is_suggested(folder: str, name: str, complete: bool) -> None:
    if not folder and name != "High heels":
        folder = "NINCO_OOD_classes/"
    classes = describe("ninco").classes
    paths = [f"{folder}{name if one == 'high heels' else one}/{i}.jpg" for one, n in classes.items() for i in range(n)]
    with pytest.raises(DataError, match=rf"{name!r} \(did you mean 'high heels'"):
        select(describe("ninco"), paths, complete=complete)


def test_other_sets_of_the_archive_are_no_reason_for_a_warning(recwarn) -> None:
    folders = ("NINCO_OOD_classes/donuts", "NINCO_OOD_unit_tests/black", "NINCO_popular_datasets_subsamples/Places")
    paths = [f"NINCO/{folder}/1.jpg" for folder in folders]
    for number, name in enumerate(("ninco", "ninco_unit_tests", "ninco_popular")):
        assert select(describe(name), paths, complete=False).paths == [paths[number]]
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"ninco: 1 image \(first: 'NINCO/2\.jpg'\) is left out"):
        select(describe("ninco"), [*paths, "NINCO/2.jpg"], complete=False)


def test_nothing_readable_is_an_error():
    with pytest.raises(
        DataError,
        match=r"small: found no images of this set, only 2 other files \(first: 'README'\); expected layout: <class>",
    ):
        select(small(), ["README", "a/x.txt"])
    with pytest.raises(DataError, match="found no files"):
        select(small(), [])


@pytest.mark.parametrize("name", ["a.JPEG", "a.jpg", "b/a.PNG", "a.gif", "n01.x/a.tiff"])
def test_images_by_extension_in_any_case(name):
    assert select(small(), [name, "z.png"]).paths == [name, "z.png"]


@pytest.mark.parametrize("name", ["a.txt", "__MACOSX/a.jpg", ".hidden/a.jpg", "._a.jpg", "jpg", "a.jpg.bak"])
def test_other_files_are_no_images(name):
    assert select(small(), [name, "z.png"]).paths == ["z.png"]


# From archive or folder to shards and streams


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tar.gz"])
def test_archive_and_folder_give_the_same_keys(tmp_path, kind):
    paths = ["x.y/set/a/1.png", "x.y/set/a/2_0.9.JPEG", "x.y/set/b/1.png"]
    folder = tree(tmp_path / "folder", paths)
    source = folder
    if kind == "zip":
        source = tmp_path / "s.zip"
        with zipfile.ZipFile(source, "w") as archive:
            for path in paths:
                archive.write(folder / path, path)
    elif kind != "folder":
        source = tmp_path / f"s.{kind}"
        with tarfile.open(source, "w:gz" if kind == "tar.gz" else "w") as archive:
            archive.add(folder / "x.y", "x.y")
    build_set(small(expected_count=3), source, tmp_path / "shards")
    packed, direct = set_stream(small(), tmp_path / "shards"), set_stream(small(), folder)
    expected = {"a/1.png": 0, "a/2_0.9.JPEG": 0, "b/1.png": 1}
    for stream in (packed, direct):
        samples = list(stream.source.read(0, 3))
        assert {unescape_key(s.key): s.group for s in samples} == expected
        assert all(s.image == PNG for s in samples)
        assert stream.class_names == ("a", "b")
        assert stream.role is Role.OOD
    assert packed.source.info.extra["licence"]


def test_shards_of_another_number_are_refused(tmp_path):
    build_set(small(), tree(tmp_path / "folder", ["a/1.png", "b/1.png"]), tmp_path / "shards")
    with pytest.raises(DataError, match=r"published set .expected 3 images, got 2"):
        set_stream(small(expected_count=3), tmp_path / "shards")
    assert len(set_stream(small(expected_count=3), tmp_path / "shards", complete=False)) == 2


def test_original_bytes_and_class_folders_are_kept(tmp_path):
    """A noise image comes back bit by bit; the folder of a single class stays in the keys."""
    noise = encode(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8), "JPEG")
    (tmp_path / "folder" / "a").mkdir(parents=True)
    (tmp_path / "folder" / "a" / "n.JPEG").write_bytes(noise)
    (tmp_path / "folder" / "a" / "m.png").write_bytes(PNG)
    build_set(small(), tmp_path / "folder", tmp_path / "shards")
    images = {s.key: s.image for s in set_stream(small(), tmp_path / "shards").source.read(0, 2)}
    assert images == {"a/n%2EJPEG": noise, "a/m%2Epng": PNG}


@given(counts=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4), min_size=1), seed=st.randoms())
def test_selection_holds_every_image_once_whatever_the_order(counts, seed):
    paths = [f"{name}/{i}.png" for name, n in counts.items() for i in range(n)]
    seed.shuffle(paths)
    selection = select(small(), [*paths, "notes.txt"])
    assert selection.paths == sorted(paths)
    assert Counter(selection.group_names[g] for g in selection.groups) == counts


def test_bytes_of_archive_members(tmp_path):
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        info = tarfile.TarInfo("a/1.png")
        info.size = len(PNG)
        archive.addfile(info, io.BytesIO(PNG))
    (entry,) = list_set(small(), tmp_path / "s.tar")
    assert entry.read() == PNG


def test_verification_knows_the_number_of_images_of_every_label(tmp_path):
    paths = [f"imagenetv2-matched-frequency-format-val/{c}/{i}.jpeg" for c in range(3) for i in range(9 + (c > 0))]
    build_set(describe("imagenet_v2"), tree(tmp_path / "source", paths), tmp_path / "shards", complete=False)
    info = next(iter(shard_info(tmp_path / "shards").values()))
    write_info(tmp_path / "shards", replace(info, extra={}))  # now it claims to be the whole set
    (report,) = verify_set(tmp_path / "shards")
    assert [str(problem) for problem in report.problems] == [
        "expected 10000 images, got 29",
        "expected 10 images per label, but 1 labels have more or fewer (label 0: 9)",
    ]


@pytest.mark.parametrize("name", ["ninco", "ninco_unit_tests"])
def test_folders_that_are_no_classes_of_a_set_are_refused_even_if_it_is_incomplete(name):
    description = describe(name)
    folder = description.layout.partition("/<")[0]
    known, *_ = description.classes
    paths = [f"{folder}/{known}/1.png", f"{folder}/{known}/2.png"]
    found = select(description, paths, complete=False)
    assert (found.group_names, found.groups) == (tuple(description.classes), [0, 0])
    with pytest.raises(
        DataError, match=rf"{name}: 2 images .* not classes of this set \('Amphiuma'.*, 'amphiuma_m'.*\); rename"
    ):
        select(description, [*paths, f"{folder}/amphiuma_m/3.png", f"{folder}/Amphiuma/4.png"], complete=False)


def test_unknown_folders_come_first_and_empty_classes_are_one_difference():
    paths = [f"NINCO/NINCO_OOD_classes/{name}/{name}_000_x.jpg" for name in ("donuts", "donuts_2")]
    with pytest.raises(DataError) as caught:
        select(describe("ninco"), paths)
    text = str(caught.value)
    assert "no images in 63 of 64 classes (first: 'Caracal caracal caracal', " in text
    assert text.index("unknown class 'donuts_2' (did you mean 'donuts'") < text.index("no images in")
    assert text.count("got 0") == 0
    assert "complete=False" not in text  # which would refuse the unknown folder as well
