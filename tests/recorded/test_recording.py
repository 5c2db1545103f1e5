"""A cache grows by what it lacks: new sets, and the rest of a recording that was killed."""

import json
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oodlit import OODModule, Role
from oodlit.atomic import lock
from oodlit.callbacks import OODDetection
from oodlit.datamodules import pipeline_stream
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import MSP
from oodlit.errors import DataError, FingerprintError, InvalidArgumentError
from oodlit.recorded import FeatureCache, open_cache
from oodlit.testing.backbones import TinyConvNet
from tests.callbacks.processes import check_ended, run_together
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.recorded import full_disk_script, recording_script
from tests.recorded.support import record, rows_in, some_detectors, tiny_stream

SIZES = {"train": 150, "val": 30, "far": 30, "tests": 8, "shifted": 12}
IMAGES = sum(SIZES.values())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A cache that was recorded without a break."""
    folder = tmp_path_factory.mktemp("whole")
    assert record(folder) == IMAGES
    return folder


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_what_is_recorded_is_not_recorded_again(whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    before = files_in(folder)
    assert record(folder) == 0
    assert files_in(folder) == before


def test_a_new_set_is_added_and_nothing_else_is_read(whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    before = files_in(folder)
    assert record(folder, [*make_streams(), tiny_stream(count=5)]) == 5
    after = files_in(folder)
    assert {name: after[name] for name in before if name != "cache.json"} == {
        name: value for name, value in before.items() if name != "cache.json"
    }
    rows = rows_in(folder)
    assert len(rows.pop("tiny")) == 5
    assert rows == rows_in(whole)


def test_a_cache_of_an_earlier_version_is_extended(whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    manifest = json.loads((folder / "cache.json").read_text())
    for name in ("precision", "recordings"):
        del manifest[name]
    manifest["rows"] = "rows-0123456789ab"
    (folder / "rows-0").rename(folder / manifest["rows"])
    (folder / "cache.json").write_text(json.dumps(manifest))
    assert rows_in(folder) == rows_in(whole)
    assert record(folder, [*make_streams(), tiny_stream()]) == 1
    assert len(rows_in(folder)) == len(SIZES) + 1
    assert [path.name for path in folder.glob("rows-*")] == [manifest["rows"]]


@given(kill_at=st.integers(1, 62), batch_size=st.sampled_from([4, 7]), workers=st.sampled_from([0, 0, 2]))
@settings(max_examples=5, phases=(Phase.generate,), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_killed_anywhere_it_goes_on(tmp_path_factory, kill_at, batch_size, workers):
    folder, unbroken = tmp_path_factory.mktemp("killed"), tmp_path_factory.mktemp("unbroken")
    cut = {"batch_size": batch_size, "num_workers": workers}
    seen = record(folder, kill_at=kill_at, **cut)
    assert seen + record(folder, **cut) == IMAGES  # each batch was on disk at once
    record(unbroken, **cut)
    assert rows_in(folder) == rows_in(unbroken)
    assert sorted(path.name for path in folder.iterdir()) == ["cache.json", "head.safetensors", "rows-0"]


def test_killed_again_and_again(whole, tmp_path):
    seen = sum(record(tmp_path, kill_at=kill_at) for kill_at in (3, 40, 1, 9))
    assert seen + record(tmp_path) == IMAGES
    assert rows_in(tmp_path) == rows_in(whole)


def test_what_waits_is_lost_and_no_more(whole, tmp_path, monkeypatch):
    monkeypatch.setattr("oodlit.recorded.store.PART_BYTES", 2000)
    seen = record(tmp_path, kill_at=30, every=1000.0)
    again = record(tmp_path, every=1000.0)
    assert IMAGES < seen + again <= IMAGES + 4 * 5
    assert rows_in(tmp_path) == rows_in(whole)


@pytest.mark.ddp
@pytest.mark.parametrize(
    ("processes", "kill_at", "batch_size", "workers"), [(1, 20, 4, 0), (1, 50, 4, 0), (2, 12, 4, 0), (2, 24, 3, 2)]
)
def test_a_killed_process_goes_on(tmp_path, processes, kill_at, batch_size, workers):
    """Within the training stream and within a test set, by the system's own signal; `tiny` has one image."""
    how = (batch_size, workers)
    killed = run_together(recording_script.main, processes, tmp_path / "a", kill_at, *how, folder=tmp_path / "logs")
    assert all(one.code != 0 for one in killed)
    assert any(one.code == -signal.SIGKILL for one in killed)
    ended = run_together(recording_script.main, processes, tmp_path / "a", 0, *how, folder=tmp_path / "logs")
    check_ended(ended)
    unbroken = run_together(recording_script.main, processes, tmp_path / "b", 0, *how, folder=tmp_path / "logs")
    check_ended(unbroken)
    images = [sum(int(one.stdout.split("images ")[-1]) for one in all_) for all_ in (ended, unbroken)]
    assert images[1] == IMAGES + 1
    assert images[1] - images[0] >= (kill_at - 4) * batch_size  # at least those of the process that was killed
    assert rows_in(tmp_path / "a") == rows_in(tmp_path / "b")


@pytest.mark.parametrize("change", [{"batch_size": 7}, {"num_workers": 1}], ids=["batches", "workers"])
def test_cut_otherwise_whole_streams_stay_and_half_ones_are_recorded_anew(whole, tmp_path, change):
    record(tmp_path, kill_at=49)  # within `far`
    assert record(tmp_path, **change) == sum(SIZES[name] for name in ("far", "tests", "shifted"))
    assert {name: rows.keys() for name, rows in rows_in(tmp_path).items()} == {
        name: rows.keys() for name, rows in rows_in(whole).items()
    }
    assert sum(len(json.loads(f.read_text())["parts"]) for f in tmp_path.glob(".progress/*")) == 0


def test_rows_that_nobody_names_are_removed_by_the_next_run_that_ends(whole, tmp_path):
    record(tmp_path, kill_at=49)
    (tmp_path / "rows-ffff").mkdir()
    (tmp_path / "rows-ffff" / "old.safetensors").write_bytes(b"")
    record(tmp_path, kill_at=2, batch_size=7)
    assert (tmp_path / "rows-ffff").exists()
    record(tmp_path, batch_size=7)
    named = {
        file for entry in json.loads((tmp_path / "cache.json").read_text())["streams"] for file, _ in entry["parts"]
    }
    assert {path.name for path in tmp_path.glob("rows-*/*")} == named


def test_a_part_of_a_stream_that_this_run_does_not_read_is_kept(whole, tmp_path):
    seen = record(tmp_path, kill_at=20)
    few = [stream for stream in make_streams() if stream.name in ("val", "far")]
    assert record(tmp_path, few) == SIZES["val"] + SIZES["far"]
    assert record(tmp_path) == IMAGES - seen - SIZES["val"] - SIZES["far"]
    assert rows_in(tmp_path) == rows_in(whole)


def test_a_stream_that_is_damaged_is_recorded_anew(whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    entry = next(e for e in json.loads((folder / "cache.json").read_text())["streams"] if e["name"] == "far")
    part = folder / "rows-0" / entry["parts"][2][0]
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(DataError, match=part.name):
        open_cache(folder)
    cache, data = FeatureCache(folder), OODDataModule(make_streams(), batch_size=4)
    make_trainer(cache).predict(make_module(), data, return_predictions=False)
    assert cache.before.startswith("recorded anew")
    assert part.name in cache.before
    assert rows_in(folder) == rows_in(whole)
    assert not part.exists()


def test_a_damaged_stream_that_is_recorded_anew_goes_on_as_well(whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    entry = next(e for e in json.loads((folder / "cache.json").read_text())["streams"] if e["name"] == "train")
    (folder / "rows-0" / entry["parts"][0][0]).unlink()
    seen = record(folder, kill_at=20)
    assert seen + record(folder) == SIZES["train"]
    assert rows_in(folder) == rows_in(whole)


def test_a_part_that_is_damaged_before_the_end_costs_its_stream(whole, tmp_path):
    record(tmp_path, kill_at=49)
    _, share = share_of("far", tmp_path)
    (tmp_path / "rows-0" / share["parts"][0][0]).unlink()
    assert record(tmp_path) == sum(SIZES[name] for name in ("far", "tests", "shifted"))
    assert rows_in(tmp_path) == rows_in(whole)


def share_of(stream: str, folder: Path) -> tuple[Path, dict]:
    """The file that says what is recorded of a stream, and what it says."""
    shares = {file: json.loads(file.read_text()) for file in (folder / ".progress").glob("*.json")}
    return next((file, share) for file, share in shares.items() if share["stream"]["name"] == stream)


def changed_weight():
    module = make_module()
    with torch.no_grad():
        next(module.network.parameters()).view(-1)[0] += 1e-3
    return module


@pytest.mark.parametrize("kill_at", [20, None], ids=["half", "whole"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"module": changed_weight}, "recorded with another network .*the state of the weights differs"),
        ({"dtype": "float16"}, "with dtype float32, and float16 is asked for"),
        ({"trainer": {"precision": "bf16-mixed"}}, "with precision 32-true, and bf16-mixed is asked for"),
    ],
    ids=["network", "dtype", "precision"],
)
def test_what_belongs_to_another_recording_is_refused_and_nothing_is_touched(tmp_path, kill_at, change, message):
    record(tmp_path, kill_at=kill_at)
    before = files_in(tmp_path)
    change = {name: value() if callable(value) else value for name, value in change.items()}
    with pytest.raises(FingerprintError, match=message):
        record(tmp_path, [*make_streams(), tiny_stream()], **change)
    assert files_in(tmp_path) == before


def test_other_data_of_the_same_name_is_refused_where_it_is_whole_and_recorded_anew_where_not(whole, tmp_path):
    few = make_streams(num_ood=20)
    with pytest.raises(FingerprintError, match="stream 'far' was recorded from other data, its images differ"):
        record(whole, few)
    record(tmp_path, kill_at=49)
    record(tmp_path, few)
    assert len(rows_in(tmp_path)["far"]) == 20


def test_other_names_of_the_classes_are_refused(tmp_path):
    streams = [stream for stream in make_streams(with_train=False) if stream.name in ("val", "far")]
    record(tmp_path, streams, class_names=list("abcdef"))
    with pytest.raises(FingerprintError, match="the names of the classes differ"):
        record(tmp_path, [*streams, tiny_stream()], class_names=list("abcdeg"))


def test_two_runs_do_not_write_into_one_cache(tmp_path):
    with lock(tmp_path / ".recording"), pytest.raises(InvalidArgumentError, match="another run is writing there"):
        record(tmp_path)
    assert not list(tmp_path.glob("rows-*"))


@pytest.mark.ddp
def test_where_the_first_process_is_refused_all_end(tmp_path):
    (tmp_path / "cache").mkdir()
    how = (2, tmp_path / "cache", 0, 4, 0)
    with lock(tmp_path / "cache" / ".recording"):
        ended = run_together(recording_script.main, *how, folder=tmp_path / "logs", timeout=60)
    assert all(one.code != 0 for one in ended)
    assert all("another run is writing there" in one.stderr for one in ended)


def test_no_image_is_recorded_twice(whole, tmp_path):
    """A part that is named in the place of another one: the count is right, the keys are not."""
    record(tmp_path, kill_at=49)
    file = next(
        f for f in (tmp_path / ".progress").glob("*.json") if json.loads(f.read_text())["stream"]["name"] == "far"
    )
    share = json.loads(file.read_text())
    share["parts"][1] = share["parts"][0]
    file.write_text(json.dumps(share))
    with pytest.raises(DataError, match="stream 'far': key '0000' was recorded more than once"):
        record(tmp_path)
    assert record(tmp_path) == SIZES["far"]
    assert rows_in(tmp_path) == rows_in(whole)


def test_no_image_is_missing(whole, tmp_path):
    record(tmp_path, kill_at=49)
    file = next(
        f for f in (tmp_path / ".progress").glob("*.json") if json.loads(f.read_text())["stream"]["name"] == "far"
    )
    share = json.loads(file.read_text())
    file.write_text(json.dumps(share | {"batches": share["batches"] + 1}))
    with pytest.raises(DataError, match="stream 'far': 26 of its 30 images were recorded"):
        record(tmp_path)
    assert record(tmp_path) == SIZES["far"]


def test_a_stream_that_was_over_when_the_run_was_killed_is_whole_at_the_next_start(tmp_path, monkeypatch):
    def killed(*_, **__):
        raise DataError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("oodlit.recorded.recording.write_manifest", killed)
        assert record(tmp_path, kill_at=1000) == IMAGES
    assert not (tmp_path / "cache.json").exists()
    with pytest.raises(DataError, match="killed"):
        record(tmp_path, [*make_streams(), broken_stream()])
    assert sorted(rows_in(tmp_path)) == sorted(SIZES)
    assert record(tmp_path) == 0


def broken_stream() -> Stream:
    return Stream("broken", Role.OOD, MemorySource([Sample("bad", torch.zeros(3, 8, 8), error="killed")]))


def test_a_full_disk_costs_nothing_that_was_recorded(tmp_path):
    ended = run_together(full_disk_script.main, 1, tmp_path / "cache", folder=tmp_path / "logs")
    check_ended(ended)
    assert ended[0].stdout.count("File too large") >= 2
    assert ended[0].stdout.count("it cannot be written") >= 1


def test_a_pipeline_is_recorded_whole_or_not_at_all(tmp_path):
    items = [{"__key__": f"{i}", "npy": None} for i in range(10)]

    def sample_of(item):
        return Sample(item["__key__"], torch.full((3, 8, 8), float(item["__key__"])), group=0)

    def streams():
        pipeline = pipeline_stream(
            items, name="piped", role=Role.OOD, count=10, class_names=("x",), to_sample=sample_of
        )
        return [*(s for s in make_streams(with_train=False) if s.name == "val"), pipeline]

    assert record(tmp_path, streams(), kill_at=10) == SIZES["val"] + 4
    assert record(tmp_path, streams()) == 10
    assert record(tmp_path, streams()) == 0
    assert sorted(rows_in(tmp_path)["piped"]) == sorted(str(i) for i in range(10))


def test_parts_of_streams_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="a cache is of whole streams"):
        record(tmp_path, trainer={"limit_predict_batches": 2})


def test_images_of_another_kind_and_labels_beyond_the_network_are_refused(tmp_path):
    one = Stream("grey", Role.OOD, MemorySource([Sample("0", torch.zeros(1, 8, 8))]))
    with pytest.raises(DataError, match="all streams must go through the same transform"):
        record(tmp_path, [*make_streams(), one])
    wrong = Stream("new", Role.SHIFT, MemorySource([Sample("0", torch.zeros(3, 8, 8), label=6)]))
    with pytest.raises(DataError, match="label 6"):
        record(tmp_path, [*make_streams(), wrong])
    assert record(tmp_path) == 0


def test_the_table_from_a_cache_is_that_of_the_network(whole):
    direct, recorded = (OODDetection(some_detectors()) for _ in range(2))
    make_trainer(direct).predict(make_module(), OODDataModule(make_streams(), batch_size=4), return_predictions=False)
    module, data = open_cache(whole, make_module(), OODDataModule(make_streams()))
    make_trainer(recorded).predict(module, data, return_predictions=False)
    pd.testing.assert_frame_equal(recorded.results.table, direct.results.table, rtol=0, atol=0)


def test_skipped_images_are_told_by_every_run_that_reads_the_cache(tmp_path):
    bad = [Sample("bad", b"", error="unreadable"), *(Sample(f"{i}", torch.full((3, 8, 8), i / 9)) for i in range(5))]
    streams = [*(s for s in make_streams() if s.name == "val"), Stream("half", Role.OOD, MemorySource(bad))]
    record(tmp_path, streams, on_error="skip", batch_size=2)
    module, data = open_cache(tmp_path, data=OODDataModule(streams, on_error="skip"))
    detection = OODDetection([MSP()])
    with pytest.warns(UserWarning, match="1 images were skipped, first half/bad: unreadable"):
        make_trainer(detection).predict(module, data, return_predictions=False)
    assert detection.results.run["skipped"] == [{"key": "half/bad", "reason": "unreadable"}]
    assert detection.results.run["counts"]["half"] == 5


def test_beside_a_run_what_is_held_is_kept_and_the_rest_is_added(whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    data = OODDataModule([*make_streams(), tiny_stream()])
    detection = OODDetection([MSP()])  # reads no training images: the cache has them
    make_trainer(FeatureCache(folder), detection).predict(make_module(), data, return_predictions=False)
    assert len(rows_in(folder).pop("tiny")) == 1
    assert {name: rows for name, rows in rows_in(folder).items() if name != "tiny"} == rows_in(whole)
    assert detection.results.detectors == ("msp",)


def test_beside_a_run_that_goes_on_in_the_middle_of_a_stream_it_is_refused(tmp_path):
    data = OODDataModule([*(s for s in make_streams(with_train=False)), broken_stream()], batch_size=4)
    options = {"output_dir": tmp_path / "out", "resume": True, "keep_every_s": 0.0}
    with pytest.raises(DataError, match="killed"):
        make_trainer(OODDetection([MSP()], **options)).predict(make_module(), data, return_predictions=False)
    detection = OODDetection([MSP()], **options)
    with pytest.raises(InvalidArgumentError, match="does not read 'val', and the cache does not hold it"):
        make_trainer(detection, FeatureCache(tmp_path / "cache")).predict(make_module(), data, return_predictions=False)


def test_one_pass_records_into_one_cache(tmp_path):
    caches = FeatureCache(tmp_path / "a"), FeatureCache(tmp_path / "b", dtype="float16")
    data = OODDataModule(make_streams())
    with pytest.raises(InvalidArgumentError, match="the Trainer has two"):
        make_trainer(*caches).predict(make_module(), data, return_predictions=False)
    detection = OODDetection([MSP()], train_thresholds=True)
    make_trainer(*caches, detection).predict(make_module(), data, return_predictions=False)
    assert rows_in(tmp_path / "a").keys() == rows_in(tmp_path / "b").keys() == SIZES.keys()


def test_a_faster_way_is_verified_and_its_deviation_kept(tmp_path):
    record(tmp_path, module=OODModule(TinyConvNet(6), name="tiny", channels_last=True))
    (recording,) = json.loads((tmp_path / "cache.json").read_text())["recordings"]
    assert recording["acceleration"]["channels_last"]
    assert recording["acceleration"]["deviation_of_logits"] < 0.01


def test_the_manifest_says_what_was_recorded_when_and_how_long_it_took(whole, tmp_path):
    manifest = json.loads((whole / "cache.json").read_text())
    (recording,) = manifest["recordings"]
    assert recording["streams"] == list(SIZES)
    assert recording["time"]["mean"]["backbone"] > 0
    assert manifest["precision"] == "32-true"
