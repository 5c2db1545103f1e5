"""Missing streams are added to a cache; streams of other data or networks are refused."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from oodlit import OODModule, Role
from oodlit.base import atomic
from oodlit.base.atomic import lock
from oodlit.callbacks import OODDetection
from oodlit.cli.running.recording import through_cache
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import MSP
from oodlit.errors import DataError, FingerprintError, InvalidArgumentError
from oodlit.recorded import FeatureCache, open_cache
from oodlit.results.record_parts import SkippedImage
from oodlit.runs.features import recording
from oodlit.testing.backbones import TinyConvNet
from tests.callbacks.processes import run_together
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.recorded import recording_script
from tests.recorded.support import (
    SIZES,
    broken_stream,
    edit_manifest,
    files_in,
    record,
    rows_in,
    some_detectors,
    tiny_stream,
)


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


def test_what_somebody_else_put_there_is_left_alone(whole, tmp_path):
    own = {"rows-of-corn/notes.txt": "mine", "rows-0/notes.txt": "mine", "val.npz": "mine"}
    for name, text in own.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    record(tmp_path)
    assert {name: (tmp_path / name).read_text() for name in own} == own
    assert rows_in(tmp_path) == rows_in(whole)


def test_a_head_that_belongs_to_no_cache_is_not_written_over(tmp_path):
    """As beside the features of other tools."""
    (tmp_path / "head.safetensors").write_text("mine")
    with pytest.raises(InvalidArgumentError, match=r"contains head\.safetensors but no cache"):
        record(tmp_path)
    assert (tmp_path / "head.safetensors").read_text() == "mine"


def test_a_cache_of_an_earlier_version_is_extended(whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))

    def as_before(manifest):
        for name in ("precision", "decoder", "recordings", "head_checksum"):
            del manifest[name]
        for entry in manifest["streams"]:
            del entry["checksums"]
        manifest["rows"] = "rows-0123456789ab"

    edit_manifest(folder, as_before)
    (folder / "rows-0").rename(folder / "rows-0123456789ab")
    assert rows_in(folder) == rows_in(whole)
    assert record(folder, [*make_streams(), tiny_stream()]) == 1
    assert len(rows_in(folder)) == len(SIZES) + 1
    assert [path.name for path in folder.glob("rows-*")] == ["rows-0123456789ab"]


def test_trials_are_recorded_again_when_more_images_are_requested(whole, tmp_path):
    for most in (4, 9):
        assert record(tmp_path, max_images=most) == sum(min(most, size) for size in SIZES.values())
    with pytest.raises(DataError, match=r"'train' was recorded with only 9 of its 150 images \(max_images or"):
        open_cache(tmp_path, data=OODDataModule(make_streams()))
    cache, data = FeatureCache(tmp_path), OODDataModule(make_streams(), batch_size=4)
    make_trainer(cache).predict(make_module(), data, return_predictions=False)
    assert "recorded again: " in cache.found
    assert "with only 9 of its 150 images" in cache.found
    assert rows_in(tmp_path) == rows_in(whole)


def test_a_trial_replaces_no_more_images_than_it_has(whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    for use in (
        lambda: record(folder, max_images=4),
        lambda: open_cache(folder, data=OODDataModule(make_streams(), max_images=4)),
    ):
        with pytest.raises(
            FingerprintError, match="with 150 images, but this run reads only 4 of them; omit max_images"
        ):
            use()
    assert rows_in(folder) == rows_in(whole)


def test_a_command_after_its_trial_records_again(tmp_path):
    said = []
    for most, size in ((4, 4), (None, 30)):
        data = OODDataModule(make_streams(), batch_size=4, max_images=most)
        options = {"accelerator": "cpu", "enable_model_summary": False}
        _, opened, _ = through_cache(
            make_module(), data, tmp_path, dtype="float32", trainer=options, seed=0, say=said.append
        )
        assert len(opened.stream("far")) == size
    assert "recorded again" in said[-1]


def changed_weight():
    module = make_module()
    with torch.no_grad():
        next(module.network.parameters()).view(-1)[0] += 1e-3
    return module


@pytest.mark.parametrize("kill_at", [20, None], ids=["half", "whole"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"module": changed_weight}, "was recorded with .*, but the state of the weights differs"),
        ({"dtype": "float16"}, "with dtype float32, but this run uses float16"),
        ({"trainer": {"precision": "bf16-mixed"}}, "with precision 32-true, but this run uses bf16-mixed"),
        ({"decode_on_device": True}, "with decoder workers, but this run uses cpu"),
    ],
    ids=["network", "dtype", "precision", "decoder"],
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
    with pytest.raises(FingerprintError, match=r"data set 'far' was recorded from other data \(images: "):
        record(whole, few)
    record(tmp_path, kill_at=49)
    record(tmp_path, few)
    assert len(rows_in(tmp_path)["far"]) == 20


def test_other_names_of_the_classes_are_refused(tmp_path):
    streams = [stream for stream in make_streams(with_train=False) if stream.name in ("val", "far")]
    record(tmp_path, streams, class_names=list("abcdef"))
    with pytest.raises(FingerprintError, match="class 5 is 'f' in the cache, but 'g' in the data"):
        record(tmp_path, [*streams, tiny_stream()], class_names=list("abcdeg"))
    with pytest.raises(FingerprintError, match="class 6 is missing in the cache, but 'g' in the data"):
        record(tmp_path, [*streams, tiny_stream()], class_names=list("abcdefg"))


def test_what_is_cut_otherwise_is_recorded_anew_and_the_run_says_what_that_costs(tmp_path, caplog):
    record(tmp_path, kill_at=20)
    with caplog.at_level("INFO"):
        record(tmp_path, batch_size=5)
    assert "76 images of train are recorded again, because settings changed (batch_size was 4 and is" in caplog.text


def test_two_runs_do_not_write_into_one_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "ORPHANS_S", 0.0)
    with (
        lock(tmp_path / ".recording"),
        pytest.raises(InvalidArgumentError, match="another run is writing to this folder"),
    ):
        record(tmp_path)
    assert not list(tmp_path.glob("rows-*"))


@pytest.mark.integration
@pytest.mark.ddp
def test_where_the_first_process_is_refused_all_end(tmp_path):
    (tmp_path / "cache").mkdir()
    how = (2, tmp_path / "cache", 0, 4, 0)
    with lock(tmp_path / "cache" / ".recording"):
        ended = run_together(recording_script.main, *how, folder=tmp_path / "logs", timeout=60)
    assert all(one.code != 0 for one in ended)
    assert all("another run is writing to this folder" in one.stderr for one in ended)


def test_who_does_not_see_the_manifest_says_so(tmp_path, monkeypatch):
    """As another machine, of which the folder of that name is its own."""
    monkeypatch.setattr(recording, "VISIBLE_S", 0.2)
    with pytest.raises(DataError, match=r"did not appear within 0\.2 s; all processes must use the same folder"):
        recording._wait_for("0123", tmp_path)


def test_images_of_another_kind_and_labels_beyond_the_network_are_refused(tmp_path):
    one = Stream("grey", Role.OOD, MemorySource([Sample("0", torch.zeros(1, 8, 8))]))
    with pytest.raises(DataError, match="use the same transform for all data sets"):
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
    with pytest.warns(UserWarning, match=r"skipped images: 1 \(first: half/bad, unreadable"):
        make_trainer(detection).predict(module, data, return_predictions=False)
    assert detection.results.run.skipped == [SkippedImage("half/bad", "unreadable")]
    assert detection.results.run.counts["half"] == 5


def test_reading_a_cache_is_not_called_a_pass_of_the_backbone(whole):
    """The page would compare the cost of detectors with that of the backbone."""
    data, made = OODDataModule([s for s in make_streams(with_train=False) if s.name in ("val", "far")]), []
    for module, read in ((make_module(), data), open_cache(whole, data=data)):
        detection = OODDetection([MSP()])
        make_trainer(detection).predict(module, read, return_predictions=False)
        made.append(detection.results.run.time)
    assert [time.backbone_ms is not None for time in made] == [True, False]


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
    with pytest.raises(InvalidArgumentError, match="'val' is neither cached nor read by this run"):
        make_trainer(detection, FeatureCache(tmp_path / "cache")).predict(make_module(), data, return_predictions=False)


def test_one_pass_records_into_one_cache(tmp_path):
    caches = FeatureCache(tmp_path / "a"), FeatureCache(tmp_path / "b", dtype="float16")
    data = OODDataModule(make_streams())
    with pytest.raises(InvalidArgumentError, match="the Trainer has several"):
        make_trainer(*caches).predict(make_module(), data, return_predictions=False)
    detection = OODDetection([MSP()], train_thresholds=True)
    make_trainer(*caches, detection).predict(make_module(), data, return_predictions=False)
    assert rows_in(tmp_path / "a").keys() == rows_in(tmp_path / "b").keys() == SIZES.keys()


def test_a_faster_way_is_verified_and_its_deviation_kept(tmp_path):
    record(tmp_path, module=OODModule(TinyConvNet(6), name="tiny", channels_last=True))
    (entry,) = json.loads((tmp_path / "cache.json").read_text())["recordings"]
    assert entry["acceleration"]["channels_last"]
    assert entry["acceleration"]["deviation_of_logits"] < 0.01


def test_the_manifest_says_what_was_recorded_when_and_how_long_it_took(whole, tmp_path):
    manifest = json.loads((whole / "cache.json").read_text())
    (entry,) = manifest["recordings"]
    assert entry["streams"] == list(SIZES)
    assert entry["time"]["mean"]["backbone"] > 0
    assert manifest["precision"] == "32-true"
