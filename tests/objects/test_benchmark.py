"""FindMeIfYouCan's layout, made by the tests with its traps, builds, streams and evaluates."""

import json

import pytest
import torch

from oodlit.detectors import MSP, Mahalanobis
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.objects import CocoSet, ObjectBenchmark
from oodlit.roles import Role
from tests.objects.layout import BDD, write_set
from tests.objects.runs import benchmark, make_module, predict, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("sets"))


def batches(data: ObjectBenchmark, name: str, rank: int = 0, world_size: int = 1) -> list:
    return list(data._loader(data.stream(name), rank, world_size))


def test_all_sets_of_voc_stream_with_their_sizes(folder) -> None:
    data = benchmark(folder, batch_size=2)
    names = ["voc_train", "voc_test", "near_coco", "far_coco", "near_oi", "far_oi"]
    assert [stream.name for stream in data.streams] == names
    assert [stream.role for stream in data.streams[:3]] == [Role.TRAIN, Role.ID, Role.OOD]
    for name in names:
        annotations = data.annotations[name]
        seen = {}
        for batch in batches(data, name):
            assert len(batch["image"]) == len(batch["key"])
            seen |= dict(zip(batch["key"], batch["image"], strict=True))
        assert tuple(seen) == annotations.keys
        sizes = [(image.shape[2], image.shape[1]) for image in seen.values()]
        assert sizes == [tuple(size) for size in annotations.sizes.tolist()]
        assert len(set(sizes)) > 1
        assert all(0 <= float(image.min()) <= float(image.max()) <= 1 for image in seen.values())
        assert annotations.counts[0] == 0  # an image without objects is an image
        assert bool(annotations.is_crowd.any())
    assert all(len(key.removeprefix("near_oi/")) == 16 for key in data.annotations["near_oi"].keys)


def test_the_farther_sets_belong_to_bdd(tmp_path) -> None:
    data = benchmark(write(tmp_path, "bdd"), "bdd")
    assert [stream.name for stream in data.streams] == ["bdd_train", "bdd_test", "farther_coco", "farther_oi"]
    assert data.class_names == BDD
    results = predict([MSP(), Mahalanobis()], data, make_module(2))
    assert results.splits == ("farther_coco", "farther_oi")
    assert results.value("dismissed", dataset="farther_oi", detector="msp") <= 1
    with pytest.raises(InvalidArgumentError, match="with known='bdd', expected sets from farther_coco, "):
        benchmark(tmp_path, "bdd", sets=["near_coco"])
    with pytest.raises(InvalidArgumentError, match="got 'imagenet'"):
        ObjectBenchmark.fmiyc(tmp_path, "imagenet", known_root=tmp_path)


def test_every_image_comes_once_whatever_the_processes_and_workers(folder) -> None:
    data = benchmark(folder, batch_size=2, sets=["near_coco"], train=False)
    assert [stream.name for stream in data.streams] == ["voc_test", "near_coco"]
    keys = data.annotations["near_coco"].keys
    for processes in (1, 2, 3, 7):
        parts = [batches(data, "near_coco", rank, processes) for rank in range(processes)]
        assert tuple(key for part in parts for batch in part for key in batch["key"]) == keys
    data.num_workers = 2
    own = batches(data, "near_coco")
    assert sorted(key for batch in own for key in batch["key"]) == sorted(keys)
    assert all(isinstance(image, torch.Tensor) for batch in own for image in batch["image"])
    few = benchmark(folder, sets=["near_coco"], max_images=2)
    assert [len(stream) for stream in few.streams] == [2, 2, 2]


def test_known_classes_in_an_unknown_set_are_a_finding(folder, tmp_path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    write_set(tmp_path / "far.json", tmp_path / "pictures", {4: "Bird", 9: "lamp"}, rng, 8)
    known = CocoSet("val", folder / "voc" / "val_coco_format.json", folder / "voc")
    data = ObjectBenchmark(known, [CocoSet("far", tmp_path / "far.json")])
    (finding,) = data.findings
    assert finding.kind == "known_classes"
    assert "data set 'far' has" in finding.text
    assert "(Bird)" in finding.text
    results = predict([MSP()], data)
    assert results.run.findings[0].kind == "known_classes"
    assert not benchmark(folder).findings
    assert (data.batch_size, ObjectBenchmark(known, [], batch_size=2).batch_size) == (4, 2)


def test_what_is_not_there_is_named(folder, tmp_path) -> None:
    with pytest.raises(DataError, match=r"near_coco_wrt_voc\.json cannot be read"):
        benchmark_of(folder, tmp_path)
    file = folder / "voc" / "val_coco_format.json"
    known = CocoSet("val", file, folder / "voc")
    with pytest.raises(
        DataError, match=r"none of the annotated pictures was found in .* such as val_coco_format_000\.png"
    ):
        ObjectBenchmark(CocoSet("val", file, tmp_path), [])
    content = json.loads(file.read_text())
    nameless = content | {"images": [entry | {"file_name": None} for entry in content["images"]]}
    (tmp_path / "nameless.json").write_text(json.dumps(nameless))
    with pytest.raises(DataError, match=r"val: expected a file_name in every entry of 'images', found none"):
        ObjectBenchmark(CocoSet("val", tmp_path / "nameless.json", tmp_path), [])
    content["images"][1]["file_name"] = "../secret.png"
    (tmp_path / "odd.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"got '\.\./secret\.png'"):
        ObjectBenchmark(known, [CocoSet("odd", tmp_path / "odd.json", folder / "voc")])
    with pytest.raises(InvalidArgumentError, match="'val' occurs twice"):
        ObjectBenchmark(known, [known])


def benchmark_of(folder, root):
    return ObjectBenchmark.fmiyc(root, "voc", known_root=folder / "voc")


def test_unreadable_pictures_are_an_error_or_are_listed(tmp_path) -> None:
    folder = write(tmp_path)
    (folder / "fmiyc/COCO/near_images/near_coco_wrt_voc_003.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="near_coco"):
        predict([MSP()], benchmark(folder, sets=["near_coco"]))
    for batch_size in (1, 4):  # of a batch of one, nothing is left
        data = benchmark(folder, sets=["near_coco"], on_error="skip", train=False, batch_size=batch_size)
        results = predict([MSP()], data)
        (skipped,) = results.run.skipped
        assert skipped.key == "near_coco/1021"
        assert (results.images["dataset"] == "near_coco").sum() == 4
        assert "near_coco/1021" not in set(results.objects["image"])
