"""Archives and shards from other programs: concatenated, truncated or packed twice."""

import bz2
import gzip
import io
import lzma
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from oodlit.datamodules.shards import ShardSource, build_shards, class_listing, open_files, verify_shards
from oodlit.errors import DataError
from oodlit.roles import Role
from tests.tiny_shards import tiny_image, write_raw_tar, write_tiny_shards

PNG = tiny_image(0)
FILES = {f"{name}/{i}.png": tiny_image(i) for name in ("cat", "dog") for i in range(5)}
NAMES = sorted(FILES)


def tar_bytes(files: Iterable[str], **options: object) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", **options) as tar:  # type: ignore[call-overload]
        for name in files:
            data = FILES.get(name, PNG)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def zip_bytes(files: Iterable[str], *, system: int = 3) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in files:
            info = zipfile.ZipInfo(name)
            info.create_system = system
            archive.writestr(info, FILES.get(name.replace("\\", "/"), PNG))
    return file.getvalue()


def start_of(data: bytes, number: int) -> int:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getmembers()[number].offset


def zeroed_header(data: bytes, number: int = 5) -> bytes:
    """The header of one member is zeroed."""
    start = start_of(data, number)
    return data[:start] + bytes(512) + data[start + 512 :]


def zeroed_tail(data: bytes, number: int = 3) -> bytes:
    """A member and all that follows are zeroed, as in a download whose space was reserved."""
    start = start_of(data, number)
    return data[:start] + bytes(len(data) - start)


TAR = tar_bytes(NAMES)
LOSSY: dict[str, bytes] = {
    "a zeroed header": zeroed_header(TAR),
    "the first header zeroed": zeroed_header(TAR, 0),
    "the last header zeroed": zeroed_header(TAR, 9),
    "two tars joined": tar_bytes(NAMES[:5]) + tar_bytes(NAMES[5:]),
    "a tar behind one block": tar_bytes(NAMES[:5]).rstrip(b"\0") + bytes(1024) + tar_bytes(NAMES[5:]),
    "one byte far behind": TAR + bytes(100_000) + b"x",
    "a zeroed tail": zeroed_tail(TAR),
    "only zeros": bytes(len(TAR)),
}
WHOLE: dict[str, bytes] = {
    "as Python writes": TAR,
    "two blocks alone": TAR.rstrip(b"\0").ljust(-(-len(TAR.rstrip(b"\0")) // 512) * 512, b"\0") + bytes(1024),
    "records of 1 MiB": TAR.ljust(2**20, b"\0"),
}


@pytest.mark.parametrize("case", LOSSY)
class TestNothingBehindTheMarkIsLost:
    def test_damaged_ends_of_shards_without_a_manifest(self, tmp_path: Path, case: str) -> None:
        (tmp_path / "x-0000.tar").write_bytes(LOSSY[case])
        with pytest.raises(DataError, match=r"x-0000\.tar.*(after the end-of-archive|ends in \d+ zero bytes)"):
            ShardSource(tmp_path)
        report = verify_shards(tmp_path)[0]
        assert not report.ok
        assert any("x-0000.tar" in str(problem) for problem in report.problems)

    @pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
    def test_damaged_ends_of_archives_to_build(self, tmp_path: Path, case: str, pack: Callable[[bytes], bytes]) -> None:
        path = tmp_path / "x.tar"
        path.write_bytes(pack(LOSSY[case]))
        with pytest.raises(DataError, match=r"x\.tar: .*(after the end-of-archive|ends in \d+ zero bytes)"):
            open_files(path)


@pytest.mark.parametrize("case", WHOLE)
def test_intact_ends_are_read(tmp_path: Path, case: str) -> None:
    (tmp_path / "x-0000.tar").write_bytes(WHOLE[case])
    assert len(ShardSource(tmp_path)) == 10
    assert sorted(open_files(tmp_path / "x-0000.tar").paths) == NAMES
    assert verify_shards(tmp_path)[0].ok


def test_data_after_the_end_marker_despite_a_manifest(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path, [4])
    path = tmp_path / "tiny-000000.tar"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"x")  # the length that the manifest states
    with pytest.raises(DataError, match="after the end-of-archive marker"):
        list(ShardSource(tmp_path).read(0, 4))


@pytest.mark.parametrize(("pack", "kind"), [(gzip.compress, "gz"), (bz2.compress, "bz2"), (lzma.compress, "xz")])
class TestMembersOfCompressedFiles:
    def test_all_members_of_compressed_files_are_read(
        self, tmp_path: Path, pack: Callable[[bytes], bytes], kind: str
    ) -> None:
        path = tmp_path / f"x.tar.{kind}"
        path.write_bytes(b"".join(pack(TAR[i : i + 3000]) for i in range(0, len(TAR), 3000)))
        files = open_files(path)
        assert {file.path: file.read() for file in files} == FILES
        assert {file.path: file.read() for file in files} == FILES

    @pytest.mark.parametrize("rest", [b"rubbish that no program reads", b"\x00\x00\x00\x00BZh9damaged"])
    def test_other_bytes_after_members_are_refused(
        self, tmp_path: Path, pack: Callable[[bytes], bytes], kind: str, rest: bytes
    ) -> None:
        path = tmp_path / f"x.tar.{kind}"
        path.write_bytes(pack(TAR) + rest)
        with pytest.raises(DataError, match=r"x\.tar\.\w+: the archive is damaged"):
            open_files(path)


def test_an_empty_shard_of_one_record_warns(tmp_path: Path) -> None:
    (tmp_path / "x-0000.tar").write_bytes(TAR)
    (tmp_path / "x-0001.tar").write_bytes(tar_bytes(()))
    with pytest.warns(UserWarning, match=r"x-0001\.tar: the file contains only zeros"):
        assert len(ShardSource(tmp_path)) == 10


@pytest.mark.parametrize("second", [zip_bytes(NAMES[5:]), zip_bytes(NAMES[5:])[:-40], b"rubbish"])
def test_concatenated_zips_are_refused(tmp_path: Path, second: bytes) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(zip_bytes(NAMES[:5]) + second)
    with pytest.raises(DataError, match=r"x\.zip: \d+ bytes"):
        open_files(path)


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (["x-0000", "x-0002"], "x-0001.tar"),
        (["x-0002", "x-0003"], "x-0001.tar"),
        (["x-0", "x-1", "x-3"], "x-2.tar"),
        (["x-1", "x-12"], "x-2.tar"),
        (["x-0000-v2", "x-0002-v2"], "x-0001-v2.tar"),
        (["x-00000-of-00003", "x-00001-of-00003"], "x-00002-of-00003.tar"),
        (["a-00-000", "a-00-001", "a-01-000", "a-01-002"], "a-01-001.tar"),
    ],
)
@pytest.mark.parametrize("pattern", ["", "*.tar"])
def test_gaps_in_shard_numbers_are_named(tmp_path: Path, there: list[str], missing: str, pattern: str) -> None:
    for number, name in enumerate(there):
        write_raw_tar(tmp_path / f"{name}.tar", [(f"{number}.png", PNG)])
    where = tmp_path / pattern if pattern else tmp_path
    with pytest.raises(DataError, match=missing):
        ShardSource(where)
    assert len(ShardSource(sorted(tmp_path.glob("*.tar")))) == len(there)  # a list is meant as it is


@pytest.mark.parametrize(
    "there",
    [
        ["x-0000", "x-0001"],
        ["x-1", "x-2"],
        ["shots-2019", "shots-2023"],
        ["n01440764", "n01443537"],
        ["one", "two"],
        ["a-00-000", "a-00-001", "a-01-000"],
        ["x-1-of-2", "x-2-of-2"],
        ["x-0-of-2", "x-1-of-2"],
    ],
)
def test_numbers_without_gaps_or_with_another_meaning(tmp_path: Path, there: list[str]) -> None:
    for number, name in enumerate(there):
        write_raw_tar(tmp_path / f"{name}.tar", [(f"{number}.png", PNG)])
    assert len(ShardSource(tmp_path)) == len(there)


@pytest.mark.parametrize("other", ["x-0001.tar.gz", "x-0000.tar.gz", "x-0001.TAR", "x-0001.tgz"])
def test_compressed_shards_are_refused(tmp_path: Path, other: str) -> None:
    (tmp_path / "x-0000.tar").write_bytes(TAR)
    (tmp_path / other).write_bytes(gzip.compress(TAR))
    with pytest.raises(DataError, match=rf"'{other}'.* would be ignored"):
        ShardSource(tmp_path)


def test_an_archive_next_to_its_unpacked_folder(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(TAR)
    (tmp_path / "x" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match=rf"'x\.tar' is probably not a shard.*Use {tmp_path}/x as a folder of images"):
        ShardSource(tmp_path)
    assert len(ShardSource(tmp_path / "x.tar")) == 10


FOREIGN: dict[str, Callable[[str], str]] = {
    "backslashes": lambda name: name.replace("/", "\\"),
    "a leading dot": lambda name: f"./{name}",
    "both": lambda name: ".\\" + name.replace("/", "\\"),
    "doubled slashes": lambda name: name.replace("/", "//"),
    "dots between": lambda name: name.replace("/", "/./"),
}


@pytest.mark.parametrize("how", FOREIGN)
@pytest.mark.parametrize("system", [0, 3])
def test_the_same_names_from_every_system(tmp_path: Path, how: str, system: int) -> None:
    foreign = [*map(FOREIGN[how], NAMES), FOREIGN[how]("__MACOSX/cat/._0.png"), FOREIGN[how]("cat/._1.png")]
    (tmp_path / "x.zip").write_bytes(zip_bytes(foreign, system=system))
    (tmp_path / "x.tar").write_bytes(tar_bytes(foreign))
    for name in ("x.zip", "x.tar"):
        listing = class_listing(tmp_path / name, Role.OOD)
        assert sorted(entry.path for entry in listing) == NAMES
        assert listing.class_names == ("cat", "dog")
        build_shards(listing, tmp_path / f"{name}-built", name="x", role=Role.OOD, class_names=listing.class_names)


def test_the_same_keys_in_foreign_shards(tmp_path: Path) -> None:
    for number, how in enumerate(FOREIGN.values()):
        (tmp_path / f"{number}.tar").write_bytes(tar_bytes([*map(how, NAMES), how("cat/._1.png")]))
        with pytest.warns(UserWarning, match="does not belong to a sample"):
            source = ShardSource([tmp_path / f"{number}.tar"])
        assert [sample.key for sample in source.read(0, 10)] == [name.removesuffix(".png") for name in NAMES]


@pytest.mark.parametrize("name", ["/data/cat/1.png", "C:\\data\\cat\\1.png", "c:/cat/1.png", "\\\\host\\share\\1.png"])
def test_absolute_paths_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.zip").write_bytes(zip_bytes([name]))
    (tmp_path / "x.tar").write_bytes(tar_bytes([name]))
    for archive in ("x.zip", "x.tar"):
        with pytest.raises(DataError, match="expected relative paths inside the archive"):
            open_files(tmp_path / archive)


@pytest.mark.parametrize("twice", [("cat/1.png", "cat\\1.png"), ("cat/1.png", "./cat/1.png")])
def test_two_files_with_the_same_name(tmp_path: Path, twice: tuple[str, str]) -> None:
    (tmp_path / "x.zip").write_bytes(zip_bytes(twice))
    with pytest.raises(DataError, match=r"'cat/1\.png' occurs twice"):
        class_listing(tmp_path / "x.zip", Role.OOD)


def test_a_windows_archive_unpacked_without_its_folders(tmp_path: Path) -> None:
    (tmp_path / "cat\\1.png").write_bytes(PNG)
    with pytest.raises(DataError, match="backslash"):
        class_listing(tmp_path, Role.OOD)


def test_utf8_names_of_a_zip_without_the_flag(tmp_path: Path) -> None:
    data = bytearray(zip_bytes(["café/1.png", "thé/2.png"]))
    for mark, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = data.find(mark)
        while at >= 0:
            data[at + flags + 1] &= ~8  # bit 11
            at = data.find(mark, at + 4)
    (tmp_path / "x.zip").write_bytes(data)
    assert list(open_files(tmp_path / "x.zip").paths) == ["café/1.png", "thé/2.png"]


@pytest.mark.parametrize(
    "pair", [("Cat", "cat"), ("café", unicodedata.normalize("NFD", "café")), ("STRASSE", "straße")]
)
def test_classes_that_are_identical_on_other_systems(tmp_path: Path, pair: tuple[str, str]) -> None:
    (tmp_path / "x.zip").write_bytes(zip_bytes([f"{name}/{i}.png" for i, name in enumerate(pair)]))
    with pytest.raises(DataError, match="differ only in case or Unicode form"):
        class_listing(tmp_path / "x.zip", Role.ID)
    assert len(class_listing(tmp_path / "x.zip", Role.ID, class_names=pair)) == 2


def test_an_archive_among_images(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "1.png").write_bytes(PNG)
    (tmp_path / "data" / "bird.tar.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"archive 'bird\.tar\.gz' would be ignored"):
        class_listing(tmp_path / "data", Role.OOD)
    (tmp_path / "data" / "bird.tar.gz").rename(tmp_path / "data" / "cat.tar.gz")  # unpacked beside it
    with pytest.warns(UserWarning, match=r"\(first: 'cat\.tar\.gz'\) is left out"):
        assert len(class_listing(tmp_path / "data", Role.OOD)) == 2


@pytest.mark.parametrize("size", [10**15, 10**18, 10**30, -5, -1024])
@pytest.mark.parametrize("last", [False, True])
def test_invalid_sizes_in_pax_headers(tmp_path: Path, size: int, last: bool) -> None:
    """A pax size of 1e15 is reported as damage of the shard, not as OSError or an endless loop."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in NAMES:
            info = tarfile.TarInfo(name)
            info.size = len(FILES[name])
            if name == NAMES[-1 if last else 3]:
                info.pax_headers = {"size": str(size)}
            tar.addfile(info, io.BytesIO(FILES[name]))
    (tmp_path / "x.tar").write_bytes(file.getvalue())
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(file.getvalue()))
    with pytest.raises(DataError, match=r"x\.tar is not an intact"):
        ShardSource([tmp_path / "x.tar"])
    for name in ("x.tar", "x.tar.gz"):
        with pytest.raises(DataError, match=r"x\.tar.*damaged"):
            open_files(tmp_path / name)
