"""ShardSource: own shards and those of others, whole or broken."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.shards import ShardSource, shard_stream
from oodlit.datamodules.stream import Stream
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role
from tests.tiny_shards import keys_of, tiny_image, tiny_zeros, write_raw_tar, write_tiny_shards

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")  # more than the machine has
PNG = tiny_image(0)


@pytest.mark.filterwarnings("ignore:.*contains only zeros")
@settings(max_examples=15)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any), st.booleans(), st.data())
def test_any_range_of_any_shards(tmp_path_factory, lengths: list[int], manifest: bool, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("shards")
    keys = write_tiny_shards(folder, lengths, manifest=manifest)
    source = pickle.loads(pickle.dumps(ShardSource(folder)))
    assert len(source) == len(keys)
    start = data.draw(st.integers(0, len(keys)))
    stop = data.draw(st.integers(start, len(keys)))
    samples = list(source.read(start, stop))
    assert [sample.key for sample in samples] == keys[start:stop]
    assert [sample.group for sample in samples] == [i % 3 for i in range(start, stop)]
    assert [sample.image for sample in samples] == [tiny_image(i) for i in range(start, stop)]
    wanted = set(keys[::2])
    assert {sample.key for sample in source.find(wanted)} == wanted


@pytest.mark.filterwarnings("ignore:.*no class names")
@pytest.mark.filterwarnings("ignore:.*contains only zeros")
@settings(max_examples=15)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any), st.integers(1, 4), st.integers(1, 4), st.booleans()
)
def test_union_over_ranks_is_exact(
    tmp_path_factory, lengths: list[int], world_size: int, batch_size: int, manifest: bool
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    keys = write_tiny_shards(folder, lengths, manifest=manifest)
    stream = shard_stream(folder, name="tiny", role=Role.OOD)
    found = []
    for rank in range(world_size):
        loader = StreamLoader(stream, tiny_zeros, batch_size=batch_size, rank=rank, world_size=world_size)
        batches = list(loader)
        assert len(batches) == len(loader)
        found += [key for batch in batches for key in batch["key"]]
    assert found == [f"tiny/{key}" for key in keys]


@pytest.mark.parametrize("manifest", [True, False])
def test_pattern_list_and_folder_are_the_same(tmp_path: Path, manifest: bool) -> None:
    keys = write_tiny_shards(tmp_path, [2, 3, 1], manifest=manifest)
    paths = sorted(tmp_path.glob("*.tar"))
    for shards in (tmp_path, str(tmp_path / "tiny-{000000..000002}.tar"), str(tmp_path / "tiny-*.tar"), paths):
        assert keys_of(ShardSource(shards)) == keys
    assert keys_of(ShardSource(paths[1])) == keys[2:5]


def test_stream_takes_name_role_and_classes_from_the_manifest(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path, [2], name="sea", role=Role.SHIFT)
    stream = shard_stream(tmp_path)
    assert (stream.name, stream.role, stream.class_names) == ("sea", Role.SHIFT, ("class 0", "class 1", "class 2"))
    (tmp_path / "_info.json").unlink()
    with pytest.raises(InvalidArgumentError, match="no manifest specifies the name"):
        shard_stream(tmp_path)


class TestDotsInNames:
    def test_unknown_fields_are_reported(self, tmp_path: Path) -> None:
        write_raw_tar(tmp_path / "a.tar", {"a.v1.jpg": PNG, "a.v1.cls": b"1", "a.v2.jpg": PNG, "a.v2.cls": b"2"})
        (sample,) = ShardSource(tmp_path / "a.tar").read(0, 1)
        assert "found no image field, only the fields v1.jpg, v1.cls, v2.jpg, v2.cls" in str(sample.error)
        with pytest.raises(DataError, match=r"a\.tar, key 'a': found no image field, only the fields v1\.jpg"):
            list(StreamLoader(Stream("s", Role.OOD, ShardSource(tmp_path / "a.tar"))))

    def test_dots_in_folders_are_fine(self, tmp_path: Path) -> None:
        write_raw_tar(tmp_path / "a.tar", {"n01.x/a.jpg": PNG, "n01.x/b.jpg": PNG})
        assert keys_of(ShardSource(tmp_path)) == ["n01.x/a", "n01.x/b"]


class TestCaseAndAliasOfExtensions:
    def test_all_are_read(self, tmp_path: Path) -> None:
        write_raw_tar(
            tmp_path / "a.tar",
            {"X.JPEG": PNG, "X.CLS": b"7\n", "y.jpeg": PNG, "y.Json": b'{"group": 3}', "z.png": PNG, "z.cls": b"-1"},
        )
        samples = list(ShardSource(tmp_path).read(0, 3))
        assert [(s.key, s.label, s.group) for s in samples] == [("X", 7, -1), ("y", -1, 3), ("z", -1, -1)]

    @pytest.mark.filterwarnings("ignore:.*does not belong to a sample")
    def test_a_set_in_which_nothing_is_readable_is_an_error(self, tmp_path: Path) -> None:
        write_raw_tar(tmp_path / "a.tar", {"0.txt": b"hello", "1.mp4": b"film"})
        with pytest.raises(DataError, match="no samples in 1 shard"):
            ShardSource(tmp_path)

    def test_an_empty_folder_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"this folder contains no shards \(\*\.tar\)"):
            ShardSource(tmp_path)


class TestFilesNotAdjacentAndStrayFiles:
    def test_not_adjacent(self, tmp_path: Path) -> None:
        write_raw_tar(tmp_path / "a.tar", [("0.jpg", PNG), ("1.jpg", PNG), ("0.cls", b"0"), ("1.cls", b"1")])
        with pytest.raises(DataError, match=r"shard .*a\.tar: key '0' occurs again at"):
            ShardSource(tmp_path)

    def test_stray_files_are_reported_and_no_samples(self, tmp_path: Path) -> None:
        members = [("README", b"x"), ("0.jpg", PNG), ("__MACOSX/0.jpg", b"x"), ("._0.jpg", b"x"), ("0.cls", b"4")]
        write_raw_tar(tmp_path / "a.tar", members)
        with pytest.warns(UserWarning, match="'README' is ignored, because it does not belong"):
            source = ShardSource(tmp_path)
        assert [(s.key, s.label) for s in source.read(0, len(source))] == [("0", 4)]


class TestKeysNotUnique:
    def test_two_shards(self, tmp_path: Path) -> None:
        for number in range(2):
            write_raw_tar(tmp_path / f"{number}.tar", {"x/5.jpg": PNG, "x/5.cls": str(number).encode()})
        with pytest.raises(DataError, match=r"key 'x/5' occurs in shard .*0\.tar and again in shard .*1\.tar"):
            ShardSource(tmp_path)

    def test_two_shards_behind_a_manifest(self, tmp_path: Path) -> None:
        for number in range(2):
            write_raw_tar(tmp_path / f"{number}.tar", {"x/5.jpg": PNG, "x/5.cls": str(number).encode()})
        split = {"name": "test", "num_samples": 2, "filenames": ["0.tar", "1.tar"], "shard_lengths": [1, 1]}
        (tmp_path / "_info.json").write_text(json.dumps({"splits": {"test": split}}))
        stream = Stream("s", Role.OOD, ShardSource(tmp_path))
        with pytest.raises(DataError, match=r"key 'x/5' occurs more than once, first in shard .*0\.tar"):
            list(StreamLoader(stream, tiny_zeros))

    def test_one_shard(self, tmp_path: Path) -> None:
        write_raw_tar(tmp_path / "a.tar", [("5.jpg", PNG), ("5.jpg", PNG)])
        with pytest.raises(DataError, match=r"key '5' has two 'jpg' files"):
            ShardSource(tmp_path)

    def test_two_images_under_one_key(self, tmp_path: Path) -> None:
        write_raw_tar(tmp_path / "a.tar", [("5.jpg", PNG), ("5.png", PNG)])
        (sample,) = ShardSource(tmp_path).read(0, 1)
        assert "several images share one key (fields jpg, png)" in str(sample.error)

    def test_same_name_in_two_classes_are_two_identities(self, tmp_path: Path) -> None:
        write_raw_tar(tmp_path / "a.tar", {"x/5.jpg": PNG, "y/5.jpg": PNG})
        assert keys_of(ShardSource(tmp_path)) == ["x/5", "y/5"]


def test_more_workers_than_shards(tmp_path: Path) -> None:
    keys = write_tiny_shards(tmp_path, [5, 3])
    loader = StreamLoader(shard_stream(tmp_path), tiny_zeros, num_workers=3, batch_size=2)
    batches = list(loader)
    assert len(batches) == len(loader)
    assert sorted(key for batch in batches for key in batch["key"]) == sorted(f"tiny/{key}" for key in keys)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("world_size", [2, 3])
def test_sampling_policy_in_evaluation(tmp_path: Path, workers: int, world_size: int) -> None:
    keys = write_tiny_shards(tmp_path, [2, 1, 3, 1, 1, 2, 1])
    stream = shard_stream(tmp_path)
    runs = []
    for seed in range(2 if workers else 5):
        torch.manual_seed(seed)
        order = []
        for rank in range(world_size):
            loader = StreamLoader(stream, tiny_zeros, num_workers=workers, rank=rank, world_size=world_size)
            order += [key for batch in loader for key in batch["key"]]
        runs.append(order)
    assert sorted(runs[0]) == sorted(f"tiny/{key}" for key in keys)
    assert all(run == runs[0] for run in runs)


class TestErrorsHiddenByHandlersOrPipes:
    def members(self) -> dict[str, bytes]:
        images = [tiny_image(i) for i in range(4)]
        images[1], images[2] = images[1][: len(images[1]) // 2], b""
        return {f"{i}.png": image for i, image in enumerate(images)}

    def test_fatal_by_default(self, tmp_path: Path) -> None:
        write_raw_tar(tmp_path / "a.tar", self.members())
        loader = StreamLoader(Stream("s", Role.OOD, ShardSource(tmp_path)), tiny_zeros)
        with pytest.raises(DataError, match=r"data set 's': shard .*a\.tar, key '1': undecodable"):
            list(loader)

    def test_skipped_ones_are_listed(self, tmp_path: Path) -> None:
        write_raw_tar(tmp_path / "a.tar", self.members())
        stream = Stream("s", Role.OOD, ShardSource(tmp_path))
        (batch,) = StreamLoader(stream, tiny_zeros, on_error="skip")
        assert batch["key"] == ["s/0", "s/3"]
        assert [key for key, _ in batch["skipped"]] == ["s/1", "s/2"]
        assert "empty" in batch["skipped"][1][1]

    @pytest.mark.parametrize("url", ["pipe:cat missing.tar || true", "ftp://x/a.tar", "simplecache::http://x/a.tar"])
    def test_no_pipes(self, url: str) -> None:
        with pytest.raises(InvalidArgumentError, match="pipes and chained URLs"):
            ShardSource(url)


def test_unsafe_decoders(tmp_path: Path) -> None:
    mark = tmp_path / "exploded"
    bomb = f"cposix\nsystem\n(S'touch {mark}'\ntR.".encode()
    pickle.loads(bomb)
    assert mark.exists()  # it would be seen
    mark.unlink()
    write_raw_tar(tmp_path / "a.tar", {"0.pyd": bomb, "0.pkl": bomb, "0.pt": bomb, "0.png": PNG, "0.cls": b"2"})
    (sample,) = ShardSource(tmp_path).read(0, 1)
    assert (sample.key, sample.image, sample.label) == ("0", PNG, 2)
    assert not mark.exists()


def test_splits_of_one_folder(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path, [2], manifest=False, name="a-train")
    write_tiny_shards(tmp_path, [3], manifest=False, name="a-validation")
    splits = {
        name: {"name": name, "num_samples": n, "filenames": [f"a-{name}-000000.tar"], "shard_lengths": [n]}
        for name, n in (("train", 2), ("validation", 3))
    }
    (tmp_path / "_info.json").write_text(json.dumps({"splits": splits}))
    assert len(ShardSource(tmp_path, split="validation")) == 3
    assert len(ShardSource(str(tmp_path / "a-train-*.tar"))) == 2
    with pytest.raises(InvalidArgumentError, match="one of train, validation; got None"):
        ShardSource(tmp_path)
    with pytest.raises(InvalidArgumentError, match="got 'val'"):
        ShardSource(tmp_path, split="val")


def test_a_folder_in_a_list_of_shards(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=rf"{tmp_path}/b: expected a shard \(\.tar\), got a folder"):
        ShardSource([tmp_path / "b"])
    with pytest.raises(DataError, match=rf"{tmp_path}/c does not exist"):
        ShardSource([tmp_path / "c"])


def test_one_shard_given_twice_is_an_error(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path, [2])
    path = tmp_path / "tiny-000000.tar"
    with pytest.raises(DataError, match="is listed twice"):
        ShardSource([path, path])
