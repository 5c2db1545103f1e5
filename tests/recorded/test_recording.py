"""An interrupted recording resumes, and its cache equals that of an uninterrupted one."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oodlit import Role
from oodlit.datamodules import pipeline_stream
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.stream import Sample
from oodlit.errors import DataError
from oodlit.recorded import FeatureCache, open_cache
from oodlit.runs.features import recording
from tests.callbacks.processes import check_ended, run_together
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.recorded import full_disk_script, recording_script
from tests.recorded.support import IMAGES, SIZES, broken_stream, record, rows_in, share_of

pytestmark = pytest.mark.integration


@given(kill_at=st.integers(1, 62), batch_size=st.sampled_from([4, 7]), workers=st.sampled_from([0, 0, 2]))
@settings(max_examples=5, phases=(Phase.generate,), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_killed_anywhere_it_can_resume(tmp_path_factory, kill_at, batch_size, workers):
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
@pytest.mark.parametrize(("processes", "kill_at", "batch_size", "workers"), [(2, 12, 4, 0), (2, 24, 3, 2)])
def test_a_killed_process_resumes(tmp_path, processes, kill_at, batch_size, workers):
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


def test_rows_that_nobody_names_are_removed_by_the_next_run(whole, tmp_path):
    """Files of runs that are interrupted repeatedly would fill the disk."""
    record(tmp_path, kill_at=49)
    (tmp_path / "rows-0123456789ab").mkdir()
    (tmp_path / "rows-0123456789ab" / "old.safetensors").write_bytes(b"")
    (tmp_path / "rows-0" / "0123456789ab-0000-00000.safetensors").write_bytes(b"killed between a part and its share")
    for batch_size in (7, 5):  # each begins the stream anew
        record(tmp_path, kill_at=2, batch_size=batch_size)
        said = [json.loads(file.read_text()) for file in (tmp_path / ".progress").glob("*.json")]
        said += json.loads((tmp_path / "cache.json").read_text())["streams"]
        named = {file for one in said for file, _ in one["parts"]}
        assert {path.name for path in tmp_path.glob("rows-*/*")} == named
    record(tmp_path)
    assert rows_in(tmp_path) == rows_in(whole)


def test_a_part_of_a_stream_that_this_run_does_not_read_is_kept(whole, tmp_path):
    seen = record(tmp_path, kill_at=20)
    few = [stream for stream in make_streams() if stream.name in ("val", "far")]
    assert record(tmp_path, few) == SIZES["val"] + SIZES["far"]
    assert record(tmp_path) == IMAGES - seen - SIZES["val"] - SIZES["far"]
    assert rows_in(tmp_path) == rows_in(whole)


def test_a_damaged_stream_is_recorded_again(whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    entry = next(e for e in json.loads((folder / "cache.json").read_text())["streams"] if e["name"] == "far")
    part = folder / "rows-0" / entry["parts"][2][0]
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(DataError, match=part.name):
        open_cache(folder)
    cache, data = FeatureCache(folder), OODDataModule(make_streams(), batch_size=4)
    make_trainer(cache).predict(make_module(), data, return_predictions=False)
    assert "to record: far (30 images); recorded again: " in cache.found
    assert part.name in cache.found
    assert rows_in(folder) == rows_in(whole)
    assert not part.exists()


def test_a_part_damaged_during_the_run_costs_only_that_part(whole, tmp_path, monkeypatch):
    original = recording.Recording.finish

    def finish(self, *arguments):
        (tmp_path / "rows-0" / self.own_parts["far"].parts[0][0]).unlink()
        original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(recording.Recording, "finish", finish)
        with pytest.raises(DataError, match="missing or damaged"):
            record(tmp_path)
    assert record(tmp_path) == SIZES["far"]
    assert rows_in(tmp_path) == rows_in(whole)


def test_an_interrupted_recording_of_a_damaged_stream_resumes(whole, tmp_path):
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


def test_no_image_is_recorded_twice(whole, tmp_path):
    """A part that is named in the place of another one: the count is right, the keys are not."""
    record(tmp_path, kill_at=49)
    file, share = share_of("far", tmp_path)
    share["parts"][1] = share["parts"][0]
    file.write_text(json.dumps(share))
    with pytest.raises(DataError, match="'far/0000' was recorded more than once"):
        record(tmp_path)
    assert record(tmp_path) == SIZES["far"]
    assert rows_in(tmp_path) == rows_in(whole)


def test_no_image_is_missing(whole, tmp_path):
    record(tmp_path, kill_at=49)
    file, share = share_of("far", tmp_path)
    file.write_text(json.dumps(share | {"batches": share["batches"] + 1}))
    with pytest.raises(DataError, match="has 26 of 30 images of 'far'"):
        record(tmp_path)
    assert record(tmp_path) == SIZES["far"]


def test_a_stream_finished_before_the_kill_is_complete_at_the_next_start(tmp_path, monkeypatch):
    def killed(*_, **__):
        raise DataError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("oodlit.runs.features.recording.write_manifest", killed)
        assert record(tmp_path, kill_at=1000) == IMAGES
    assert not (tmp_path / "cache.json").exists()
    with pytest.raises(DataError, match="killed"):
        record(tmp_path, [*make_streams(), broken_stream()])
    assert sorted(rows_in(tmp_path)) == sorted(SIZES)
    assert record(tmp_path) == 0


def test_a_full_disk_costs_nothing_that_was_recorded(tmp_path):
    ended = run_together(full_disk_script.main, 1, tmp_path / "cache", folder=tmp_path / "logs")
    check_ended(ended)
    assert ended[0].stdout.count("File too large") >= 2
    assert ended[0].stdout.count("cannot be written") >= 1


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
