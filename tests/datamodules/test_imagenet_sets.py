"""ImageNet and its shifted versions: labels, ground truth, and official layouts."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from oodlit.base.known_classes.imagenet import class_names, labels_from_ground_truth, subset_labels, wnid_labels, wnids
from oodlit.datamodules.generated.corruptions import CORRUPTIONS
from oodlit.datamodules.sets import describe
from oodlit.datamodules.sets import imagenet as imagenet_module
from oodlit.datamodules.sets.description import Membership, select
from oodlit.datamodules.sets.imagenet import IMAGENET_TRAIN, IMAGENET_VAL, flat_val, read_val_labels
from oodlit.datamodules.sets.imagenet_shift import IMAGENET_C, by_corruption, by_number
from oodlit.errors import DataError, InvalidArgumentError

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
    with pytest.raises(DataError, match="expected a different class id for every wnid, got 1 twice"):
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
    with pytest.raises(
        DataError, match=r"imagenet_r: 1 image \(first: .*\) has classes that imagenet_r does not cover"
    ):
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
    with pytest.raises(
        DataError, match=f"only 1 other file .*first: '{other}.*imagenetv2-matched-frequency-format-val/"
    ):
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
    with pytest.warns(UserWarning, match=rf"{name}: 1 image .first: '{paths[1]}'. is left out"):
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
    with pytest.raises(DataError, match="expected labels of 50000 images, got 1"):
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
