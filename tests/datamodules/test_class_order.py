"""One order of classes in a run, by name, regardless of the order in folders and manifests."""

import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch

from oodlit.base.known_classes.imagenet import class_names as imagenet_names
from oodlit.base.known_classes.imagenet import wnids
from oodlit.configuration import make, plan
from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream, folder_stream, shard_stream
from oodlit.datamodules.classes import as_class_names
from oodlit.datamodules.shards import build_shards, class_listing
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role
from tests.tiny_shards import tiny_image

SEVEN = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]


def folder(path: Path, classes: list[str], count: int = 2) -> Path:
    for name in classes:
        (path / name).mkdir(parents=True)
        for i in range(count):
            (path / name / f"{i}.png").write_bytes(tiny_image(i))
    return path


def labels(data: OODDataModule, name: str) -> dict[str, int]:
    """Label by class folder."""
    stream = data.stream(name)
    return {sample.key.split("/")[0]: sample.label for sample in stream.source.read(0, len(stream))}


def memory(name: str, role: Role, names: tuple[str, ...], count: int | None = None) -> Stream:
    numbers = range(len(names) if count is None else count)
    samples = [Sample(f"{names[i] if i < len(names) else i}/{i}", torch.zeros(3, 2, 2), label=i) for i in numbers]
    return Stream(name, role, MemorySource(samples), names)


class TestByName:
    def test_a_val_folder_with_missing_classes_gets_the_training_indices(self, tmp_path: Path) -> None:
        train = folder_stream(folder(tmp_path / "train", SEVEN), role=Role.TRAIN)
        val = folder_stream(folder(tmp_path / "val", ["bee", "cat", "eel", "fox", "gnu"]), role=Role.ID)
        assert val.class_names == ("bee", "cat", "eel", "fox", "gnu")
        data = OODDataModule([val, train])
        assert labels(data, "train") == {name: i for i, name in enumerate(SEVEN)}
        assert labels(data, "val") == {"bee": 1, "cat": 2, "eel": 4, "fox": 5, "gnu": 6}
        assert data.class_names == data.stream("val").class_names == tuple(SEVEN)
        found = [sample.label for sample in data.stream("val").source.find({"gnu/0%2Epng"})]
        assert found == [6]

    @pytest.mark.parametrize("packed", [False, True])
    def test_shift_labels_are_mapped_from_folders_and_shards(self, tmp_path: Path, packed: bool) -> None:
        train = folder_stream(folder(tmp_path / "train", SEVEN), role=Role.TRAIN)
        val = folder_stream(tmp_path / "train", name="val", role=Role.ID)
        source = folder(tmp_path / "sketch", ["fox", "ant"])
        if packed:
            build_shards(class_listing(source, Role.SHIFT), tmp_path / "out", name="sketch", role=Role.SHIFT)
            shift = shard_stream(tmp_path / "out")
        else:
            shift = folder_stream(source, role=Role.SHIFT)
        assert shift.label_names == ("ant", "fox")
        assert shift.class_names == ()
        assert labels(OODDataModule([val, train, shift]), "sketch") == {"ant": 0, "fox": 5}
        assert labels(OODDataModule([val, shift]), "sketch") == {"ant": 0, "fox": 5}  # then the ID stream's names count

    def test_another_class_order_in_a_manifest(self, tmp_path: Path) -> None:
        for role, order in ((Role.TRAIN, SEVEN), (Role.ID, SEVEN[::-1])):
            listing = class_listing(folder(tmp_path / role, SEVEN), role, class_names=order)
            names = listing.class_names
            build_shards(listing, tmp_path / f"{role}-out", name=str(role), role=role, class_names=names)
        data = OODDataModule([shard_stream(tmp_path / "train-out"), shard_stream(tmp_path / "id-out")])
        assert labels(data, "id") == labels(data, "train")

    def test_numbered_folders_are_their_own_labels(self, tmp_path: Path) -> None:
        train = folder_stream(folder(tmp_path / "train", [str(i) for i in range(12)]), role=Role.TRAIN)
        some = folder_stream(folder(tmp_path / "val", ["1", "3", "10"]), role=Role.ID)
        assert labels(OODDataModule([train, some]), "val") == {"1": 1, "3": 3, "10": 10}
        with pytest.raises(
            DataError, match=r"the 3 class names are numbers, but not 0, \.\.\., 2 in this order: '1', '3', '10'"
        ):
            OODDataModule([some])
        assert labels(OODDataModule([some], class_names=list(map(str, range(12)))), "val")["10"] == 10
        named = memory("train", Role.TRAIN, tuple(SEVEN))
        first = folder_stream(folder(tmp_path / "first", ["0", "1"]), role=Role.ID)
        assert labels(OODDataModule([named, first]), "first") == {"0": 0, "1": 1}  # plain indices stay

    @pytest.mark.parametrize("role", [Role.ID, Role.SHIFT])
    def test_a_class_missing_from_the_training_set(self, role: Role) -> None:
        train, val = memory("train", Role.TRAIN, tuple(SEVEN)), memory("val", Role.ID, ("ant",))
        other = memory("other", Role.ID, ("ant", "yak", "zebu"))
        if role is Role.ID:
            streams = [train, other]
        else:
            streams = [train, val, Stream("other", role, other.source, label_names=other.class_names)]
        unknown = "data set 'other': expected only classes of {}, got 'yak', 'zebu'.* or {} class_names="
        with pytest.raises(DataError, match=unknown.format("data set 'train'", "pass")):
            OODDataModule(streams)
        with pytest.raises(DataError, match=unknown.format("class_names", "correct")):
            OODDataModule(streams, class_names=SEVEN)

    def test_streams_without_names_are_unchanged(self) -> None:
        val = memory("val", Role.ID, (), count=3)
        data = OODDataModule([val])
        assert data.class_names == ()
        assert data.streams == (val,)
        far = Stream("far", Role.OOD, val.source, ("x", "y"))
        data = OODDataModule([val, memory("train", Role.TRAIN, ("a", "b", "c")), far])
        assert data.class_names == ("a", "b", "c")
        assert data.stream("far") is far
        assert data.stream("val") is val

    def test_repeated_names_are_only_ambiguous_if_labels_are_mapped(self) -> None:
        twice = ("crane", "dog", "crane")
        assert OODDataModule([memory("t", Role.TRAIN, twice), memory("v", Role.ID, twice)]).class_names == twice
        with pytest.raises(DataError, match="data set 't': two classes are called 'crane'"):
            OODDataModule([memory("t", Role.TRAIN, twice), memory("v", Role.ID, ("crane", "dog"))])

    def test_decomposed_unicode_names_of_macos_match(self) -> None:
        train = memory("train", Role.TRAIN, ("ant", "café"))
        val = memory("val", Role.ID, (unicodedata.normalize("NFD", "café"),))
        assert list(labels(OODDataModule([train, val]), "val").values()) == [1]

    def test_a_label_without_a_name_is_an_error(self) -> None:
        data = OODDataModule([memory("t", Role.TRAIN, ("a", "b", "c")), memory("v", Role.ID, ("c", "b"), count=3)])
        with pytest.raises(DataError, match="label 2 is out of range for 2 class names"):
            list(data.predict_dataloader()[1])


class TestClassNames:
    @pytest.mark.parametrize("kind", ["list", "file", "path"])
    def test_class_names_set_the_order_of_the_network(self, tmp_path: Path, kind: str) -> None:
        order = ["background", *SEVEN[::-1]]
        (tmp_path / "names.txt").write_text("\ufeff" + "\n".join(order) + "\n", "utf-8")
        given: Any = {"list": order, "file": str(tmp_path / "names.txt"), "path": tmp_path / "names.txt"}[kind]
        train, val = memory("train", Role.TRAIN, tuple(SEVEN)), memory("val", Role.ID, ("ant", "gnu"))
        data = OODDataModule([train, val], class_names=given)
        assert data.class_names == tuple(order)
        assert labels(data, "train") == {name: order.index(name) for name in SEVEN}
        assert labels(data, "val") == {"ant": 7, "gnu": 1}

    @pytest.mark.parametrize("names", ["nowhere.txt", [], ["a", "a"], [""], ["two\nlines"]])
    def test_invalid_class_names_are_refused(self, names: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="class_names"):
            as_class_names(names)

    @pytest.mark.parametrize(
        ("file", "text"),
        [
            ("names.json", '["cat", "dog", "a, b"]'),
            (
                "names.json",
                '{"10": "k", "0": "cat", "1": "dog", "2": "a, b"'
                + "".join(f', "{n}": "{n}"' for n in range(3, 10))
                + "}",
            ),
            ("names.yaml", "- cat\n- dog\n- a, b\n"),
            ("names.yml", "1: dog\n0: cat\n2: a, b\n"),
            ("names.txt", "cat\n\n dog \na, b\n"),
            ("names", "cat\ndog\na, b"),
        ],
    )
    def test_files_of_names(self, tmp_path: Path, file: str, text: str) -> None:
        (tmp_path / file).write_text(text)
        names = as_class_names(tmp_path / file)
        assert names[:3] == ("cat", "dog", "a, b")
        assert len(names) == (11 if "10" in text else 3)
        assert names[3:] == (*map(str, range(3, 10)), "k")[: len(names) - 3]

    @pytest.mark.parametrize(
        ("file", "text", "message"),
        [
            ("names.csv", "0,cat\n1,dog\n", r"one name per line in a \.txt file, .* got \.csv"),
            ("names.tsv", "cat\n", r"got \.tsv"),
            ("names.txt", '["cat", "dog"]', r"got JSON; rename the file to \.json"),
            ("names.json", '{"1": "cat", "2": "dog"}', r"mapping from the indices 0, 1, \.\.\. to names"),
            ("names.json", '{"names": ["cat"]}', "expected a list of names"),
            ("names.json", "[1, 2]", "expected a list of names"),
            ("names.json", "cat", "cannot read the file"),
            ("names.yaml", "a: [", "cannot read the file"),
        ],
    )
    def test_files_of_another_format_are_refused(self, tmp_path: Path, file: str, text: str, message: str) -> None:
        (tmp_path / file).write_text(text)
        with pytest.raises(InvalidArgumentError, match=message):
            as_class_names(tmp_path / file)

    def test_wordnet_ids_are_recognized(self) -> None:
        ids, names = wnids(), imagenet_names()
        val = memory("val", Role.ID, (ids[7], ids[3]))
        for train in (ids, names):
            data = OODDataModule([memory("train", Role.TRAIN, train), val])
            assert labels(data, "val") == {ids[7]: 7, ids[3]: 3}
        assert labels(OODDataModule([val], class_names="imagenet"), "val") == {ids[7]: 7, ids[3]: 3}

    @pytest.mark.parametrize("known", [wnids, imagenet_names])
    def test_imagenet_classes_in_another_order(self, known: Any) -> None:
        """As ViM's own list of validation images, which numbers the classes otherwise."""
        shuffled = tuple(known()[i * 7 % 1000] for i in range(1000))
        val = memory("val", Role.ID, shuffled)
        text = f"ImageNet-1k are not in the published order (label 1 is {shuffled[1]!r}, not {known()[1]!r})"
        with pytest.raises(DataError, match=re.escape(text)):
            OODDataModule([val])
        found = labels(OODDataModule([val], class_names="imagenet"), "val")
        assert found == {name: i for i, name in enumerate(known())}
        assert labels(OODDataModule([val], class_names=shuffled), "val")[shuffled[1]] == 1


class TestFolders:
    def test_a_folder_stream_has_the_keys_of_its_shards(self, tmp_path: Path) -> None:
        source = folder(tmp_path / "far", ["x.1", "y"])
        listing = class_listing(source, Role.OOD)
        build_shards(listing, tmp_path / "out", name="far", role=Role.OOD, class_names=listing.class_names)
        direct, packed = folder_stream(source, role=Role.OOD), shard_stream(tmp_path / "out")
        assert (direct.name, direct.class_names) == (packed.name, packed.class_names)
        fields = [[(s.key, s.image, s.label, s.group) for s in t.source.read(0, 9)] for t in (direct, packed)]
        assert fields[0] == fields[1]

    def test_folder_stream_in_a_configuration(self, tmp_path: Path) -> None:
        for role, classes in (("train", SEVEN), ("id", SEVEN[2:])):
            folder(tmp_path / role, classes)
        config = {
            "class_path": "OODDataModule",
            "init_args": {
                "streams": [
                    {"class_path": "folder_stream", "init_args": {"path": str(tmp_path / role), "role": role}}
                    for role in ("train", "id")
                ],
                "max_images": 5,
            },
        }
        data = make(plan(config, OODDataModule, "--data"))
        assert [(stream.name, stream.role, len(stream)) for stream in data.streams] == [
            ("train", Role.TRAIN, 5),
            ("id", Role.ID, 5),
        ]
        assert labels(data, "id")["cat"] == 2

    def test_folders_without_images_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="expected a folder of images"):
            folder_stream(tmp_path / "no", role=Role.OOD)
        (tmp_path / "flat").mkdir()
        (tmp_path / "flat" / "a.png").write_bytes(tiny_image(0))
        with pytest.raises(DataError, match="require class folders"):
            folder_stream(tmp_path / "flat", role=Role.ID)
        assert len(folder_stream(tmp_path / "flat", role=Role.OOD)) == 1
