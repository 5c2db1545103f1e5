"""Damaged shards, manifests and samples: named, tried again, or listed; never read short."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.shards import Cache, ShardSource, reader, shard_stream
from oodlit.datamodules.shards.members import MAX_MEMBER_BYTES
from oodlit.datamodules.shards.reader import read_sample
from oodlit.datamodules.stream import Sample, Stream
from oodlit.errors import DataError
from oodlit.roles import Role
from tests.tiny_shards import tiny_image, tiny_zeros, write_raw_tar, write_tiny_shards

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")  # more than the machine has
PNG = tiny_image(0)


class TestDamage:
    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.integers(1, 100_000), st.booleans())
    def test_a_truncated_shard_is_never_read_short(self, tmp_path: Path, cut: int, manifest: bool) -> None:
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        write_tiny_shards(tmp_path / "x", [3, 4], manifest=manifest)
        path = tmp_path / "x" / "tiny-000001.tar"
        data = path.read_bytes()
        path.write_bytes(data[: -(1 + cut % (len(data) - 1))])
        try:  # a cut within the zero blocks behind the end mark loses nothing
            source = ShardSource(tmp_path / "x")
        except DataError as error:
            assert "tiny-000001.tar" in str(error)  # noqa: PT017
        else:
            assert len(list(source.read(0, 7))) == 7

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def test_a_flipped_byte_never_costs_a_sample_in_silence(self, tmp_path: Path, data: st.DataObject) -> None:
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        keys = write_tiny_shards(tmp_path / "x", [3], manifest=False)
        path = tmp_path / "x" / "tiny-000000.tar"
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content.rstrip(b"\0"))))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        try:
            samples = list(ShardSource(tmp_path / "x").read(0, 10))
        except DataError as error:
            assert "tiny-000000.tar" in str(error)  # noqa: PT017
        else:
            assert [sample.key for sample in samples] == keys

    def test_read_errors_are_tried_again_and_then_fatal(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        keys = write_tiny_shards(tmp_path, [3, 4])
        source = ShardSource(tmp_path, cache=Cache(attempts=3, backoff_s=0.0))
        faults = [False, False, True, True, False, False, True]

        def shaky(*arguments: object) -> Sample:
            if faults and faults.pop(0):
                raise OSError(5, "Input/output error")
            return read_sample(*arguments)

        monkeypatch.setattr(reader, "read_sample", shaky)
        assert [sample.key for sample in source.read(0, 7)] == keys
        assert not faults
        faults.extend([True] * 3)
        with pytest.raises(DataError, match=r"tiny-000000\.tar: .* after 3 attempts \(.*Input/output error"):
            list(source.read(0, 7))

    def test_a_shard_cut_after_opening_is_fatal_for_every_reader(self, tmp_path: Path) -> None:
        write_tiny_shards(tmp_path, [3, 4])
        source = ShardSource(tmp_path)
        path = tmp_path / "tiny-000001.tar"
        path.write_bytes(path.read_bytes()[:3000])
        with pytest.raises(DataError, match=r"shard .*tiny-000001\.tar: .*truncated|is not complete"):
            list(source.read(0, 7))
        path.unlink()
        with pytest.raises(DataError, match=r"shard .*tiny-000001\.tar does not exist"):
            list(source.read(0, 7))

    def test_a_damaged_header_does_not_end_the_shard_in_silence(self, tmp_path: Path) -> None:
        write_tiny_shards(tmp_path, [4], manifest=False)
        path = tmp_path / "tiny-000000.tar"
        data = bytearray(path.read_bytes())
        where = data.index(b"class_2/")
        data[where] ^= 1
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"damaged or truncated at byte {where}"):
            ShardSource(tmp_path)

    def test_missing_shard(self, tmp_path: Path) -> None:
        write_tiny_shards(tmp_path, [1, 1])
        (tmp_path / "tiny-000001.tar").unlink()
        with pytest.raises(DataError, match=r"shard .*tiny-000001\.tar is missing"):
            ShardSource(tmp_path)

    @pytest.mark.parametrize("cut", [0, 600, 2500, 5000])
    def test_lost_samples_are_listed_if_asked_for(self, tmp_path: Path, cut: int) -> None:
        keys = write_tiny_shards(tmp_path, [2, 3, 2])
        path = tmp_path / "tiny-000001.tar"
        path.write_bytes(path.read_bytes()[:cut])
        if not cut:
            path.unlink()
        stream = shard_stream(tmp_path, damaged="mark")
        with pytest.raises(DataError, match=r"data set 'tiny': .*key 'tiny-000001\.tar#\d': shard .*on_error='skip'"):
            list(StreamLoader(stream, tiny_zeros))
        found: list[str] = []
        skipped: list[tuple[str, str]] = []
        for rank in range(2):
            loader = StreamLoader(stream, tiny_zeros, on_error="skip", batch_size=2, rank=rank, world_size=2)
            batches = list(loader)
            assert len(batches) == len(loader)
            found += [key for batch in batches for key in batch["key"]]
            skipped += [pair for batch in batches for pair in batch["skipped"]]
        assert len(found) + len(skipped) == 7
        assert set(found) >= {f"tiny/{key}" for key in keys[:2] + keys[5:]}
        assert set(found) <= {f"tiny/{key}" for key in keys}
        lost = [key for key, _ in skipped]
        assert lost == [f"tiny/tiny-000001.tar#{i}" for i in range(3 - len(lost), 3)]
        assert all("tiny-000001.tar" in reason for _, reason in skipped)

    def test_unlisted_shard(self, tmp_path: Path) -> None:
        write_tiny_shards(tmp_path, [1, 1])
        shutil.copy(tmp_path / "tiny-000001.tar", tmp_path / "tiny-000002.tar")
        with pytest.raises(DataError, match=r"1 shard \(first: 'tiny-000002\.tar'\) is not in the manifest"):
            ShardSource(tmp_path)

    @pytest.mark.parametrize(
        ("stated", "message"),
        [
            (2, "expected 2 samples according to the manifest, found more"),
            (4, "expected 4 samples .*, found 3. Restore"),
        ],
    )
    def test_count_mismatch(self, tmp_path: Path, stated: int, message: str) -> None:
        write_tiny_shards(tmp_path, [3], manifest=False)
        split = {"name": "t", "num_samples": stated, "filenames": ["tiny-000000.tar"], "shard_lengths": [stated]}
        (tmp_path / "_info.json").write_text(json.dumps({"splits": {"t": split}}))
        source = ShardSource(tmp_path)
        with pytest.raises(DataError, match=message):
            list(source.read(0, len(source)))

    def test_a_shard_that_changed_after_it_was_counted(self, tmp_path: Path) -> None:
        write_tiny_shards(tmp_path, [3], manifest=False)
        source = ShardSource(tmp_path)
        write_tiny_shards(tmp_path, [4], manifest=False)
        with pytest.raises(DataError, match="expected 3 samples, as counted when the source was opened, found more"):
            list(source.read(0, len(source)))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"filenames": ["../x.tar"]}, "expected a relative path without '..' or empty parts, got '../x.tar'"),
            ({"filenames": ["a//x.tar"]}, "expected a relative path without '..' or empty parts, got 'a//x.tar'"),
            ({"filenames": ["pipe:rm x.tar"]}, "without ':', which drives and URLs have, got 'pipe:rm x.tar'"),
            ({"filenames": "a.tar"}, ""),
            ({"shard_lengths": [1, 2]}, "filenames, shard_lengths, .* got the lengths 1, 2, 1, 1, 1"),
            ({"shard_lengths": [-1]}, ""),
            ({"num_samples": 5}, "its shard lengths add up to 1"),
            ({"role": "king"}, ""),
        ],
        ids=str,
    )
    def test_malformed_manifest(self, tmp_path: Path, change: dict[str, object], message: str) -> None:
        split = {"name": "t", "num_samples": 1, "filenames": ["a.tar"], "shard_lengths": [1]} | change
        (tmp_path / "_info.json").write_text(json.dumps({"splits": {"t": split}}))
        with pytest.raises(DataError, match=rf"_info\.json: .*{message}.*remove it to count the samples again"):
            ShardSource(tmp_path)

    @pytest.mark.parametrize(
        ("members", "message"),
        [
            ({"0.png": PNG, "0.cls": b"cat"}, r"field \.cls.*got b'cat'"),
            ({"0.png": PNG, "0.cls": b"1_0"}, r"field \.cls.*got b'1_0'"),
            ({"0.png": PNG, "0.json": b"{"}, r"field \.json is not valid JSON"),
            ({"0.png": PNG, "0.json": b"[" * 100_000}, r"field \.json is not valid JSON"),
            ({"0.png": PNG, "0.json": b'{"group": "x"}'}, "group in .json.*got 'x'"),
            ({"0.png": PNG, "0.json": b'{"group": 99999999999999999999}'}, "group in .json.*got 99999999999999999999"),
            ({"0.png": PNG, "0.json": b'{"label": 99999999999999999999}'}, "label in .json.*got 99999999999999999999"),
            ({"0.png": PNG, "0.json": b'{"label": -5}'}, "label in .json.*got -5"),
            ({"0.cls": b"1"}, r"expected an image field .* got fields cls"),
        ],
        ids=["word", "underscore", "json", "deep", "group", "far group", "far label", "negative label", "no image"],
    )
    def test_a_bad_sample_carries_its_reason(self, tmp_path: Path, members: dict[str, bytes], message: str) -> None:
        write_raw_tar(tmp_path / "a.tar", members)
        (sample,) = ShardSource(tmp_path).read(0, 1)
        assert sample.error is not None
        with pytest.raises(DataError, match=message):
            list(StreamLoader(Stream("s", Role.OOD, ShardSource(tmp_path))))

    def test_members_beyond_the_limit_are_not_read(self, tmp_path: Path) -> None:
        path = tmp_path / "a.tar"
        with path.open("wb") as file:  # sparse: takes no room on disk
            import tarfile

            info = tarfile.TarInfo("0.png")
            info.size = MAX_MEMBER_BYTES + 512
            file.write(info.tobuf())
            file.seek(info.size + 512 + 1024 - 1)
            file.write(b"\0")
        (sample,) = ShardSource(path).read(0, 1)
        assert f"more than the limit of {MAX_MEMBER_BYTES}" in str(sample.error)

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        import tarfile

        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            info = tarfile.TarInfo("0.png")
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info)
        with pytest.raises(DataError, match=r"'0\.png' is a link, device or sparse file"):
            ShardSource(tmp_path)

    def test_a_compressed_shard_is_an_error(self, tmp_path: Path) -> None:
        import gzip

        (tmp_path / "a.tar").write_bytes(gzip.compress(b"x" * 2000))
        with pytest.raises(DataError, match="not an intact uncompressed tar"):
            ShardSource(tmp_path)
