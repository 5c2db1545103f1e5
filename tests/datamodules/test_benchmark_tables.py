"""Benchmarks by name: lists of images applied to official archives, folders and shards, and custom benchmarks."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor

import oodlit
from oodlit.base.known_classes.imagenet import subset_labels, wnids
from oodlit.datamodules import Benchmark, StreamLoader
from oodlit.datamodules.benchmarks import benchmark as module
from oodlit.datamodules.benchmarks.benchmark import MissingSetWarning
from oodlit.datamodules.benchmarks.lists import listed, published_list
from oodlit.datamodules.benchmarks.tables import benchmarks, describe_benchmark
from oodlit.datamodules.benchmarks.tables.description import BenchmarkSet
from oodlit.datamodules.keys import unescape_key
from oodlit.datamodules.published_sets import build_set, set_stream, verify_set
from oodlit.datamodules.sets import describe, descriptions
from oodlit.datamodules.subsets import SampleFacts, facts_of
from oodlit.datamodules.thinning import whole_size
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
from tests.tiny_shards import tiny_image

LISTED = 6
TRANSFORM = Compose([Resize(8), CenterCrop(8), ToTensor()])
LISTS = {
    one.name: one.keep or one.drop
    for name in ("openood-v1.5", "imagenet-ood")
    for one in (describe_benchmark(name).id_set, *describe_benchmark(name).sets)
    if one.keep or one.drop
}
OF_R = [wnids()[label] for label in subset_labels("imagenet_r")]


def toy_list(name: str) -> tuple[str, ...]:
    """The first images of a published list."""
    return published_list(name)[:LISTED]


def official(name: str) -> list[str]:
    """Paths of a small official archive, with images that no list has."""
    names = toy_list(LISTS[name]) if name in LISTS else ()
    if name in ("ssb_hard", "imagenet_ood"):
        paths = [*names, names[0].replace(".JPEG", "0.JPEG"), "n00000001/n00000001_1.JPEG"]
    elif name == "textures":
        paths = [f"dtd/images/{one}" for one in (*names, "zigzagged/zigzagged_9999.jpg")]
    elif name == "imagenet_c":
        paths = [f"{PurePosixPath(one).parent}/{wnids()[0]}/{PurePosixPath(one).name}" for one in names]
        paths += [f"fog/5/{wnids()[1]}/{PurePosixPath(names[0]).name}"]  # another corruption of a listed image
    elif name == "imagenet_val":
        others = [f"val/{wnid}/ILSVRC2012_val_000000{i}0.JPEG" for i, wnid in enumerate(wnids()[:7], 1)]
        paths = [*(f"val/{OF_R[0]}/{one}" for one in names), *others]
    elif name == "imagenet_v2":
        paths = [f"imagenetv2-matched-frequency-format-val/{i}/{i:x}.jpeg" for i in (0, 1, 6)]
    elif name == "imagenet_r":
        paths = [f"imagenet-r/{wnid}/art_{i}.jpg" for i, wnid in enumerate(OF_R[:3])]
    elif name == "ninco":
        paths = [f"NINCO/NINCO_OOD_classes/{one}/{one}_000_0.9976.JPEG" for one in ("donuts", "high heels")]
    elif name == "ninco_unit_tests":
        paths = [f"NINCO/NINCO_OOD_unit_tests/{one}/{one}_000_{one}_0.png" for one in ("uni", "Gaussian")]
    else:  # flat: iNaturalist, SUN, Places, OpenImage-O
        others = toy_list("openimage_o_val_1763") if name == "openimage_o" else ("ffffffffffff.jpg",)
        paths = [f"{name}/images/{one}" for one in (*(names or map("{}.jpg".format, range(3))), *others)]
    return paths


def used(one: BenchmarkSet) -> set[str]:
    """Names of the images of the official archive that a benchmark uses, without extensions."""
    names = toy_list(one.keep or one.drop) if one.keep or one.drop else ()
    every, of_list = ({PurePosixPath(path).stem for path in paths} for paths in (official(one.name), names))
    return of_list if one.keep else every - of_list


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Shards of every set, built from a zip in the official layout, and verified."""
    root = tmp_path_factory.mktemp("shards")
    sets = {one.name for of in benchmarks().values() if not of.boxes for one in (of.id_set, *of.sets)}
    for name in sorted(sets - {"imagenet21k", "unit_tests"}):
        archive = root / f"{name}.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for number, path in enumerate(official(name)):
                file.writestr(path, tiny_image(number))
        build_set(replace(describe(name), md5="", file_list=""), archive, root / name, complete=False)
        assert all(report.ok for report in verify_set(root / name)), name
    return root


@pytest.fixture(autouse=True)
def toy_lists(monkeypatch) -> None:
    monkeypatch.setattr(module, "published_list", toy_list)


def read(data: Benchmark, name: str, processes: int) -> Counter:
    """How often each file of a set is read by some processes, each with its part."""
    seen: Counter = Counter()
    for rank in range(processes):
        for batch in StreamLoader(data.stream(name), TRANSFORM, batch_size=4, rank=rank, world_size=processes):
            seen.update(PurePosixPath(unescape_key(key)).stem for key in batch["key"])
    return seen


@pytest.mark.parametrize("name", [name for name, about in benchmarks().items() if not about.boxes and name != "cood"])
def test_exactly_the_listed_images_are_read_once(name: str, root: Path) -> None:
    about, sets = describe_benchmark(name), [one.name for one in describe_benchmark(name).sets]
    data = Benchmark(name, root, sets=[one for one in sets if one != "unit_tests"], complete=False, class_subset=None)
    evaluation = {"rule": about.rule, "aggregates": about.aggregates, "full_spectrum": about.full_spectrum}
    assert data.evaluation == evaluation
    for one in (about.id_set, *about.sets):
        if one.name != "unit_tests":
            assert read(data, one.name, 1) == read(data, one.name, 2) == dict.fromkeys(used(one), 1)
            stream = data.stream(one.name)
            groups = {fact.group for fact in facts_of(stream.source)} - {-1}
            assert groups == {*range(len(stream.class_names))} or not one.keep or one is about.id_set


def test_worker_processes_read_the_same_images(root: Path) -> None:
    data = Benchmark("imagenet-ood", root, complete=False, transform=TRANSFORM, num_workers=2, batch_size=2)
    keys = [key for loader in data.predict_dataloader() for batch in loader for key in batch["key"]]
    assert len(keys) == len(set(keys)) == sum(map(len, data.streams))


def test_folders_and_other_cases_and_extensions(root: Path, tmp_path: Path) -> None:
    names = toy_list("imagenet_ood_31802")
    renamed = [names[0].lower(), names[1].replace(".JPEG", ".png"), *names[2:], "n00000001/1.JPEG"]
    for number, path in enumerate(renamed):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(tiny_image(number))
    data = Benchmark("imagenet-ood", root, locations={"imagenet_ood": tmp_path}, complete=False)
    stems = {PurePosixPath(path).stem for path in renamed[:-1]}
    assert read(data, "imagenet_ood", 1) == dict.fromkeys(stems, 1)
    assert data.stream("imagenet_ood").class_names == (PurePosixPath(names[0]).parent.name,)
    (tmp_path / renamed[2]).unlink()
    with pytest.raises(DataError, match="ssb_hard: could not find 6 of 6 listed images"):
        Benchmark("openood-v1.5", root, sets=["ssb_hard"], locations={"ssb_hard": tmp_path})
    with pytest.warns(
        MissingSetWarning, match=f"could not find 1 of 6 listed images .*{names[2]}.*; missing images are left out"
    ):
        assert (
            len(Benchmark("imagenet-ood", root, complete=False, locations={"imagenet_ood": tmp_path}).streams[1]) == 5
        )


@pytest.mark.parametrize(
    ("name", "chosen", "inside"),
    [("openood-v1.5", None, 45_000), ("openood-v1.5-200", subset_labels("imagenet_r"), 9_000)],
)
def test_incomplete_sets_know_how_many_images_are_published(name: str, chosen, inside: int, root: Path) -> None:
    """Results with half of a set would look like results of the set."""
    sets = ["textures", "imagenet_r"]
    data = Benchmark(name, root, train=False, sets=sets, complete=False, class_subset=chosen)
    published = {"imagenet_val": inside, "textures": 5_160, "imagenet_r": 30_000}
    assert {stream.name: whole_size(stream) for stream in data.streams} == published
    trial = data.with_loading(max_images=1)
    assert {stream.name: whole_size(stream) for stream in trial.streams} == published
    part = Benchmark(name, root, train=False, sets=sets, complete=False, class_subset=subset_labels("imagenet_r")[:2])
    assert whole_size(part.stream("imagenet_val")) == len(part.stream("imagenet_val"))  # nobody published this number
    assert whole_size(set_stream(describe("textures"), root / "textures", complete=False)) == 5_640


def test_missing_sets_and_wrong_numbers(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"imagenet_val: expected 45,000 images in benchmark .*, got 7"):
        Benchmark("openood-v1.5", root, sets=["ssb_hard"])
    (tmp_path / "imagenet_val").symlink_to(root / "imagenet_val")
    (tmp_path / "sun").symlink_to(root / "sun")
    with pytest.warns(MissingSetWarning) as caught:
        data = Benchmark("clip-four", tmp_path, complete=False)
    assert [stream.name for stream in data.streams] == ["imagenet_val", "sun"]
    assert len(caught) == 3
    (tmp_path / "sun").unlink()
    found = r"no test set of benchmark 'clip-four' .* \(sets: inaturalist, sun, places, textures\); build one with"
    with pytest.warns(MissingSetWarning), pytest.raises(DataError, match=found):
        Benchmark("clip-four", tmp_path, complete=False)
    with pytest.raises(UnknownNameError, match=r"openood-v1\.5"):
        Benchmark("openood-v1.6", root)
    with pytest.raises(UnknownNameError, match="of 'ninco'"):
        Benchmark("ninco", root, sets=["sun"])
    with pytest.raises(InvalidArgumentError, match="object detectors"):
        Benchmark("fmiyc", root)


def test_generated_sets_without_listed_images_are_left_out(root: Path, tmp_path: Path, monkeypatch) -> None:
    """A trial with some images runs, although ImageNet-C cannot be generated from them."""
    for name in ("imagenet_val", "ssb_hard", "imagenet_r"):
        (tmp_path / name).symlink_to(root / name)
    about = describe_benchmark("openood-v1.5")
    with pytest.raises(DataError, match=f"{tmp_path / 'ninco'} .NINCO.* does not exist"):
        Benchmark("openood-v1.5", tmp_path, sets=["ninco"])
    missing = "ninco, inaturalist, textures, openimage_o, imagenet_v2"
    text = (
        f"benchmark 'openood-v1.5': 5 sets were not found below .*: {missing}. Build .*imagenet_val is always required"
    )
    with pytest.raises(DataError, match=text):
        Benchmark("openood-v1.5", tmp_path)
    for reason in ("could not find 6 of 6 listed images", r"pip install 'oodlit\[corruptions\]'"):
        with pytest.warns(MissingSetWarning) as caught:
            data = Benchmark("openood-v1.5", tmp_path, complete=False)
        assert [stream.name for stream in data.streams] == ["imagenet_val", "ssb_hard", "imagenet_r"]
        texts = [str(one.message) for one in caught]
        left_out = [one.name for one in about.sets if any(text.startswith(f"{one.name} is left out") for text in texts)]
        assert left_out == ["ninco", "inaturalist", "textures", "openimage_o", "imagenet_v2", "imagenet_c"]
        assert any(re.search(reason, text) for text in texts)
        monkeypatch.setitem(sys.modules, "imagecorruptions", None)  # without the extra


def test_validation_images_are_not_the_test_images(root: Path) -> None:
    test, val = (
        Benchmark(name, root, sets=["openimage_o"], complete=False) for name in ("openood-v1.5", "openood-v1.5-val")
    )
    for name in ("imagenet_val", "openimage_o"):
        assert not read(test, name, 1).keys() & read(val, name, 1).keys()
    assert [one.images for one in (val.about.id_set, *val.about.sets)] == [5_000, 1_763]
    with pytest.raises(DataError, match=r"imagenet_val: expected 5,000 images in benchmark 'openood-v1\.5-val', got 6"):
        Benchmark("openood-v1.5-val", root)


def test_timm_names_its_files_elsewhere() -> None:
    """The list of validation images applies to shards whose keys are numbers."""
    facts = [SampleFacts("n01440764/ILSVRC2012_val_00000013_n01440764.JPEG", 0, -1), SampleFacts("00000001", 1, -1)]
    assert listed(facts, ["ILSVRC2012_val_00000013.JPEG", "ILSVRC2012_val_00000015.JPEG"], "val") == [0, -1]
    with pytest.raises(DataError, match=r"one: the listed files 'x\.png' and 'X\.jpg' match the same image 'a/x\.jpg'"):
        listed([SampleFacts("a/x.jpg", 0, -1)], ["x.png", "X.jpg"], "one")
    two = [SampleFacts("a/x.jpg", 0, -1), SampleFacts("b/x.png", 0, -1)]
    assert listed(two, ["x.png"], "two") == [1]
    with pytest.raises(DataError, match=r"two: 2 images, such as .*, match the listed file 'x.gif'"):
        listed(two, ["x.gif"], "two")


def test_every_benchmark_is_described_completely() -> None:
    known = benchmarks()
    assert len(known) == 9
    for about in known.values():
        sets = [one.name for one in about.sets]
        assert about.citation
        assert about.boxes or {about.id_set.name, *sets} <= descriptions().keys()
        assert all(set(of) <= set(sets) for of in about.aggregates.values())
        for one in (about.id_set, *about.sets):
            names = published_list(one.keep or one.drop) if one.keep or one.drop else ()
            assert list(names) == sorted(set(names))
            assert not one.keep or one.images in (None, len(names))
            assert not one.drop or one.images in (50_000 - len(names), 9_000)


FILE = """
from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription, BenchmarkSet

BIRDS = BenchmarkDescription(
    "birds", "Birds", (BenchmarkSet("sun"), BenchmarkSet("places")), aggregates={"scenes": ("sun", "places")}
)
"""
LINE = "    from oodlit.datamodules.benchmarks.tables.birds import BIRDS as BIRDS\n"
CODE = """
import sys
from oodlit.cli.main import main
from oodlit.datamodules import Benchmark, StreamLoader
assert main(["list", "benchmarks"]) == 0
data = Benchmark("birds", sys.argv[1], complete=False)
print([stream.name for stream in data.streams], data.evaluation["aggregates"])
"""


@pytest.mark.integration
def test_one_file_and_one_line_make_a_benchmark(root: Path, tmp_path: Path) -> None:
    package = tmp_path / "oodlit"
    shutil.copytree(Path(oodlit.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    tables = package / "datamodules" / "benchmarks" / "tables"
    (tables / "birds.py").write_text(FILE)
    exports = (tables / "__init__.py").read_text()
    (tables / "__init__.py").write_text(exports.replace("if TYPE_CHECKING:\n", f"if TYPE_CHECKING:\n{LINE}"))
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(root)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Birds" in done.stdout
    assert done.stdout.splitlines()[-1] == "['imagenet_val', 'sun', 'places'] {'scenes': ('sun', 'places')}"


def test_optional_sets_are_used_if_they_exist_or_are_named(root: Path, tmp_path: Path) -> None:
    data = Benchmark("ninco", root, train=False, complete=False)
    assert [stream.name for stream in data.streams] == ["imagenet_val", "ninco", "unit_tests", "ninco_unit_tests"]
    for name in ("imagenet_val", "ninco"):
        (tmp_path / name).symlink_to(root / name)
    without = Benchmark("ninco", tmp_path, train=False, complete=False)
    assert [stream.name for stream in without.streams] == ["imagenet_val", "ninco", "unit_tests"]
    with pytest.warns(MissingSetWarning, match=r"ninco_unit_tests is left out .* does not exist"):
        named = Benchmark("ninco", tmp_path, train=False, sets=["ninco", "ninco_unit_tests"], complete=False)
    assert [stream.name for stream in named.streams] == ["imagenet_val", "ninco"]
