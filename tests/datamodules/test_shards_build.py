"""Building: any source, the same bytes, safe against kills."""

import errno
import hashlib
import json
import multiprocessing
import os
import random
import signal
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oodlit.datamodules.keys import escape_key, unescape_key
from oodlit.datamodules.shards import (
    Entry,
    ShardSource,
    build_shards,
    class_listing,
    shard_info,
    shard_stream,
    verify_shards,
)
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role
from tests.datamodules.image_sources import FILES, KINDS, PNG, checksums, entries_of, write_source
from tests.tiny_shards import tiny_image


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_gives_each_file_once_with_its_class_and_bytes(tmp_path: Path, kind: str) -> None:
    listing = class_listing(write_source(kind, tmp_path / "in"), Role.OOD)
    assert listing.class_names == ("donuts", "high heels", "mbira")
    out = tmp_path / "out"
    info = build_shards(
        listing, out, name="set", role=Role.OOD, class_names=listing.class_names, shard_size=2, extra={"licence": "CC0"}
    )
    assert (info.num_samples, [shard.samples for shard in info.shards]) == (5, [2, 2, 1])
    stream = shard_stream(out)
    samples = list(stream.source.read(0, 5))
    assert {unescape_key(sample.key): sample.image for sample in samples} == FILES
    for sample in samples:
        assert stream.class_names[sample.group] == unescape_key(sample.key).split("/")[1]
        assert sample.label == -1
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".info")) == [
        "_info.json",
        "set-test-000000.tar",
        "set-test-000001.tar",
        "set-test-000002.tar",
    ]
    with tarfile.open(out / "set-test-000000.tar") as tar:
        meta = json.load(tar.extractfile(next(m for m in tar.getmembers() if m.name.endswith("976%2EJPEG.json"))))
    path = "set/donuts/donuts_001_0.9976.JPEG"
    assert meta == {"group": 0, "label": -1, "path": path, "size": len(FILES[path])}


@pytest.mark.parametrize("kind", ["folder", "tar.gz"])
def test_same_input_same_bytes_and_a_finished_build_writes_nothing(tmp_path: Path, kind: str) -> None:
    source = write_source(kind, tmp_path / "in")
    for out, workers in (("a", 1), ("b", 3)):
        build_shards(
            class_listing(source, Role.OOD), tmp_path / out, name="s", role=Role.OOD, shard_size=2, workers=workers
        )
    assert checksums(tmp_path / "a") == checksums(tmp_path / "b")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").glob("*.tar")}
    done: list[int] = []
    listing = class_listing(source, Role.OOD)
    build_shards(listing, tmp_path / "a", name="s", role=Role.OOD, shard_size=2, progress=done.append)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").glob("*.tar")} == times
    assert sum(done) == 5


@pytest.mark.parametrize("kind", ["folder", "tar.gz"])
def test_an_interrupted_build_goes_on_to_the_same_bytes(tmp_path: Path, kind: str) -> None:
    source = write_source(kind, tmp_path / "in")
    build_shards(class_listing(source, Role.OOD), tmp_path / "whole", name="s", role=Role.OOD, shard_size=1)
    for stop in range(6):
        out = tmp_path / f"out{stop}"

        def entries(stop: int = stop):
            for number, entry in enumerate(class_listing(source, Role.OOD)):
                if number == stop:
                    raise KeyboardInterrupt
                yield entry

        if stop < 5:
            with pytest.raises(KeyboardInterrupt):
                build_shards(entries(), out, name="s", role=Role.OOD, shard_size=1)
            assert not (out / "_info.json").exists()
            assert len(list(out.glob("*.tar"))) == stop
        build_shards(class_listing(source, Role.OOD), out, name="s", role=Role.OOD, shard_size=1)
        assert checksums(out) == checksums(tmp_path / "whole")


def slow_build(out: Path) -> None:
    """120 images in shards of 7, a third of a second in all."""

    def read(number: int) -> bytes:
        time.sleep(0.004)
        return bytes([number % 256]) * 20_000

    entries = [Entry(f"c{i % 3}/{i:04d}.png", lambda i=i: read(i), group=i % 3) for i in range(120)]
    build_shards(entries, out, name="k", role=Role.OOD, shard_size=7, workers=2, check="none")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_killed_builds_lose_nothing_and_corrupt_nothing(tmp_path: Path) -> None:
    slow_build(tmp_path / "whole")
    whole = checksums(tmp_path / "whole")
    rng = random.Random(0)
    killed = interrupted = 0
    for attempt in range(12):
        out = tmp_path / f"out{attempt // 4}"  # four kills each, at random points
        process = multiprocessing.get_context("fork").Process(target=slow_build, args=(out,))
        process.start()
        time.sleep(rng.uniform(0.01, 0.2))
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        interrupted += any(out.glob("*.tar")) and not (out / "_info.json").exists()
        for path in out.glob("k-*.tar"):  # what has its name is whole
            assert hashlib.sha256(path.read_bytes()).hexdigest() == whole[path.name]
        process.close()
    assert killed >= 3
    assert interrupted >= 1
    for number in range(3):
        slow_build(tmp_path / f"out{number}")
        assert checksums(tmp_path / f"out{number}") == whole


def test_only_leftovers_of_builds_are_removed(tmp_path: Path) -> None:
    for name in (".mine.tmp", ".a.tar.tmp", ".set-test-000007.tar.0123abcd.tmp"):
        (tmp_path / name).touch()
    build_shards([Entry("a.png", lambda: tiny_image(0))], tmp_path, name="set", role=Role.OOD)
    left = {path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"}
    assert left == {".mine.tmp", ".a.tar.tmp"}


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 12), st.integers(1, 13), st.integers(1, 3))
def test_any_shard_size(tmp_path_factory, total: int, shard_size: int, workers: int) -> None:
    out = tmp_path_factory.mktemp("out")
    paths = [f"a.b/{i}.v1.png" for i in range(total)]
    info = build_shards(entries_of(paths), out, name="s", role=Role.OOD, shard_size=shard_size, workers=workers)
    assert [shard.samples for shard in info.shards] == [
        len(paths[i : i + shard_size]) for i in range(0, total, shard_size)
    ]
    assert [sample.key for sample in ShardSource(out).read(0, total)] == [escape_key(path) for path in paths]


class TestRefusals:
    def build(self, out: Path, paths: list[str], **options: object) -> None:
        build_shards(entries_of(paths), out, **({"name": "s", "role": Role.OOD, "shard_size": 1} | options))

    def test_another_listing(self, tmp_path: Path) -> None:
        self.build(tmp_path, ["a.png", "b.png"])
        with pytest.raises(DataError, match=r"s-test-000001\.tar was built from other files.*'c\.png'"):
            self.build(tmp_path, ["a.png", "c.png"])
        with pytest.raises(DataError, match=r"1 shard \(first: s-test-000001\.tar\) is left over"):
            self.build(tmp_path, ["a.png"])
        with pytest.raises(DataError, match="built from other files"):
            self.build(tmp_path, ["a.png", "b.png"], shard_size=2)
        with pytest.raises(DataError, match=r"s-test-000000\.tar was built from other files, labels or groups"):
            build_shards([Entry("a.png", lambda: PNG, group=1)], tmp_path, name="s", role=Role.OOD, shard_size=1)

    def test_a_foreign_shard_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "s-test-000000.tar").write_bytes(b"x")
        with pytest.raises(DataError, match="was not written by this build"):
            self.build(tmp_path, ["a.png"])
        assert (tmp_path / "s-test-000000.tar").read_bytes() == b"x"

    def test_paths_twice(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"path 'a\.png' occurs twice"):
            self.build(tmp_path, ["a.png", "a.png"])

    def test_number_of_images(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="s: expected 2 images, but the source has 1"):
            self.build(tmp_path, ["a.png"], expected=2)
        with pytest.raises(DataError, match="the listing of the source is empty"):
            self.build(tmp_path, [])

    def test_no_image(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"'a\.txt': expected an image extension .*'txt'"):
            self.build(tmp_path, ["a.txt"])

    def test_undecodable_image(self, tmp_path: Path) -> None:
        bad = [Entry("a.png", lambda: b"no image")]
        with pytest.raises(DataError, match=r"'a\.png': undecodable image"):
            build_shards(bad, tmp_path, name="s", role=Role.OOD)
        half = [Entry("a.png", lambda: tiny_image(0)[:-30])]
        with pytest.raises(DataError, match=r"'a\.png': undecodable PNG image"):
            build_shards(half, tmp_path, name="s", role=Role.OOD, check="decode")
        assert not list(tmp_path.glob("*.tar"))
        assert not list(tmp_path.glob(".*tmp"))
        build_shards(bad, tmp_path, name="s", role=Role.OOD, check="none")

    def test_indices(self, tmp_path: Path) -> None:
        entries = [Entry("a.png", lambda: tiny_image(0), label=2, group=2)]
        with pytest.raises(InvalidArgumentError, match=r"'a\.png': group 2 is out of range for 2 class names"):
            build_shards(entries, tmp_path, name="s", role=Role.OOD, class_names=("a", "b"))
        with pytest.raises(InvalidArgumentError, match=r"label 2 is out of range for 2 class names"):
            build_shards(entries, tmp_path, name="s", role=Role.ID, class_names=("a", "b"))
        with pytest.raises(DataError, match=r"'a\.png' has no label"):
            self.build(tmp_path, ["a.png"], role=Role.TRAIN)

    @pytest.mark.integration
    def test_two_builds_at_once(self, tmp_path: Path) -> None:
        def entries():
            yield entries_of(["a.png"])[0]
            with pytest.raises(DataError, match="another build is running in this folder"):
                self.build(tmp_path, ["a.png"])

        build_shards(entries(), tmp_path, name="s", role=Role.OOD, shard_size=1)


class TestInterrupted:
    """Shards of a build that did not end are whole, but not all: nobody may take them for the set."""

    def interrupt(self, folder: Path, count: int = 3) -> list[Entry]:
        def stop() -> bytes:
            raise KeyboardInterrupt

        entries = entries_of([f"{i}.png" for i in range(count)])
        with pytest.raises(KeyboardInterrupt):
            build_shards([*entries[:-1], Entry("z.png", stop)], folder, name="s", role=Role.OOD, shard_size=1)
        return entries

    def test_they_are_not_read(self, tmp_path: Path) -> None:
        entries = self.interrupt(tmp_path)
        for shards in (tmp_path, tmp_path / "s-test-000000.tar", [tmp_path / "s-test-000001.tar"]):
            with pytest.raises(DataError, match="a build has not finished"):
                ShardSource(shards)
        for check in (verify_shards, shard_info):
            with pytest.raises(
                DataError, match=r"not finished, so 2 shards \(first: 's-test-000000\.tar'\) are not in"
            ):
                check(tmp_path)
        build_shards(entries, tmp_path, name="s", role=Role.OOD, shard_size=1)
        assert len(ShardSource(tmp_path)) == 3

    def test_the_split_beside_them_is_not_read_either(self, tmp_path: Path) -> None:
        build_shards([Entry("a.png", lambda: PNG, label=0)], tmp_path, name="s", role=Role.TRAIN)
        self.interrupt(tmp_path)
        with pytest.raises(DataError, match="a build has not finished"):
            shard_stream(tmp_path, split="train")

    def test_a_damaged_note_is_an_error(self, tmp_path: Path) -> None:
        entries = self.interrupt(tmp_path)
        (tmp_path / ".build" / "s-test-000000.tar.json").write_text("{")
        with pytest.raises(DataError, match=r"s-test-000000\.tar\.json: not valid JSON .*; remove this file and"):
            build_shards(entries, tmp_path, name="s", role=Role.OOD, shard_size=1)

    def test_a_full_disk_is_one_error_and_the_build_resumes(self, tmp_path: Path, monkeypatch) -> None:
        entries = entries_of([f"{i}.png" for i in range(4)])
        calls = iter([None] * 5 + [OSError(errno.ENOSPC, "No space left on device")] * 3)
        real = os.fsync

        def fsync(file: int) -> None:
            if failure := next(calls, None):
                raise failure
            real(file)

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(DataError, match=r"cannot write shards .*No space left on device.*; free space"):
            build_shards(entries, tmp_path, name="s", role=Role.OOD, shard_size=1)
        monkeypatch.undo()
        assert not list(tmp_path.rglob("*.tmp"))
        assert build_shards(entries, tmp_path, name="s", role=Role.OOD, shard_size=1).num_samples == 4


def test_another_set_needs_another_folder(tmp_path: Path) -> None:
    build_shards(entries_of(["a.png"]), tmp_path, name="one", role=Role.OOD)
    with pytest.raises(DataError, match=r"already contains split 'test' of 'one'; .*'two'"):
        build_shards(entries_of(["a.png"]), tmp_path, name="two", role=Role.OOD)
    assert shard_stream(tmp_path).name == "one"


@pytest.mark.parametrize(
    "change",
    [
        {"shard_lengths": [-1]},
        {"shard_lengths": [True]},
        {"shard_lengths": [1.0]},
        {"shard_lengths": {"0": 1}},
        {"num_samples": "1"},
        {"role": "boss"},
        {"class_names": "abc"},
        {"class_names": [1]},
        {"label_counts": {"a": 1}},
        {"group_counts": [1]},
        {"sha256": [1]},
        {"sizes": ["a"]},
        {"extra": [1]},
        {"filenames": ["../x.tar"]},
        None,
    ],
    ids=str,
)
def test_an_invalid_manifest_is_an_error(tmp_path: Path, change: dict[str, object] | None) -> None:
    build_shards(entries_of(["a.png"]), tmp_path, name="s", role=Role.OOD)
    path = tmp_path / "_info.json"
    data = json.loads(path.read_text())
    data["splits"] = {} if change is None else {"test": data["splits"]["test"] | change}
    path.write_text(json.dumps(data))
    for use in (ShardSource, verify_shards, shard_info):
        with pytest.raises(DataError, match=r"_info\.json: .*remove it to count the samples again"):
            use(tmp_path)


@pytest.mark.parametrize("name", ["", "a/b", " a", "a\n"])
def test_names_that_no_stream_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected printable characters without '/'"):
        build_shards(entries_of(["a.png"]), tmp_path, name=name, role=Role.OOD)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "two\nlines"), r"class name 'two\\nlines' must not be empty"),
        (("a", " "), "class name ' '"),
        (("a", "a"), "two classes are called 'a'"),
    ],
)
def test_class_names_that_no_table_can_show(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        build_shards(entries_of(["a.png"]), tmp_path, name="s", role=Role.OOD, class_names=names)


def test_images_without_a_group_in_a_set_with_groups(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'a\.png' has no group, .* 2 class names\. .* column 'group' of the list"):
        build_shards([Entry("a.png", lambda: PNG)], tmp_path, name="s", role=Role.OOD, class_names=("a", "b"))


def test_the_count_of_a_finished_shard_follows_from_its_listing(tmp_path: Path) -> None:
    build_shards(entries_of(["a.png", "b.png"]), tmp_path, name="s", role=Role.OOD)
    path = tmp_path / "_info.json"
    path.write_text(path.read_text().replace('"num_samples": 2', '"num_samples": 3').replace("2\n   ]", "3\n   ]"))
    with pytest.raises(DataError, match="expected 3 samples according to the manifest, found 2"):
        list(ShardSource(tmp_path).read(0, 3))
    assert build_shards(entries_of(["a.png", "b.png"]), tmp_path, name="s", role=Role.OOD).num_samples == 2


def test_two_splits_share_a_folder(tmp_path: Path) -> None:
    labelled = [Entry(f"{i}.png", lambda: tiny_image(0), label=i) for i in range(3)]
    build_shards(labelled, tmp_path, name="d", role=Role.TRAIN)
    build_shards(labelled[:2], tmp_path, name="d", role=Role.ID)
    assert len(shard_stream(tmp_path, split="train")) == 3
    assert shard_stream(tmp_path, split="validation").role is Role.ID
