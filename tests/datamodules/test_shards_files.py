"""Folders and archives as sources: the same files from each, and nothing from a damaged one."""

import gzip
import io
import os
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from oodlit.datamodules.shards import open_files
from oodlit.errors import DataError
from tests.datamodules.image_sources import FILES, KINDS, PNG, write_source


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
        with pytest.raises(DataError, match=r"source\.\S+.*(download|in turn)"):
            open_files(path)

    def test_a_flipped_byte_is_found_by_the_archive_checksum(self, tmp_path: Path) -> None:
        path = write_source("zip", tmp_path, {"a.png": os.urandom(5000)})
        data = bytearray(path.read_bytes())
        data[2000] ^= 255
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"source\.zip: 'a\.png' .*download .* again"):
            [file.read() for file in open_files(path)]

    def test_an_archive_for_another_program_is_not_called_damaged(self, tmp_path: Path) -> None:
        path = tmp_path / "a.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.png", PNG)
        whole = path.read_bytes()
        central = whole.index(b"PK\1\2")
        compressed = bytearray(whole)
        compressed[8:10] = compressed[central + 10 : central + 12] = (9).to_bytes(2, "little")  # Deflate64
        path.write_bytes(compressed)
        with pytest.raises(
            DataError, match=r"'a\.png' cannot be read \(That .*; unpack the archive with another program"
        ):
            [file.read() for file in open_files(path)]
        newer = bytearray(whole)
        newer[central + 6 : central + 8] = (70).to_bytes(2, "little")
        path.write_bytes(newer)
        with pytest.raises(DataError, match=r"cannot read the zip \(zip file version 7\.0\); .* with another program"):
            open_files(path)

    def test_a_file_of_a_folder_that_became_shorter_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(PNG)
        (file,) = open_files(tmp_path)
        (tmp_path / "a.png").write_bytes(PNG[:-9])
        with pytest.raises(
            DataError, match=rf"'a\.png' is truncated \(expected {len(PNG)} bytes, got {len(PNG) - 9}\)"
        ):
            file.read()

    def test_missing_and_unknown_kinds(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"does not exist; expected a folder, a \.zip or a \.tar"):
            open_files(tmp_path / "no")
        (tmp_path / "x.rar").write_bytes(b"Rar!" * 300)
        with pytest.raises(DataError, match=r"x\.rar: expected a \.zip or \.tar"):
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
        with pytest.raises(
            DataError, match=re.escape(f"{archive}: expected relative paths inside the archive, got {path!r}")
        ):
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
            with pytest.raises(DataError, match="download"):
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
        with pytest.raises(DataError, match=r"a\.png: expected a plain file"):
            list(open_files(tmp_path))
