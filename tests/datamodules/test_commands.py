"""`oodlit shards` on small sets of the published layouts: everything is reachable, and messages are one line."""

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oodlit.base.known_classes.imagenet import wnids
from oodlit.cli.main import main
from oodlit.cli.shards import build, verify
from oodlit.datamodules import ImageNetBenchmark
from oodlit.datamodules.decode import MAX_PIXELS
from oodlit.datamodules.shards import ShardSource, read_info
from oodlit.errors import UnknownNameError
from tests.tiny_shards import tiny_image

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command; gives its exit code, output and messages."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), captured.err

    return run


def tree(folder: Path, *paths: str) -> Path:
    for number, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(tiny_image(number, size=(40, 36), format="JPEG"))
    return folder


def flat_val(folder: Path, count: int) -> tuple[Path, Path]:
    """Validation images in one folder, and a list of their classes in the order of the images."""
    labels = folder / "labels.txt"
    images = tree(folder / "flat", *(f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, count + 1)))
    labels.write_text("".join(f"{wnids()[7 * i]}\n" for i in range(count)))
    return images, labels


def test_the_flat_validation_archive_takes_a_list_of_labels(tmp_path: Path, run: Run) -> None:
    images, labels = flat_val(tmp_path, 4)
    code, _, error = run("shards", "build", "imagenet_val", images, "--out", tmp_path / "out")
    assert code == 1
    assert "expected layout: val/<wnid>/<file>.JPEG (flat, with a list of labels: see flat_val, --labels)" in error
    options = ("--out", tmp_path / "out", "--labels", labels)
    code, _, error = run("shards", "build", "imagenet_val", images, *options)
    assert code == 1
    assert "expected labels of 50000 images, got 4" in error
    code, out, _ = run("shards", "build", "imagenet_val", images, *options, "--incomplete")
    assert (code, out.partition(": ")[2]) == (0, "4 images of 'imagenet_val' (id, 1000 classes) in 1 shard")
    assert [sample.label for sample in ShardSource(tmp_path / "out").read(0, 4)] == [0, 7, 14, 21]
    tree(tmp_path / "flat", "ILSVRC2012_val_00000005.JPEG")
    code, _, error = run("shards", "build", "imagenet_val", images, *options, "--incomplete")
    assert code == 1
    assert "'ILSVRC2012_val_00000005.JPEG' is not in the list of labels" in error
    code, _, error = run("shards", "build", "birds", images, "--role", "ood", *options)
    assert code == 2
    assert "--labels is for imagenet_val" in error


def test_a_published_list_picks_from_a_folder(tmp_path: Path, run: Run) -> None:
    images = tree(tmp_path / "images", *(f"x/{i}.jpg" for i in range(5)))
    (tmp_path / "list.txt").write_text("openimage_o/1.jpg -1\nopenimage_o/3.jpg -1\n")
    options = ("--out", tmp_path / "out", "--file_list", tmp_path / "list.txt", "--incomplete")
    assert run("shards", "build", "openimage_o", images, *options)[0] == 0
    assert [sample.key for sample in ShardSource(tmp_path / "out").read(0, 2)] == ["1%2Ejpg", "3%2Ejpg"]
    (tmp_path / "list.txt").write_text("1.jpg\n9.jpg\n")
    code, _, error = run("shards", "build", "openimage_o", images, *options[2:-1], "--out", tmp_path / "all")
    assert code == 1
    assert "could not find 1 of 2 listed files (first: '9.jpg')" in error
    with pytest.warns(
        UserWarning, match="could not find 1 of 2 listed files .*'9.jpg'.; the missing files are left out"
    ):
        assert run("shards", "build", "openimage_o", images, *options[2:], "--out", tmp_path / "all")[0] == 0
    assert len(ShardSource(tmp_path / "all")) == 1


def test_own_lists(tmp_path: Path, run: Run) -> None:
    images = tree(tmp_path / "images", *(f"a b/{i}.jpg" for i in range(4)))
    (tmp_path / "list.csv").write_text('path,group\na b/1.jpg,=one\na b/2.jpg,"two, /x"\n')
    options = ("--out", tmp_path / "out", "--role", "ood", "--file_list", tmp_path / "list.csv")
    code, out, _ = run("shards", "build", "mine", images, *options)
    assert (code, out.partition(": ")[2]) == (0, "2 images of 'mine' (ood, 2 classes) in 1 shard")
    assert read_info(tmp_path / "out")["test"].class_names == ("=one", "two, /x")
    assert run("shards", "build", "mine", images, *options, "--incomplete")[0] == 2


def test_warnings_are_lines(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    images = tree(tmp_path / "images", "a/1.jpg", "b/2.jpg")
    (images / "README").write_text("x")
    lines: list[str] = []

    def show(message: Warning | str, *place: Any, **_: object) -> None:
        lines.append(warnings.formatwarning(str(message), *place[:3]))

    monkeypatch.setattr(warnings, "showwarning", show)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run("shards", "build", "mine", images, "--out", tmp_path / "out", "--role", "ood")[0] == 0
    text = "warning: 1 file without an image extension (first: 'README') is left out\n"
    assert lines == [f"oodlit shards build: {text}"]


def test_the_default_of_max_pixels_is_that_of_the_decoder() -> None:
    for command in (build, verify):
        assert inspect.signature(command).parameters["max_pixels"].default == MAX_PIXELS


def test_corrupted_images_are_packed_from_shards(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("imagecorruptions")
    images, labels = flat_val(tmp_path, 1)
    run("shards", "build", "imagenet_val", images, "--out", tmp_path / "val", "--labels", labels, "--incomplete")
    options = ("--out", tmp_path / "c", "--check", "none")
    code, _, error = run("shards", "build", "imagenet_c", tmp_path / "val", *options)
    assert code == 1
    assert "expected 50000 ID images, got 1" in error
    code, out, _ = run("shards", "build", "imagenet_c", tmp_path / "val", *options, "--incomplete")
    assert (code, out.partition(": ")[2]) == (0, "75 images of 'imagenet_c' (shift, 75 classes) in 1 shard")
    code, out, _ = run("shards", "info", tmp_path / "c")
    assert "incomplete, generated" in out
    streamed = ImageNetBenchmark(
        tmp_path, ["imagenet_c"], locations={"imagenet_val": tmp_path / "val"}, complete=False
    ).stream("imagenet_c")
    packed = ShardSource(tmp_path / "c")
    assert len(packed) == len(streamed) == 75
    for ours, theirs in zip(packed.read(40, 44), streamed.source.read(40, 44), strict=True):
        assert (ours.key, ours.group, ours.label, ours.image) == (theirs.key, theirs.group, theirs.label, theirs.image)


def test_verify_compares_with_the_published_numbers(tmp_path: Path, run: Run) -> None:
    images = tree(tmp_path / "images", *(f"x/{i}.jpg" for i in range(2)))
    run("shards", "build", "places", images, "--out", tmp_path / "out", "--incomplete")
    assert run("shards", "verify", tmp_path / "out")[0] == 0  # taken as it is, and info says so
    assert "incomplete" in run("shards", "info", tmp_path / "out")[1]
    manifest = tmp_path / "out" / "_info.json"
    manifest.write_text(manifest.read_text().replace('"complete": false', '"complete": true'))
    code, out, _ = run("shards", "verify", tmp_path / "out")
    assert code == 1
    assert "expected 10000 images, got 2" in out


def test_verify_goes_on_after_a_folder_that_cannot_be_read(tmp_path: Path, run: Run) -> None:
    run("shards", "build", "mine", tree(tmp_path / "images", "a/1.jpg"), "--out", tmp_path / "ok", "--role", "ood")
    code, out, _ = run("shards", "verify", tmp_path / "no", tmp_path / "ok")
    assert code == 1
    assert f"{tmp_path / 'no'}: expected an existing folder of shards" in out
    assert "1 image, ok" in out


def test_sets_without_a_manifest_are_counted(tmp_path: Path, run: Run) -> None:
    run("shards", "build", "mine", tree(tmp_path / "images", "a/1.jpg"), "--out", tmp_path / "out", "--role", "ood")
    (tmp_path / "out" / "_info.json").unlink()
    assert "no manifest, counted" in run("shards", "info", tmp_path / "out")[1]
    code, out, error = run("shards", "verify", tmp_path / "out")
    assert (code, "1 image, ok" in out) == (0, True)
    assert "1/?" in error  # the bar counts, though the end is unknown


def test_own_shards_are_sets_of_the_benchmark(tmp_path: Path, run: Run) -> None:
    images, labels = flat_val(tmp_path, 2)
    options = ("--out", tmp_path / "imagenet_val", "--labels", labels, "--incomplete")
    run("shards", "build", "imagenet_val", images, *options)
    images = tree(tmp_path / "photos", "a/1.jpg", "b/2.jpg", "b/3.jpg")
    run("shards", "build", "birds", images, "--out", tmp_path / "birds", "--role", "ood")
    data = ImageNetBenchmark(tmp_path, ["birds", "unit_tests"], complete=False, per_test=1)
    assert [stream.name for stream in data.streams] == ["imagenet_val", "birds", "unit_tests"]
    assert data.stream("birds").class_names == ("a", "b")
    elsewhere = ImageNetBenchmark(tmp_path, ["bees"], locations={"bees": tmp_path / "birds"}, complete=False)
    assert len(elsewhere.stream("bees")) == 3
    with pytest.raises(UnknownNameError, match="unknown data set 'bird'"):
        ImageNetBenchmark(tmp_path, ["bird"], complete=False)
