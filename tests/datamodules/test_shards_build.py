"""Building: any source, the same bytes, safe against kills."""

import errno
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import random
import re
import signal
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oodlit.datamodules.keys import escape_key, unescape_key
from oodlit.datamodules.shards import (
    Entry,
    Place,
    ShardSource,
    build_shards,
    class_listing,
    listed_listing,
    map_files,
    open_files,
    shard_info,
    shard_stream,
    verify_shards,
)
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.roles import Role
from oodlit.testing.shards import tiny_image

PNG = tiny_image(0)
FILES = {
    "set/donuts/donuts_001_0.9976.JPEG": tiny_image(1, format="JPEG"),
    "set/high heels/high heels_002.png": tiny_image(2),
    "set/high heels/high heels_002.jpg": tiny_image(3, format="JPEG"),
    "set/mbira/mbira_003.GIF": tiny_image(4, format="GIF"),
    "set/mbira/é_004.jpeg": tiny_image(5),  # a PNG by content
}


def write_source(kind: str, folder: Path, files: dict[str, bytes] = FILES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        for path, data in files.items():
            (folder / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / path).write_bytes(data)
        (folder / "tree" / ".hidden.jpg").write_bytes(b"x")
        return folder / "tree"
    path = folder / f"source.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("__MACOSX/set/._x.jpg", b"x")
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    with tarfile.open(path, {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}[kind]) as tar:
        for name, data in {"__MACOSX/set/._x.jpg": b"x", **files}.items():
            info = tarfile.TarInfo(f"./{name}" if kind == "tar" else name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def checksums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


KINDS = ["folder", "zip", "tar", "tar.gz", "tar.xz"]


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
    for name in (".mine.tmp", ".a.tar.tmp", ".set-test-000000.tar.123.tmp"):
        (tmp_path / name).touch()
    build_shards([Entry("a.png", lambda: tiny_image(0))], tmp_path, name="set", role=Role.OOD)
    left = {path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"}
    assert left == {".mine.tmp", ".a.tar.tmp"}


def entries_of(paths: list[str]) -> list[Entry]:
    return [Entry(path, lambda: tiny_image(0)) for path in paths]


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
        with pytest.raises(DataError, match=r"s-test-000001\.tar was built from another listing .*'c\.png'"):
            self.build(tmp_path, ["a.png", "c.png"])
        with pytest.raises(DataError, match=r"s-test-000001\.tar \(1 in all\) belongs to a longer listing"):
            self.build(tmp_path, ["a.png"])
        with pytest.raises(DataError, match="another listing"):
            self.build(tmp_path, ["a.png", "b.png"], shard_size=2)

    def test_a_foreign_shard_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "s-test-000000.tar").write_bytes(b"x")
        with pytest.raises(DataError, match="was not made by this build"):
            self.build(tmp_path, ["a.png"])
        assert (tmp_path / "s-test-000000.tar").read_bytes() == b"x"

    def test_paths_twice(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"path 'a\.png' occurs twice"):
            self.build(tmp_path, ["a.png", "a.png"])

    def test_number_of_images(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="s: the source has 1 images of this set, 2 are expected"):
            self.build(tmp_path, ["a.png"], expected=2)
        with pytest.raises(DataError, match="the listing is empty"):
            self.build(tmp_path, [])

    def test_no_image(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"'a\.txt': extension 'txt' is none of an image"):
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
        with pytest.raises(InvalidArgumentError, match=r"'a\.png': group 2, but there are 2 class names"):
            build_shards(entries, tmp_path, name="s", role=Role.OOD, class_names=("a", "b"))
        with pytest.raises(InvalidArgumentError, match="label 2, but there are 2 class names"):
            build_shards(entries, tmp_path, name="s", role=Role.ID, class_names=("a", "b"))
        with pytest.raises(DataError, match=r"'a\.png' has no label; training images need one"):
            self.build(tmp_path, ["a.png"], role=Role.TRAIN)

    def test_two_builds_at_once(self, tmp_path: Path) -> None:
        def entries():
            yield entries_of(["a.png"])[0]
            with pytest.raises(DataError, match="another build is at work in this folder"):
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
            with pytest.raises(DataError, match="a build was interrupted here"):
                ShardSource(shards)
        for check in (verify_shards, shard_info):
            with pytest.raises(DataError, match=r"interrupted here \(2 shards so far, first 's-test-000000\.tar'\)"):
                check(tmp_path)
        build_shards(entries, tmp_path, name="s", role=Role.OOD, shard_size=1)
        assert len(ShardSource(tmp_path)) == 3

    def test_the_split_beside_them_is_not_read_either(self, tmp_path: Path) -> None:
        build_shards([Entry("a.png", lambda: PNG, label=0)], tmp_path, name="s", role=Role.TRAIN)
        self.interrupt(tmp_path)
        with pytest.raises(DataError, match="a build was interrupted here"):
            shard_stream(tmp_path, split="train")

    def test_a_damaged_note_is_an_error(self, tmp_path: Path) -> None:
        entries = self.interrupt(tmp_path)
        (tmp_path / ".build" / "s-test-000000.tar.json").write_text("{")
        with pytest.raises(DataError, match=r"s-test-000000\.tar\.json is damaged .* remove it and"):
            build_shards(entries, tmp_path, name="s", role=Role.OOD, shard_size=1)

    def test_a_full_disk_is_one_error_and_the_build_goes_on(self, tmp_path: Path, monkeypatch) -> None:
        entries = entries_of([f"{i}.png" for i in range(4)])
        calls = iter([None] * 5 + [OSError(errno.ENOSPC, "No space left on device")] * 3)
        real = os.fsync

        def fsync(file: int) -> None:
            if failure := next(calls, None):
                raise failure
            real(file)

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(DataError, match=r"shards cannot be written: .*No space left on device; make room"):
            build_shards(entries, tmp_path, name="s", role=Role.OOD, shard_size=1)
        monkeypatch.undo()
        assert not list(tmp_path.rglob("*.tmp"))
        assert build_shards(entries, tmp_path, name="s", role=Role.OOD, shard_size=1).num_samples == 4


def test_another_set_needs_another_folder(tmp_path: Path) -> None:
    build_shards(entries_of(["a.png"]), tmp_path, name="one", role=Role.OOD)
    with pytest.raises(DataError, match="holds the split 'test' of 'one'; 'two' needs its own folder"):
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
def test_a_manifest_that_is_none_is_an_error(tmp_path: Path, change: dict[str, object] | None) -> None:
    build_shards(entries_of(["a.png"]), tmp_path, name="s", role=Role.OOD)
    path = tmp_path / "_info.json"
    data = json.loads(path.read_text())
    data["splits"] = {} if change is None else {"test": data["splits"]["test"] | change}
    path.write_text(json.dumps(data))
    for use in (ShardSource, verify_shards, shard_info):
        with pytest.raises(DataError, match=r"_info\.json: .*remove it to have the shards counted"):
            use(tmp_path)


@pytest.mark.parametrize("name", ["", "a/b", " a", "a\n"])
def test_names_that_no_stream_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="of a data set: printable characters without '/'"):
        build_shards(entries_of(["a.png"]), tmp_path, name=name, role=Role.OOD)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "two\nlines"), r"class name 'two\\nlines'; text without line breaks"),
        (("a", " "), "class name ' '"),
        (("a", "a"), "two classes are called 'a'"),
    ],
)
def test_class_names_that_no_table_can_show(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        build_shards(entries_of(["a.png"]), tmp_path, name="s", role=Role.OOD, class_names=names)


def test_images_without_a_group_in_a_set_with_groups(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'a\.png' has no group, but 2 are named"):
        build_shards([Entry("a.png", lambda: PNG)], tmp_path, name="s", role=Role.OOD, class_names=("a", "b"))


def test_the_count_of_a_finished_shard_follows_from_its_listing(tmp_path: Path) -> None:
    build_shards(entries_of(["a.png", "b.png"]), tmp_path, name="s", role=Role.OOD)
    path = tmp_path / "_info.json"
    path.write_text(path.read_text().replace('"num_samples": 2', '"num_samples": 3').replace("2\n   ]", "3\n   ]"))
    with pytest.raises(DataError, match="holds 2 samples, the manifest states 3"):
        list(ShardSource(tmp_path).read(0, 3))
    assert build_shards(entries_of(["a.png", "b.png"]), tmp_path, name="s", role=Role.OOD).num_samples == 2


def test_two_splits_share_a_folder(tmp_path: Path) -> None:
    labelled = [Entry(f"{i}.png", lambda: tiny_image(0), label=i) for i in range(3)]
    build_shards(labelled, tmp_path, name="d", role=Role.TRAIN)
    build_shards(labelled[:2], tmp_path, name="d", role=Role.ID)
    assert len(shard_stream(tmp_path, split="train")) == 3
    assert shard_stream(tmp_path, split="validation").role is Role.ID


class TestSources:
    @pytest.mark.parametrize("kind", KINDS)
    def test_same_files_from_every_kind(self, tmp_path: Path, kind: str) -> None:
        files = open_files(write_source(kind, tmp_path))
        assert sorted(files.paths) == sorted(FILES)
        for _ in range(2):
            assert {file.path: file.read() for file in files} == FILES
            assert [file.path for file in files] == list(files.paths)

    @pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.xz"])
    @pytest.mark.parametrize("part", [0.3, 0.7, 0.97])
    def test_a_truncated_archive_is_an_error(self, tmp_path: Path, kind: str, part: float) -> None:
        path = write_source(kind, tmp_path, {f"a/{i}.png": os.urandom(3000) for i in range(8)})
        data = path.read_bytes()
        used = len(data.rstrip(b"\0")) if kind == "tar" else len(data)
        path.write_bytes(data[: int(used * part)])
        with pytest.raises(DataError, match=r"source\.\S+.*(fetch|in turn)"):
            open_files(path)

    def test_a_flipped_byte_is_found_by_the_archive_checksum(self, tmp_path: Path) -> None:
        path = write_source("zip", tmp_path, {"a.png": os.urandom(5000)})
        data = bytearray(path.read_bytes())
        data[2000] ^= 255
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"source\.zip: 'a\.png' .*fetch the archive again"):
            [file.read() for file in open_files(path)]

    def test_missing_and_unknown_kinds(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"does not exist; a folder, a \.zip or a \.tar"):
            open_files(tmp_path / "no")
        (tmp_path / "x.rar").write_bytes(b"Rar!" * 300)
        with pytest.raises(DataError, match=r"x\.rar cannot be read as a \.zip or \.tar"):
            open_files(tmp_path / "x.rar")

    def test_links_in_archives_are_refused_and_in_folders_followed(self, tmp_path: Path) -> None:
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            info = tarfile.TarInfo("a.png")
            info.type, info.linkname = tarfile.LNKTYPE, "b.png"
            tar.addfile(info)
        with pytest.raises(DataError, match=r"'a\.png' is a link"):
            open_files(tmp_path / "a.tar")
        (tmp_path / "tree" / "x").mkdir(parents=True)
        (tmp_path / "tree" / "x" / "a.png").write_bytes(b"1")
        (tmp_path / "tree" / "loop").symlink_to(tmp_path / "tree")
        assert list(open_files(tmp_path / "tree").paths) == ["x/a.png"]

    @pytest.mark.parametrize("kind", ["zip", "tar.gz"])
    @pytest.mark.parametrize("path", ["a/../../x.png", "../x.png", "/x.png"])
    def test_a_path_that_leaves_the_archive_is_refused(self, tmp_path: Path, path: str, kind: str) -> None:
        archive = write_source(kind, tmp_path, {"b/y.png": PNG, path: PNG})
        with pytest.raises(DataError, match=re.escape(f"{archive}: {path!r} leads out of the archive")):
            open_files(archive)

    @pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
    def test_empty_and_dot_parts_are_no_hidden_files(self, tmp_path: Path, kind: str) -> None:
        names = {"./a/1.png": PNG, "a//2.png": PNG, "a/./3.png": PNG, ".b/4.png": PNG, "a/.5.png": PNG}
        assert list(open_files(write_source(kind, tmp_path, names)).paths) == ["a/1.png", "a/2.png", "a/3.png"]

    @pytest.mark.parametrize("kind", ["tar.gz", "tar.bz2", "tar.xz"])
    def test_a_cut_at_any_place_is_an_error(self, tmp_path: Path, kind: str) -> None:
        archive = write_source(kind, tmp_path, {"a/1.png": PNG, "b/2.png": PNG})
        data = archive.read_bytes()
        for length in range(1, len(data), max(1, len(data) // 60)):
            archive.write_bytes(data[:length])
            with pytest.raises(DataError, match="fetch"):
                open_files(archive)
        archive.write_bytes(data[:-1])
        with pytest.raises(DataError, match="damaged"):
            open_files(archive)

    @pytest.mark.parametrize("kind", ["tar", "tar.gz"])
    def test_a_tar_that_ends_between_two_files_is_an_error(self, tmp_path: Path, kind: str) -> None:
        # the compressed stream is whole: what was cut is the tar within it
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name in ("a/1.png", "b/2.png"):
                info = tarfile.TarInfo(name)
                info.size = len(PNG)
                tar.addfile(info, io.BytesIO(PNG))
            second = tar.offset - 512 - -(-len(PNG) // 512) * 512
        cut = file.getvalue()[:second]
        archive = tmp_path / f"a.{kind}"
        archive.write_bytes(cut if kind == "tar" else gzip.compress(cut))
        with pytest.raises(DataError, match=f"damaged or truncated at byte {second}"):
            open_files(archive)

    def test_pieces_of_gzip_one_after_the_other_are_one_archive(self, tmp_path: Path) -> None:
        whole = gzip.decompress(write_source("tar.gz", tmp_path).read_bytes())
        (tmp_path / "pieces.tgz").write_bytes(gzip.compress(whole[:1000]) + gzip.compress(whole[1000:]))
        assert sorted(open_files(tmp_path / "pieces.tgz").paths) == sorted(FILES)

    def test_a_link_in_a_zip_is_refused(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            info = zipfile.ZipInfo("a/2.png")
            info.external_attr = 0o120777 << 16
            archive.writestr(info, "1.png")
        with pytest.raises(DataError, match=r"'a/2\.png' is a link"):
            open_files(tmp_path / "a.zip")

    def test_a_pipe_in_a_folder_is_an_error_not_a_wait(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "a.png")
        with pytest.raises(DataError, match=r"a\.png is a pipe, socket or device"):
            list(open_files(tmp_path))


class TestListings:
    @pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tar.gz"])
    def test_images_at_the_root_have_no_classes(self, tmp_path: Path, kind: str) -> None:
        source = write_source(kind, tmp_path, {"1.png": PNG, "2.png": PNG})
        listing = class_listing(source, Role.OOD)
        assert (listing.class_names, sorted(entry.path for entry in listing)) == ((), ["1.png", "2.png"])
        with pytest.raises(DataError, match="all images lie in one folder"):
            class_listing(source, Role.ID)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("l.txt", "a/1.png\n".encode("utf-16"), r"l\.txt is not UTF-8 .*; save it as UTF-8"),
            ("l.csv", "path,group\na/1.png,é\n".encode("latin-1"), r"l\.csv is not UTF-8"),
            ("l.csv", b"path,label\na/1.png\n", "line 2: another number of columns than the header"),
            ("l.csv", b"path,label\na/1.png,1,2\n", "line 2: another number of columns than the header"),
            ("l.csv", b"path,label\na/1.png,9999999999\n", "has label '9999999999'; a class index"),
            ("l.csv", b"path;label\na/1.png;1\n", "a header with the column 'path' is needed"),
        ],
    )
    def test_lists_with_faults(self, tmp_path: Path, name: str, content: bytes, message: str) -> None:
        source = self.tree(tmp_path / "images", "a/1.png")
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            listed_listing(tmp_path / name, source)

    @pytest.mark.parametrize("line", ["./a/1.png 3\r\n", "\ufeffa/1.png 3", "a/1.png 3\n\n"])
    def test_lists_as_programs_write_them(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "l.txt").write_bytes(line.encode())
        found = listed_listing(tmp_path / "l.txt", self.tree(tmp_path / "images", "a/1.png"))
        assert [(entry.path, entry.label) for entry in found] == [("a/1.png", 3)]

    def test_folders_of_a_shifted_set_are_labels_not_groups(self, tmp_path: Path) -> None:
        listing = class_listing(self.tree(tmp_path, "a/1.png", "b/2.png"), Role.SHIFT)
        assert listing.class_names == ()
        assert [(entry.label, entry.group) for entry in listing] == [(0, -1), (1, -1)]

    def test_control_characters_in_folder_names_are_spelt_out(self, tmp_path: Path) -> None:
        listing = class_listing(self.tree(tmp_path, "two\nlines/1.png", "b/2.png"), Role.OOD)
        assert listing.class_names == ("b", r"two\nlines")

    def test_folder_names_that_are_no_utf8_can_be_written_anywhere(self, tmp_path: Path) -> None:
        listing = class_listing(write_source("tar", tmp_path, {"caf\udce9/1.png": PNG, "b/2.png": PNG}), Role.OOD)
        assert listing.class_names == ("b", r"caf\xe9")
        info = build_shards(listing, tmp_path / "out", name="s", role=Role.OOD, class_names=listing.class_names)
        assert [s.key for s in ShardSource(tmp_path / "out").read(0, 2)] == ["caf%E9/1%2Epng", "b/2%2Epng"]
        "".join(info.class_names).encode()

    def tree(self, folder: Path, *paths: str) -> Path:
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(tiny_image(0))
        return folder

    def test_numbered_folders_are_their_own_index(self, tmp_path: Path) -> None:
        listing = class_listing(self.tree(tmp_path, *(f"{i}/x.jpeg" for i in range(12))), Role.ID)
        assert {entry.path: entry.label for entry in listing}["2/x.jpeg"] == 2
        assert {entry.path: entry.label for entry in listing}["11/x.jpeg"] == 11

    def test_numbers_with_gaps_need_names(self, tmp_path: Path) -> None:
        source = self.tree(tmp_path, "3/x.jpeg", "20/x.jpeg")
        with pytest.raises(DataError, match=r"numbers, but not 0, \.\.\., 1 .* pass class_names"):
            class_listing(source, Role.ID)
        listing = class_listing(source, Role.ID, class_names=[str(i) for i in range(30)])
        assert sorted(entry.label for entry in listing) == [3, 20]

    def test_two_classes_of_one_name_stay_two(self, tmp_path: Path) -> None:
        source = self.tree(tmp_path, "d/bird/crane/1.jpg", "d/machine/crane/1.jpg")
        assert class_listing(source, Role.OOD).class_names == ("bird/crane", "machine/crane")

    def test_flat_sets(self, tmp_path: Path) -> None:
        source = self.tree(tmp_path, "images/1.jpg", "images/2.jpg")
        assert [(entry.label, entry.group) for entry in class_listing(source, Role.OOD)] == [(-1, -1)] * 2
        with pytest.raises(DataError, match="one folder, 'images'; a set of role id needs class folders"):
            class_listing(source, Role.ID)
        with pytest.raises(DataError, match="2 folders are not among the 1 class names, first 'a'"):
            class_listing(self.tree(tmp_path / "n", "a/1.jpg", "b/1.jpg"), Role.ID, class_names=["c"])

    def test_other_files_are_left_out_with_a_warning(self, tmp_path: Path) -> None:
        source = self.tree(tmp_path, "a/1.jpg", "b/1.jpg", "README.md")
        with pytest.warns(UserWarning, match=r"1 files have no image's extension and are left out, first 'README\.md'"):
            assert len(class_listing(source, Role.OOD)) == 2

    def test_rule(self, tmp_path: Path) -> None:
        source = self.tree(tmp_path, "x/1.jpg", "y/2.jpg")
        listing = map_files(source, lambda path: Place(group=4, path="z.jpg") if path.startswith("x") else None)
        assert [(entry.path, entry.group) for entry in listing] == [("z.jpg", 4)]
        with pytest.raises(DataError, match=r"no image of this set among 2 files \(first: 'x/1\.jpg', 'y/2\.jpg'\)"):
            map_files(source, lambda path: None)

    def test_csv(self, tmp_path: Path) -> None:
        self.tree(tmp_path, "a/1.jpg", "b 2.jpg")
        (tmp_path / "list.csv").write_text("path,label,group\na/1.jpg,7,sea\nb 2.jpg,,land\n")
        listing = listed_listing(tmp_path / "list.csv")
        assert listing.class_names == ("land", "sea")
        assert [(e.path, e.label, e.group) for e in listing] == [("a/1.jpg", 7, 1), ("b 2.jpg", -1, 0)]

    def test_plain_list(self, tmp_path: Path) -> None:
        self.tree(tmp_path / "d", "a/1.jpg", "b 2", "c.jpg")
        (tmp_path / "list.txt").write_text("a/1.jpg 7\nb 2\n\nc.jpg\n")
        listing = listed_listing(tmp_path / "list.txt", tmp_path / "d")
        assert [(e.path, e.label) for e in listing] == [("a/1.jpg", 7), ("b 2", -1), ("c.jpg", -1)]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("path,label\na.jpg,1\na.jpg,2\n", r"line 3: 'a\.jpg' is listed twice"),
            ("path,label\nno.jpg,1\n", r"line 2: 'no\.jpg' is not in"),
            ("path,label\na.jpg,cat\n", r"'a\.jpg' has label 'cat'; a class index"),
            ("file,label\na.jpg,1\n", r"a header with the column 'path' is needed"),
            ("path,group\na.jpg,1\nb.jpg,sea\n", r"groups are partly names \('sea'\), partly numbers"),
        ],
    )
    def test_faulty_lists(self, tmp_path: Path, text: str, message: str) -> None:
        self.tree(tmp_path, "a.jpg", "b.jpg")
        (tmp_path / "list.csv").write_text(text)
        with pytest.raises(DataError, match=message):
            listed_listing(tmp_path / "list.csv")
