"""ImageNet-21k as a pool: its classes and images, from folders and tars; known counts, from the shipped lists."""

import io
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from oodlit.base.known_classes.imagenet import wnids
from oodlit.cli.main import main
from oodlit.datamodules import set_stream, severity_pool
from oodlit.datamodules.published_sets import build_set
from oodlit.datamodules.sets.imagenet21k.classes import (
    IMAGENET21K,
    ancestors,
    exclusions_text,
    fall11_wnids,
    hypernyms,
    left_out,
    parse_exclusions,
    read_exclusions,
    relatives,
)
from oodlit.datamodules.severity.imagenet21k_listing import list_imagenet21k
from oodlit.datamodules.severity.split import Part
from oodlit.datamodules.shards import ShardSource, read_info
from oodlit.datamodules.shards.class_files import class_files
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.roles import Role
from tests.tiny_shards import tiny_image

POOL = ("n02513355", "n02515214", "n12433081")  # kept classes
SMALL = {"estimation": 3, "test": 1, "complete": False}


# --- The lists


def test_counts_of_the_classes() -> None:
    """21 841 - 999 ID classes; 761 hypernyms and 1245 hyponyms of these, disjoint."""
    all_of_them, own = set(fall11_wnids()), set(wnids())
    assert len(all_of_them) == 21_841
    rest = all_of_them - own
    assert len(rest) == 20_842
    found = relatives(wnids())
    kinds = [found[wnid].split()[0] for wnid in rest if wnid in found]
    assert (kinds.count("hypernym"), kinds.count("hyponym")) == (761, 1245)
    below = {wnid for wnid in rest if ancestors(wnid) & own}
    above = {wnid for one in own for wnid in ancestors(one)} & rest
    assert (len(above), len(below), len(above & below)) == (761, 1245, 0)
    assert len(rest - above - below) == 18_836


def test_own_list_has_classes_that_no_rule_takes_out() -> None:
    reasons = left_out()
    ours = {wnid: reason for wnid, reason in reasons.items() if ":" in reason}
    assert len(ours) == 212
    assert set(ours) <= set(fall11_wnids()) - set(wnids()) - set(relatives(wnids()))
    assert all(reason.split()[-1] for reason in ours.values())
    of = [next(word for word in reason.split() if word[0] == "n" and word[1:].isdigit()) for reason in ours.values()]
    assert set(of) <= set(wnids())


def test_table_is_closed() -> None:
    assert all(above in hypernyms() for one in hypernyms().values() for above in one)
    assert set(fall11_wnids()) | set(wnids()) <= set(hypernyms())
    with pytest.raises(UnknownNameError, match="n99999999"):
        ancestors("n99999999")


def test_lists_of_a_user(tmp_path: Path) -> None:
    own = tmp_path / "mine.txt"
    own.write_text("# look-alikes\n\nn02513355 like a hammer\n", encoding="utf-8")
    assert left_out([own])["n02513355"] == "like a hammer"
    assert left_out([own]).keys() - left_out().keys() == {"n02513355"}
    assert parse_exclusions(exclusions_text(left_out()), "x") == left_out()
    for text, message in (
        ("n0251 why\n", r"line 1: expected a wnid .*, a space and a reason, got 'n0251 why'"),
        ("n02513355\n", "and a reason, got"),
        ("n02513355 a\nn02513355 b\n", "line 2: n02513355 is listed twice"),
    ):
        own.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=message):
            read_exclusions(own)


# --- Folders and tars


def folders(root: Path, number: int = 6, classes: tuple[str, ...] = POOL) -> Path:
    for index, wnid in enumerate(classes):
        (root / wnid).mkdir(parents=True)
        for i in range(number):
            (root / wnid / f"{wnid}_{i}.JPEG").write_bytes(tiny_image(10 * index + i, size=(9, 8), format="JPEG"))
    return root


def tar_of(folder: Path, target: Path, prefix: str = "") -> Path:
    with tarfile.open(target, "w") as tar:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                tar.add(file, prefix + file.relative_to(folder).as_posix())
    return target


def layouts(tmp_path: Path) -> dict[str, Path]:
    """The same images as folders, in a folder around them, as tars, as a tar of tars, and as one tar."""
    plain = folders(tmp_path / "plain" / "classes")
    (tmp_path / "tars").mkdir()
    for wnid in POOL:
        tar_of(plain / wnid, tmp_path / "tars" / f"{wnid}.tar")
    whole = tar_of(tmp_path / "tars", tmp_path / "whole.tar", "fall11/")
    one = tar_of(plain, tmp_path / "one.tar", "images/")
    return {
        "folders": plain,
        "around": tmp_path / "plain",
        "tars": tmp_path / "tars",
        "tar of tars": whole,
        "one tar": one,
    }


def content(listing: object) -> list[tuple[str, int, bytes]]:
    return [(entry.key, entry.group, entry.read()) for entry in listing]  # type: ignore[attr-defined]


def test_layouts_give_the_same_pool(tmp_path: Path) -> None:
    places = layouts(tmp_path)
    found = {name: content(list_imagenet21k(place, **SMALL)) for name, place in places.items()}
    first = found["folders"]
    assert len(first) == 3 * 4
    assert all(listing == first for listing in found.values())
    parts = [key.split("/")[0] for key, _, _ in first]
    assert (parts.count("estimation"), parts.count("test")) == (9, 3)
    for key, group, data in first:
        _, wnid, name = key.split("/")
        assert wnid == POOL[group]
        assert (places["folders"] / wnid / name.replace("%2E", ".")).read_bytes() == data


def test_images_that_were_drawn_stay_when_others_come(tmp_path: Path) -> None:
    source = folders(tmp_path / "few", 6, POOL[:1])
    before = {entry.path for entry in list_imagenet21k(source, **SMALL)}
    for i in range(6, 8):
        (source / POOL[0] / f"{POOL[0]}_{i}.JPEG").write_bytes(tiny_image(i, size=(9, 8), format="JPEG"))
    after = {entry.path for entry in list_imagenet21k(source, **SMALL)}
    names = [{path.split("/", 1)[1] for path in paths} for paths in (before, after)]
    assert len(names[0] - names[1]) <= 2  # no more than came


def test_classes_that_are_left_out_have_a_reason(tmp_path: Path) -> None:
    source = folders(tmp_path / "mixed", 6, (*POOL, wnids()[0], "n02512053"))
    for file in list((source / POOL[1]).iterdir())[:3]:
        file.unlink()
    listing = list_imagenet21k(source, **SMALL)
    assert listing.class_names == ("n02513355 groundfish", "n12433081 onion")
    assert listing.reasons[POOL[1]] == "3 images, 4 required"
    assert listing.reasons[wnids()[0]] == "ID class"
    assert listing.reasons["n02512053"].startswith("hypernym of ")
    assert listing.reasons["n00005787"] == "not in the source"
    assert listing.facts["classes"] == 2
    assert listing.facts["classes_missing"] == 18_836 - 212 - 3


def test_no_class_has_enough_images(tmp_path: Path) -> None:
    source = folders(tmp_path / "few", 6, (*POOL, wnids()[0]))
    with pytest.raises(
        DataError, match=r"no class can be used. Found 4 classes: 3 with fewer than 200 images, 1 excluded by a rule"
    ):
        list_imagenet21k(source, complete=False)


def test_missing_classes_of_a_release_are_an_error_or_listed(tmp_path: Path) -> None:
    source = folders(tmp_path / "few")
    with pytest.raises(
        DataError, match=r"could not find 18621 classes of release fall11 \(first: n00005787.*complete=False"
    ):
        list_imagenet21k(source, estimation=3, test=1)
    listing = list_imagenet21k(source, estimation=3, test=1, release="winter21")
    assert listing.facts["release"] == "winter21"
    with pytest.raises(InvalidArgumentError, match="'fall11' or 'winter21', got"):
        list_imagenet21k(source, release="spring")


def test_a_published_split_decides(tmp_path: Path) -> None:
    source, split = folders(tmp_path / "few"), tmp_path / "split.csv"
    lines = [f"{w}/{w}_{i}.JPEG,{'test' if i else 'estimation'}" for w in POOL[:2] for i in (0, 4)]
    split.write_text("file,part\n" + "\n".join(lines), encoding="utf-8")
    listing = list_imagenet21k(source, split=split)
    assert sorted(entry.path for entry in listing) == sorted(
        f"{part}/{w}/{w}_{i}.JPEG" for w in POOL[:2] for i, part in ((0, "estimation"), (4, "test"))
    )
    assert (listing.facts["split"], listing.shortfall) == ("split.csv", "all images of the split were found")
    split.write_text(f"{POOL[0]}_0.JPEG,test\n{POOL[0]}_9.JPEG,test\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=f"could not find 1 of 2 images of {POOL[0]} that the split lists .first: '{POOL[0]}_9.JPEG'"
    ):
        list_imagenet21k(source, split=split)
    part = list_imagenet21k(source, split=split, complete=False)
    assert (len(part), part.facts["images_missing"], part.facts["kept_though_left_out_by_rule"]) == (1, 1, 0)
    assert part.shortfall == "1 images of the split are missing"
    split.write_text(f"{POOL[0]}_9.JPEG,test\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"could not find any of the images that .*split\.csv lists; use the release"):
        list_imagenet21k(source, split=split, complete=False)
    with pytest.raises(InvalidArgumentError, match="split cannot be combined with estimation=3 and test=1"):
        list_imagenet21k(source, split=split, **SMALL)
    split.write_text("a.JPEG,test\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"got 'a\.JPEG'"):
        list_imagenet21k(source, split=split)


def test_damaged_and_ambiguous_sources(tmp_path: Path) -> None:
    places = layouts(tmp_path)
    whole = places["tar of tars"]
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(DataError, match=r"damaged|truncated"):
        list_imagenet21k(cut, **SMALL)
    shutil.copy(places["tars"] / f"{POOL[0]}.tar", places["folders"])
    with pytest.raises(DataError, match=f"{POOL[0]} exists as a folder and as a tar"):
        list_imagenet21k(places["folders"], **SMALL)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="found no class folder"):
        class_files(tmp_path / "empty", str.isdigit)
    with pytest.raises(DataError, match="does not exist"):
        class_files(tmp_path / "nowhere", str.isdigit)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("5.tar", "d/5.tar"), "contains '5.tar' twice; unpack it"),
        (("5.tar", "5/a.jpg"), "contains '5' as a folder and as a tar; unpack it"),
        (("5/a.jpg", "d/5/a.jpg"), "contains 'a.jpg' twice in one class; unpack it"),
    ],
)
def test_a_class_that_occurs_twice_in_an_archive(tmp_path: Path, names: tuple[str, str], message: str) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(DataError, match=rf"x\.tar: the archive {re.escape(message)}"):
        class_files(tmp_path / "x.tar", str.isdigit)


def test_inner_tar_that_is_cut_is_noticed(tmp_path: Path) -> None:
    inner = tar_of(folders(tmp_path / "a", 6, POOL[:1]) / POOL[0], tmp_path / "inner.tar").read_bytes()[:2000]
    with tarfile.open(tmp_path / "outer.tar", "w") as tar:
        info = tarfile.TarInfo(f"{POOL[0]}.tar")
        info.size = len(inner)
        tar.addfile(info, io.BytesIO(inner))
    with pytest.raises(DataError, match=r"damaged|truncated"):
        list_imagenet21k(tmp_path / "outer.tar", **SMALL)


# --- Shards and streams


def test_shards_are_a_pool_with_their_parts(tmp_path: Path) -> None:
    source = folders(tmp_path / "few")
    listing = list_imagenet21k(source, **SMALL)
    info = build_set(IMAGENET21K, listing, tmp_path / "shards", complete=False, shard_size=5)
    assert (info.role, info.num_samples, info.extra["parts"]) == (Role.POOL, 12, "folders")
    for stream in (set_stream(IMAGENET21K, tmp_path / "shards"), severity_pool(tmp_path / "shards")):
        assert (stream.role, len(stream.class_names)) == (Role.POOL, 3)
        assert stream.split is not None
        parts = [stream.split(sample.key) for sample in stream.source.read(0, 12)]
        assert (parts.count(Part.ESTIMATION), parts.count(Part.TEST)) == (9, 3)
        assert str(stream.split) == "as packed from fall11"
    with pytest.raises(DataError, match="must be packed first; run `oodlit shards build imagenet21k"):
        set_stream(IMAGENET21K, source)


def test_build_goes_on(tmp_path: Path) -> None:
    source, out = folders(tmp_path / "few"), tmp_path / "shards"
    bad = source / POOL[2] / f"{POOL[2]}_0.JPEG"
    good = bad.read_bytes()
    for file in (source / POOL[2]).iterdir():
        file.write_bytes(b"no image")
    options = {"shard_size": 4, "complete": False}
    with pytest.raises(DataError, match=r"n12433081"):
        build_set(IMAGENET21K, list_imagenet21k(source, **SMALL), out, **options)
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    assert len(times) == 2
    for file in (source / POOL[2]).iterdir():
        file.write_bytes(good)
    build_set(IMAGENET21K, list_imagenet21k(source, **SMALL), out, **options)
    assert len(list(out.glob("*.tar"))) == 3
    assert times == {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar") if path.name in times}


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out, own = folders(tmp_path / "few"), tmp_path / "out", tmp_path / "mine.txt"
    own.write_text(f"{POOL[0]} looks like a trout\n", encoding="utf-8")
    small = ["--estimation", "3", "--test", "1", "--exclude", str(own)]
    assert main(["shards", "build", "imagenet21k", str(source), "--out", str(out), *small]) == 1
    assert "classes of release fall11 (first: " in capsys.readouterr().err
    assert main(["shards", "build", "imagenet21k", str(source), "--out", str(out), *small, "--incomplete"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "8 images of 'imagenet21k' (pool, 2 classes)" in said
    assert "21839 classes are excluded (missing from the source: 18621); excluded classes and reasons: " in said
    told = read_exclusions(out / "left_out.txt")
    assert told[POOL[0]] == "looks like a trout"
    assert len(told) == 21_841 - 2
    (info,) = read_info(out).values()
    assert info.extra["release"] == "fall11"
    assert len(ShardSource(out)) == 8
    assert main(["shards", "verify", str(out)]) == 0
    assert main(["shards", "build", "birds", str(source), "--out", str(out), "--role", "ood", "--test", "9"]) == 2
    assert "--test is for imagenet21k, not for 'birds'" in capsys.readouterr().err
