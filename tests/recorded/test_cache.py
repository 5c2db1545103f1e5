"""Features kept in one run and read by later ones: the same scores, no image through the network."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oodlit import Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules import severity_pool
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.sources import MemorySource
from oodlit.datamodules.stream import Sample, Stream
from oodlit.detectors import MSP, Energy
from oodlit.errors import DataError, FingerprintError, InvalidArgumentError
from oodlit.recorded import FeatureCache, open_cache
from oodlit.recorded.cache_data import has_cache
from oodlit.recorded.rows import Rows
from oodlit.recorded.store import PartWriter, StoredRows
from tests.callbacks.pool_script import make_pool
from tests.callbacks.processes import check_ended, run_together
from tests.callbacks.support import make_module, make_streams, make_trainer
from tests.recorded import process_script
from tests.recorded.support import compare, record, recorded_run, some_detectors


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    results, _ = recorded_run(folder)
    return folder, results


def run_from(folder: Path, detectors=None, **options):
    module, data = open_cache(folder, **options)
    detection = OODDetection(detectors or some_detectors())
    make_trainer(detection).predict(module, data, return_predictions=False)
    return detection.results


def test_the_scores_are_those_of_the_run_that_was_recorded(recorded):
    folder, results = recorded
    compare(run_from(folder), results)


def test_no_image_goes_through_the_network(recorded):
    folder, results = recorded
    module, seen = make_module(), []
    module.network.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    compare(run_from(folder, module=module, data=OODDataModule(make_streams())), results)
    assert sum(seen) <= 6  # three passes of two fixed inputs, for probe and fingerprint
    detection = OODDetection(some_detectors())
    make_trainer(detection).predict(module, OODDataModule(make_streams()), return_predictions=False)
    assert sum(seen) >= len(results.scores)  # the hook does count


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_the_space_for_a_stated_loss(recorded, tmp_path, dtype):
    _, results = recorded
    recorded_run(tmp_path, dtype=dtype)
    loss = json.loads((tmp_path / "cache.json").read_text())["loss"]
    assert 0 < loss["features"] < 0.1
    assert 0 < loss["logits"] < 0.1
    made = run_from(tmp_path, [MSP()])
    kept = results.scores[results.scores["dataset"] != "train"].reset_index(drop=True)
    compare(Frame(made.scores[["key", "msp"]]), Frame(kept[["key", "msp"]]), 0.2)


class Frame:
    """Scores alone, as results have them."""

    def __init__(self, scores: pd.DataFrame) -> None:
        self.scores = scores


def test_part_of_the_streams_may_be_read(recorded):
    folder, results = recorded
    streams = [s for s in make_streams() if s.name in ("val", "far")]
    made = run_from(folder, [MSP()], data=OODDataModule(streams))
    kept = results.scores[results.scores["dataset"].isin(["val", "far"])].reset_index(drop=True)
    compare(Frame(made.scores[["key", "msp"]]), Frame(kept[["key", "msp"]]))


def test_pictures_come_from_the_data(recorded):
    folder, results = recorded
    key = results.scores["key"].iloc[-1]
    _, with_data = open_cache(folder, data=OODDataModule(make_streams()))
    _, without = open_cache(folder)
    assert list(with_data.read_images([key])) == [key]
    assert without.read_images([key]) == {}


def changed_weight():
    module = make_module()
    with torch.no_grad():
        next(module.network.parameters()).view(-1)[0] += 1e-3
    return module


def other_streams(change) -> OODDataModule:
    return OODDataModule([change(stream) if stream.name == "far" else stream for stream in make_streams()])


def renamed_class(stream):
    return Stream(stream.name, stream.role, stream.source, ("first", "second", "fourth"))


def fewer(stream):
    return Stream(stream.name, stream.role, MemorySource(stream.source.samples[1:]), stream.class_names)


def other_key(stream):
    first, *others = stream.source.samples
    samples = [Sample("another", first.image, first.label, first.group), *others]
    return Stream(stream.name, stream.role, MemorySource(samples), stream.class_names)


def other_role(stream):
    return Stream(stream.name, Role.UNIT_TEST, stream.source, stream.class_names)


def other_name(stream):
    return Stream("further", stream.role, stream.source, stream.class_names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed_class, r"\(other class names\)"),
        (fewer, r"\(images: 30 in the cache, 29 now"),
        (other_key, r"\(other keys, labels or groups of images\)"),
        (other_role, r"\(role: ood in the cache, unit_test now"),
        (other_name, "'further' is not in this cache"),
    ],
)
def test_a_cache_of_other_data_is_refused_with_what_differs(recorded, change, message):
    with pytest.raises(FingerprintError, match=message):
        open_cache(recorded[0], data=other_streams(change))


def test_a_cache_of_another_network_is_refused(recorded):
    with pytest.raises(FingerprintError, match="the state of the weights differs"):
        open_cache(recorded[0], changed_weight())


def test_a_cache_of_another_transform_is_refused(recorded):
    from torchvision.transforms import Grayscale

    with pytest.raises(FingerprintError, match="the transform differs"):
        open_cache(recorded[0], make_module(), OODDataModule(make_streams(), transform=Grayscale(3)))


def test_no_cache_no_half_cache_no_damaged_cache(recorded, tmp_path):
    with pytest.raises(DataError, match=r"found no cache\.json; choose"):
        open_cache(tmp_path)
    folder = recorded_copy(recorded[0], tmp_path / "copy")
    part = sorted(folder.glob("rows-*/*.safetensors"))[1]
    part.write_bytes(part.read_bytes()[:-40])
    with pytest.raises(DataError, match=part.name):
        open_cache(folder)
    part.unlink()
    with pytest.raises(DataError, match=part.name):
        open_cache(folder)
    (folder / "cache.json").write_text("{")
    with pytest.raises(DataError, match=r"cache\.json: not valid JSON"):
        open_cache(folder)
    (folder / "cache.json").write_text('{"format": 99}')
    with pytest.raises(DataError, match=r"the cache has format 99, expected 1; choose another folder .* or delete"):
        open_cache(folder)
    (folder / "cache.json").write_text('{"format": 1}')
    with pytest.raises(DataError, match=r"cache\.json: .*missing required field"):
        open_cache(folder)


def recorded_copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


def test_an_interrupted_run_keeps_the_earlier_cache(recorded, tmp_path):
    folder = recorded_copy(recorded[0], tmp_path / "copy")
    before = sorted(path.name for path in folder.rglob("*"))
    streams = make_streams()
    broken = [Sample("bad", torch.zeros(3, 8, 8), error="unreadable")]
    streams.append(Stream("broken", Role.OOD, MemorySource(broken)))
    with pytest.raises(DataError, match="unreadable"):
        make_trainer(FeatureCache(folder)).predict(make_module(), OODDataModule(streams), return_predictions=False)
    assert sorted(path.name for path in folder.rglob("*")) == before
    compare(run_from(folder), recorded[1])


def test_rows_are_kept_where_the_processes_do_not_meet_at_the_end(recorded, tmp_path, monkeypatch):
    def gather(_group, value):
        if isinstance(value, list):  # the shares
            raise ConnectionError("gone")
        return [value]

    with monkeypatch.context() as patch:
        patch.setattr("oodlit.runs.features.recording.gather_objects", gather)
        with pytest.raises(ConnectionError, match="gone"):
            record(tmp_path)
    assert not has_cache(tmp_path)
    assert record(tmp_path) == 0
    compare(run_from(tmp_path), recorded[1])


def test_a_run_without_its_training_images_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="train_thresholds=True"):
        make_trainer(OODDetection([MSP()]), FeatureCache(tmp_path)).predict(
            make_module(), OODDataModule(make_streams()), return_predictions=False
        )
    assert not list(tmp_path.iterdir())


def test_what_is_read_from_a_cache_is_not_recorded_again(recorded, tmp_path):
    module, data = open_cache(recorded[0])
    with pytest.raises(InvalidArgumentError, match="recorded features"):
        make_trainer(FeatureCache(tmp_path)).predict(module, data, return_predictions=False)


def test_an_unknown_dtype_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="float8"):
        FeatureCache(tmp_path, dtype="float8")


def some_rows(count: int, width: int, start: int = 0) -> Rows:
    values = torch.arange(count * width, dtype=torch.float32).reshape(count, width) + start
    keys = [f"é{start + i}/\udcff{'x' * (i % 5)}" for i in range(count)]
    return Rows(values, -values, torch.arange(count), torch.full((count,), -1), keys)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_any_slice_of_any_parts_is_what_was_written(tmp_path_factory, sizes, data):
    folder, parts = tmp_path_factory.mktemp("parts"), []
    for number, size in enumerate(sizes):
        writer = PartWriter(folder, f"{number}")
        writer.add(some_rows(size, 3, 100 * number))
        writer.flush()
        parts += writer.parts
    stored = StoredRows(folder, parts)
    whole = [some_rows(size, 3, 100 * number) for number, size in enumerate(sizes)]
    keys = [key for rows in whole for key in rows.keys]
    logits = torch.cat([rows.logits for rows in whole])
    start = data.draw(st.integers(0, len(keys)))
    stop = data.draw(st.integers(start, len(keys)))
    found = stored.rows(start, stop)
    assert list(found.keys) == keys[start:stop]
    assert len(stored) == len(keys)
    if stop > start:
        assert torch.equal(found.logits, logits[start:stop])
        assert torch.equal(found.features, -logits[start:stop])
    assert [s.key for s in stored.find(keys[:2])] == keys[:2]


def test_memory_is_bounded_by_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("oodlit.recorded.store.PART_BYTES", 1000)
    writer = PartWriter(tmp_path, "a")
    for number in range(10):
        writer.add(some_rows(7, 10, 1000 * number))
        if writer.is_full:
            writer.flush()
    writer.flush()
    assert len(writer.parts) > 4
    assert sum(rows for _, rows in writer.parts) == 70
    assert list(StoredRows(tmp_path, writer.parts).rows(0, 70).keys)[7] == some_rows(7, 10, 1000).keys[0]


def test_what_float16_cannot_hold_is_refused(tmp_path):
    writer = PartWriter(tmp_path, "a", torch.float16)
    rows = Rows(torch.tensor([[1.0], [1e6]]), None, torch.zeros(2).long(), torch.zeros(2).long(), ["a", "b"])
    with pytest.raises(InvalidArgumentError, match="logits of 'b' reach 1e"):
        writer.add(rows)


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_record_and_read_together(recorded, tmp_path, processes):
    check_ended(run_together(process_script.main, processes, tmp_path, folder=tmp_path / "logs"))
    compare(run_from(tmp_path / "cache"), recorded[1])
    for name in ("recorded", "read"):
        scores = pd.read_parquet(tmp_path / name / "scores.parquet")
        for detector in ("msp", "mahalanobis", "knn"):
            assert np.allclose(scores[detector], recorded[1].scores[detector], rtol=1e-6, atol=1e-6), (name, detector)
        assert list(scores["key"]) == list(recorded[1].scores["key"])


def test_a_pool_is_kept_whole_and_may_be_split_otherwise(tmp_path):
    """The split belongs to the data: another one needs no image, and no other run of the network."""
    inside = [stream for stream in make_streams(with_train=False) if stream.role is Role.ID]
    plain = replace(make_pool(), role=Role.OOD, split=None)
    module, first, second = make_module(), severity_pool(plain, test_share=0.4), severity_pool(plain, test_share=0.5)
    recording = OODDetection([MSP(), Energy()])
    trainer = make_trainer(recording, FeatureCache(tmp_path))
    trainer.predict(module, OODDataModule([*inside, first]), return_predictions=False)
    direct = OODDetection([MSP(), Energy()])
    make_trainer(direct).predict(module, OODDataModule([*inside, second]), return_predictions=False)
    for pool, expected in ((first, recording.results), (second, direct.results)):
        data = OODDataModule([*inside, pool])
        made = run_from(tmp_path, [MSP(), Energy()], module=module, data=data)
        assert made.run.pools == expected.run.pools
        assert made.severities("pool")["ood_class"].tolist() == expected.severities("pool")["ood_class"].tolist()
        pd.testing.assert_frame_equal(made.table, expected.table, rtol=1e-6)
    with pytest.raises(InvalidArgumentError, match="data set 'pool' is a pool"):
        open_cache(tmp_path)
