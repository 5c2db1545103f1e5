"""Official layouts, made small: every file comes back once with its class."""

import io
import tarfile
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from oodlit.base.known_classes.imagenet import class_names, labels_from_ground_truth, subset_labels, wnid_labels, wnids
from oodlit.datamodules.generated.corruptions import CORRUPTIONS
from oodlit.datamodules.generated.unit_test_kinds import encode
from oodlit.datamodules.keys import unescape_key
from oodlit.datamodules.published_sets import build_set, list_set, read_file_list, set_stream, verify_set
from oodlit.datamodules.sets import describe, descriptions
from oodlit.datamodules.sets import imagenet as imagenet_module
from oodlit.datamodules.sets.description import DatasetDescription, Membership, select
from oodlit.datamodules.sets.imagenet import IMAGENET_TRAIN, IMAGENET_VAL, flat_val, read_val_labels
from oodlit.datamodules.sets.imagenet_shift import IMAGENET_C, by_corruption, by_number
from oodlit.datamodules.shards import shard_info
from oodlit.datamodules.shards.manifest import write_info
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
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


# Classes of ImageNet by index and by name


def test_index_mapping_sorted_wnids_from_zero():
    assert labels_from_ground_truth({"n03": 1, "n01": 2, "n02": 3}, [2, 3, 1]) == [0, 1, 2]


@given(st.permutations(list(range(1, 21))), st.lists(st.integers(0, 19)))
def test_ground_truth_of_any_order(order, images):
    ids = {f"n{i:02d}": number for i, number in enumerate(order)}
    assert labels_from_ground_truth(ids, [ids[f"n{i:02d}"] for i in images]) == images


def test_ground_truth_that_does_not_fit():
    with pytest.raises(DataError, match="got 4"):
        labels_from_ground_truth({"n01": 1}, [4])
    with pytest.raises(DataError, match="class id 1 belongs to more than one wnid"):
        labels_from_ground_truth({"n01": 1, "n02": 1}, [1])


def test_names_as_keys_two_classes_called_crane():
    assert len(set(wnids())) == len(set(class_names())) == len(wnid_labels()) == 1000
    assert [n for n in class_names() if n.startswith("crane")] == ["crane (n02012849)", "crane (n03126707)"]
    assert list(wnids()) == sorted(wnids())


def test_label_subsets():
    for name in ("imagenet_r", "imagenet_a"):
        labels = subset_labels(name)
        assert len(set(labels)) == 200
        assert describe(name).label_subset == labels
    with pytest.raises(InvalidArgumentError, match="'imagenet_c'"):
        subset_labels("imagenet_c")


def test_classes_outside_the_subset_are_another_set():
    paths = [f"imagenet-r/{wnids()[i]}/a.jpg" for i in (1, 2, 3)]
    with pytest.raises(DataError, match=r"imagenet_r: .* has a class that imagenet_r does not cover \(1 such images"):
        select(describe("imagenet_r"), paths, complete=False)
    assert select(describe("imagenet_r"), paths[:2], complete=False).labels == [1, 2]


# ImageNet


def test_labels_by_string_order():
    """Folders "0".."999" (ImageNetV2): label = int(name)."""
    paths = [f"imagenetv2-matched-frequency-format-val/{i}/a.jpeg" for i in range(1000)]
    selection = select(replace(describe("imagenet_v2"), expected_count=1000), paths)
    assert all(
        int(PurePosixPath(p).parent.name) == label for p, label in zip(selection.paths, selection.labels, strict=True)
    )
    assert by_number(PurePosixPath("2/a.jpeg")) == Membership(2)
    assert by_number(PurePosixPath("1000/a.jpeg")) is None


@pytest.mark.parametrize("other", ["imagenetv2-top-images-format-val", "imagenetv2-threshold0.7-format-val"])
def test_the_other_sets_of_imagenet_v2_are_another_set(other):
    with pytest.raises(DataError, match=f"imagenetv2-matched-frequency-format-val/.*, found 1 .*first: '{other}"):
        select(describe("imagenet_v2"), [f"{other}/0/a.jpeg"], complete=False)


@pytest.mark.parametrize(
    ("name", "paths", "complete"),
    [
        ("imagenet_v2", ["m/0/a.jpeg", "m/1000/b.jpeg", "m/README"], False),
        ("imagenet_r", ["imagenet-r/n01443537/a.jpg", "imagenet-r/n99999999/b.jpg"], False),
        ("ssb_easy", ["n01443537/a.JPEG", "b.JPEG"], True),  # its number of images is not published
    ],
)
def test_images_with_other_paths_are_left_out_with_a_warning(name, paths, complete):
    with pytest.warns(UserWarning, match=rf"{name}: 1 images are left out, .*first: '{paths[1]}'"):
        assert select(describe(name), paths, complete=complete).paths == paths[:1]


@pytest.mark.parametrize("split", [IMAGENET_TRAIN, IMAGENET_VAL])
def test_class_folders(split):
    name = "train" if split is IMAGENET_TRAIN else "val"
    other = "val" if name == "train" else "train"
    paths = [f"{name}/{wnid}/{wnid}_{i}.JPEG" for wnid in wnids() for i in range(2)]
    selection = select(replace(split, expected_count=2000), [*paths, f"{other}/{wnids()[0]}/x.JPEG", "LICENCE.txt"])
    assert selection.labels == [label for label in range(1000) for _ in range(2)]
    assert selection.group_names == ()
    assert set(selection.groups) == {-1}
    # without the name of the split: the folder itself was given
    assert len(select(replace(split, expected_count=2000), [p.split("/", 1)[1] for p in paths]).paths) == 2000


def val_names(n: int) -> list[str]:
    return [f"ILSVRC2012_val_{i:08d}" for i in range(1, n + 1)]


@pytest.mark.parametrize("form", ["wnids", "indices", "kaggle", "devkit"])
def test_official_flat_val_with_its_ground_truth(tmp_path, form):
    labels = [(i * 37) % 1000 for i in range(1500)]
    names = val_names(1500)
    source = tmp_path / "truth.txt"
    if form == "wnids":
        source.write_text("\n".join(wnids()[label] for label in labels))
    elif form == "indices":
        source.write_text("\n".join(f"{name}.JPEG {label}" for name, label in zip(names, labels, strict=True)))
    elif form == "kaggle":
        rows = [f"{name},{wnids()[label]} 1 2 3 4" for name, label in zip(names, labels, strict=True)]
        source.write_text("\n".join(["ImageId,PredictionString", *reversed(rows)]))
    else:
        source = devkit(tmp_path, labels)
    found = read_val_labels(source, count=1500)
    assert [found[name] for name in names] == labels
    description = replace(flat_val(found), expected_count=1500)
    selection = select(description, [f"{name}.JPEG" for name in names])
    assert selection.labels == labels


def devkit(folder: Path, labels: list[int]) -> Path:
    """meta.mat with 1,000 leaves in another order, followed by inner nodes."""
    order = np.random.default_rng(0).permutation(1000)
    number = {int(label): i + 1 for i, label in enumerate(order)}
    rows = [(number[label], wnid, 0) for label, wnid in enumerate(wnids())] + [(1001, "n00001740", 5)]
    rows.sort()
    dtype = [("ILSVRC2012_ID", object), ("WNID", object), ("num_children", object)]
    (folder / "devkit" / "data").mkdir(parents=True)
    scipy.io.savemat(folder / "devkit" / "data" / "meta.mat", {"synsets": np.array(rows, dtype=dtype)})
    truth = folder / "devkit" / "data" / "ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("\n".join(str(number[label]) for label in labels))
    return folder / "devkit"


def test_ground_truth_files_that_do_not_fit(tmp_path):
    file = tmp_path / "truth.txt"
    file.write_text("some words here\n")
    with pytest.raises(DataError, match="expected one wnid per line"):
        read_val_labels(file)
    file.write_text("ILSVRC2012_val_00000001.JPEG 3\n")
    with pytest.raises(DataError, match="expected 50000 labels, one per image, got 1"):
        read_val_labels(file)
    file.write_text("ILSVRC2012_val_00000001.JPEG 1000\n")
    with pytest.raises(DataError, match="got 1000"):
        read_val_labels(file, count=1)
    with pytest.raises(DataError, match=r"with meta\.mat"):
        read_val_labels(tmp_path)
    assert imagenet_module._N_VAL == 50_000


def test_imagenet_c_groups_are_corruption_and_severity():
    paths = [f"{kind}/{s}/{wnid}/a.JPEG" for kind in ("fog", "snow") for s in range(1, 6) for wnid in wnids()[:2]]
    selection = select(replace(IMAGENET_C, per_group=2), paths)
    with pytest.raises(
        DataError, match=r"imagenet_c: expected 50000 images in 'fog/1', got 2; .* and 2 more differences"
    ):
        select(IMAGENET_C, paths)
    assert selection.group_names == tuple(f"{kind}/{s}" for kind in ("fog", "snow") for s in range(1, 6))
    assert selection.labels == [0, 1] * 10
    assert by_corruption(PurePosixPath("rain/1/n01440764/a.JPEG")) is None
    assert by_corruption(PurePosixPath("n01440764/a.JPEG")) is None
    assert by_corruption(PurePosixPath("fog/12/n01440764/a.JPEG")) is None
    assert len(CORRUPTIONS) == len(set(CORRUPTIONS)) == 19


# OOD sets in folders


def test_textures_and_imagenet_o_have_the_known_number_of_classes():
    paths = [f"dtd/images/texture{i:02d}/texture{i:02d}_{j}.jpg" for i in range(47) for j in range(120)]
    selection = select(describe("textures"), [*paths, "dtd/labels/labels_joint_anno.txt"])
    assert len(selection.paths) == 5640
    assert len(selection.group_names) == 47
    with pytest.raises(DataError, match="textures: expected 5640 images, got 5520; expected 47 groups, got 46"):
        select(describe("textures"), paths[120:])


def test_file_list_picks_from_a_larger_folder(tmp_path):
    tree(tmp_path / "test", [f"{i:02d}.jpg" for i in range(10)])
    (tmp_path / "list.txt").write_text("test/03.jpg -1\ntest/07.jpg -1\n05.jpg\n")
    names = read_file_list(tmp_path / "list.txt")
    assert names == ["test/03.jpg", "test/07.jpg", "05.jpg"]
    description = replace(describe("openimage_o"), expected_count=3)
    listing = list_set(description, tmp_path / "test", only=names)
    assert list(listing.assignments) == ["03.jpg", "05.jpg", "07.jpg"]
    with pytest.raises(DataError, match=r"1 of 4 listed files were not found \(first: '99\.jpg'"):
        list_set(description, tmp_path / "test", only=[*names, "99.jpg"])
    tree(tmp_path / "test" / "again", ["03.jpg"])
    with pytest.raises(DataError, match=r"2 images match the listed file '03\.jpg'"):
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
    with pytest.raises(DataError, match="unknown group 'c'"):
        select(small(classes={"a": None}), ["a/1.png", "c/1.png"])
    with pytest.raises(
        DataError, match=r"small: 1 images are in folders that are not classes of this set \('c'\); rename"
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
    with pytest.warns(UserWarning, match=r"ninco: 1 images are left out, .*'NINCO/2\.jpg'"):
        select(describe("ninco"), [*paths, "NINCO/2.jpg"], complete=False)


def test_nothing_readable_is_an_error():
    with pytest.raises(
        DataError, match=r"small: expected images at <class>/<file>, found 2 other files \(first: 'README'"
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


def test_original_bytes_are_copied_never_encoded_again(tmp_path):
    """A noise image comes back bit by bit."""
    noise = encode(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8), "JPEG")
    (tmp_path / "folder" / "a").mkdir(parents=True)
    (tmp_path / "folder" / "a" / "n.JPEG").write_bytes(noise)
    (tmp_path / "folder" / "a" / "m.png").write_bytes(PNG)
    build_set(small(), tmp_path / "folder", tmp_path / "shards")
    images = {s.key: s.image for s in set_stream(small(), tmp_path / "shards").source.read(0, 2)}
    assert images == {"n%2EJPEG": noise, "m%2Epng": PNG}


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
