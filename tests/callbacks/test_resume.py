"""A run that was killed goes on where it was, and ends as if nothing had happened."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oodlit import Results
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.thinning import thinned
from oodlit.detectors import KNN, MSP, Mahalanobis, ReAct, RelativeMahalanobis
from oodlit.errors import DataError, RunIsCompleteError
from oodlit.results.files.storage import read_parquet
from oodlit.results.files.unfinished import write_part
from oodlit.runs.journal import Journal, Kept, Progress
from tests.callbacks.processes import check_ended, run_together
from tests.callbacks.support import make_module, make_streams, make_trainer

pytestmark = pytest.mark.integration

BATCHES = {"train": 38, "val": 8, "far": 8, "tests": 2, "shifted": 3}
"""Of 4 images each."""


def some_detectors() -> list:
    return [MSP(), Mahalanobis(), RelativeMahalanobis(), KNN(k=5), ReAct()]


class KillAt:
    """Counts forward passes of a network, and ends the run at one of them."""

    def __init__(self, number: int | None) -> None:
        self.number, self.seen = number, 0

    def __call__(self, module, inputs) -> None:
        self.seen += 1
        if self.seen == self.number:
            raise DataError("killed")


def run(out: Path, *, kill_at: int | None = None, resume: bool = True, every: float = 0.0, **options):
    """One start of the run: its results, and the number of forward passes after the probe."""
    module, counter = make_module(), KillAt(None)
    detectors = options.pop("detectors", None) or some_detectors()
    detection = OODDetection(detectors, output_dir=out, resume=resume, keep_every_s=every, num_thumbnails=0)
    data = OODDataModule(options.pop("streams", None) or make_streams(), **({"batch_size": 4} | options))

    original = module.predict_step

    def predict_step(*arguments, **named):
        counter(None, None)
        return original(*arguments, **named)

    module.predict_step = predict_step
    counter.number = kill_at
    if kill_at is None:
        make_trainer(detection).predict(module, data, return_predictions=False)
    else:
        with pytest.raises(DataError, match="killed"):
            make_trainer(detection).predict(module, data, return_predictions=False)
    return detection.results, counter.seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    run(out)
    return Results.load(out)


def check_same(results: Results, whole: Results, *, tolerance: float = 0.0) -> None:
    pd.testing.assert_frame_equal(results.scores, whole.scores, rtol=tolerance, atol=tolerance)
    pd.testing.assert_frame_equal(results.table, whole.table, rtol=tolerance, atol=tolerance)
    for entry in ("datasets", "detectors", "settings", "counts", "fit_notes", "skipped"):
        assert getattr(results.run, entry) == getattr(whole.run, entry), entry
    assert results.run.data.train_images == whole.run.data.train_images
    assert results.run.backbone.one_shape == whole.run.backbone.one_shape


@given(kill_at=st.integers(1, sum(BATCHES.values())))
@settings(max_examples=3, phases=(Phase.generate,), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_killed_anywhere_it_ends_the_same(whole, tmp_path_factory, kill_at):
    out = tmp_path_factory.mktemp("killed")
    run(out, kill_at=kill_at)
    results, passes = run(out)
    check_same(Results.load(out), whole)
    check_same(results, whole)
    assert passes <= sum(BATCHES.values()) - kill_at + 1 + (BATCHES["shifted"] if kill_at > 56 else 0)
    assert not (out / ".progress").exists()
    assert not (out / "unfinished").exists()


def test_workers_go_on_where_they_were(whole, tmp_path):
    run(tmp_path, kill_at=20, num_workers=2)
    results, passes = run(tmp_path, num_workers=2)
    check_same(results, whole, tolerance=1e-6)  # other batches round otherwise
    assert passes <= sum(BATCHES.values()) - 20 + 1 + 5  # and each worker ends with a batch of its own


def test_killed_again_and_again(whole, tmp_path):
    passes = 0
    for kill_at in (3, 37, 9):
        _, seen = run(tmp_path, kill_at=kill_at)
        passes += seen - 1
    results, seen = run(tmp_path)
    check_same(results, whole)
    assert passes + seen == sum(BATCHES.values())


def test_what_was_not_written_in_time_is_read_again(whole, tmp_path):
    run(tmp_path, kill_at=45, every=1000.0)  # within the ID stream
    results, seen = run(tmp_path, every=1000.0)
    check_same(results, whole)
    assert seen == sum(BATCHES.values()) - BATCHES["train"]


def test_without_resume_everything_is_read_again(whole, tmp_path):
    run(tmp_path, kill_at=50)
    results, seen = run(tmp_path, resume=False)
    check_same(results, whole)
    assert seen == sum(BATCHES.values())


@pytest.mark.parametrize(
    "change",
    [{"detectors": [MSP(), Mahalanobis()]}, {"streams": make_streams(num_ood=20)}, {"on_error": "skip"}],
    ids=["detectors", "data", "policy"],
)
def test_another_run_starts_from_scratch(tmp_path, change):
    run(tmp_path, kill_at=50)
    _, seen = run(tmp_path, **change)
    assert seen > sum(BATCHES.values()) - 5


@pytest.mark.parametrize("change", [{"batch_size": 8}, {"num_workers": 2}], ids=["batches", "workers"])
def test_streams_that_were_over_are_kept_if_they_are_cut_otherwise(whole, tmp_path, change):
    run(tmp_path, kill_at=50)  # within the OOD stream
    results, seen = run(tmp_path, **change)
    pd.testing.assert_frame_equal(results.scores, whole.scores, rtol=1e-5)
    left = sum(BATCHES[name] for name in ("far", "tests", "shifted"))
    assert seen <= left + 3  # workers end with partial batches of their own


def test_a_finished_run_is_not_repeated(whole, tmp_path):
    run(tmp_path)
    with pytest.raises(RunIsCompleteError, match="already complete"):
        run(tmp_path)
    check_same(Results.load(tmp_path), whole)
    run(tmp_path, resume=False)
    _, seen = run(tmp_path, detectors=[MSP()])
    assert seen


@pytest.mark.parametrize("change", [{"tpr": 0.9}, {"rule": "interpolated"}, {"unit_test_limit": 0.2}])
def test_a_finished_run_is_no_other_one_where_its_metrics_are_computed_otherwise(tmp_path, change):
    """Its table would be printed as that of the settings that are asked for."""
    data = OODDataModule(make_streams(with_train=False))
    for how in ({}, change):
        detection = OODDetection([MSP()], output_dir=tmp_path, resume=True, num_thumbnails=0, **how)
        make_trainer(detection).predict(make_module(), data, return_predictions=False)
    assert {name: getattr(Results.load(tmp_path).run.settings, name) for name in change} == change
    detection = OODDetection([MSP()], output_dir=tmp_path, resume=True, num_thumbnails=0, **change)
    with pytest.raises(RunIsCompleteError):
        make_trainer(detection).predict(make_module(), data, return_predictions=False)


def test_a_detector_that_failed_before_stays_out(tmp_path):
    def broken() -> list:
        return [MSP(), FailsOnce()]

    FailsOnce.calls = 0
    run(tmp_path, kill_at=12, detectors=broken())  # no training images are read
    results, _ = run(tmp_path, detectors=broken())
    assert results.detectors == ("msp",)
    assert "failed on 'val'" in results.run.not_applicable["fails_once"]


class FailsOnce(MSP):
    """Fails on its first batch alone."""

    calls = 0

    def _score(self, outputs):
        FailsOnce.calls += 1
        if FailsOnce.calls == 1:
            raise ValueError("once")
        return super()._score(outputs)


def test_damaged_progress_is_named(tmp_path):
    run(tmp_path, kill_at=20)
    (file,) = (tmp_path / ".progress").glob("*.pt")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=r"\.pt is damaged .*start over with resume=False"):
        run(tmp_path)
    _, seen = run(tmp_path, resume=False)
    assert seen == sum(BATCHES.values())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_a_flipped_bit_of_progress_is_noticed(tmp_path, place, bit):
    journal, values = Journal(tmp_path, ".pt"), torch.arange(200, dtype=torch.float64).sin()
    journal.write("far", 0, {"rows": values})
    (file,) = journal.files()
    data = bytearray(file.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    file.write_bytes(data)
    try:
        read = journal.read(file)["rows"]
    except DataError as error:
        assert "damaged" in str(error)  # noqa: PT017
    else:  # the flipped bit is not part of the content
        assert torch.equal(read, values)


def test_progress_of_earlier_versions_has_no_checksum(tmp_path):
    journal, (file,) = Journal(tmp_path, ".pt"), [tmp_path / ".progress" / "a-0000.pt"]
    file.parent.mkdir()
    torch.save({"rows": torch.ones(3)}, file)
    assert journal.read(file)["rows"].tolist() == [1, 1, 1]


def test_a_flipped_bit_of_finished_streams_is_noticed(tmp_path):
    (tmp_path / "scores").mkdir()
    scores = pd.DataFrame({"msp": np.random.default_rng(0).normal(size=400)})
    write_part(tmp_path, 0, 0, scores)
    (file,) = (tmp_path / "scores").iterdir()
    whole = file.read_bytes()
    for place in range(100, len(whole) * 3 // 4, 97):  # of the values
        data = bytearray(whole)
        data[place] ^= 4
        file.write_bytes(data)
        with pytest.raises(DataError, match="cannot be read as Parquet"):
            read_parquet(file)


def test_a_damaged_fit_is_rebuilt(whole, tmp_path):
    run(tmp_path, kill_at=50)
    tensors = tmp_path / "unfinished" / "fitted" / "detectors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:100])
    results, seen = run(tmp_path)
    check_same(results, whole)
    assert seen == sum(BATCHES.values())


@given(
    total=st.integers(1, 40),
    batch_size=st.integers(1, 7),
    workers=st.integers(1, 4),
    world_size=st.integers(1, 3),
    data=st.data(),
)
def test_a_stream_resumes_where_it_was(total, batch_size, workers, world_size, data):
    stream = next(s for s in make_streams() if s.name == "val")
    stream = thinned(stream, min(total, len(stream)))
    rank = data.draw(st.integers(0, world_size - 1))
    whole = StreamLoader(stream, batch_size=batch_size, rank=rank, world_size=world_size)
    ranges = whole._batches.ranges(workers)
    batches = [len(range(0, len(part), batch_size)) for part in ranges]
    start = data.draw(st.integers(0, sum(batches)))
    rest = StreamLoader(stream, batch_size=batch_size, rank=rank, world_size=world_size, start=start)
    left = rest._batches.ranges(workers)
    assert sum(len(range(0, len(part), batch_size)) for part in left) == sum(batches) - start
    # PyTorch takes the workers in turns, and passes over those that have no more.
    turns = sorted((turn, worker) for worker, count in enumerate(batches) for turn in range(count))
    before = [[worker for _, worker in turns[:start]].count(worker) for worker in range(workers)]
    assert left == [part[n * batch_size :] for part, n in zip(ranges, before, strict=True)]


def test_two_processes_resume_where_they_were(whole, tmp_path):
    from tests.callbacks import resume_script  # it takes detectors from here

    processes, kill_at = 2, 48
    killed = run_together(resume_script.main, processes, tmp_path / "out", kill_at, folder=tmp_path / "logs")
    assert all(one.code != 0 for one in killed)
    assert any(one.code == -signal.SIGKILL for one in killed)
    ended = run_together(resume_script.main, processes, tmp_path / "out", 0, folder=tmp_path / "logs")
    check_ended(ended)
    done = ended[0]
    passes = int(done.stdout.split("passes ")[-1].split()[0])
    check_same(Results.load(tmp_path / "out"), whole, tolerance=1e-6)
    assert passes <= sum(BATCHES.values()) - kill_at + 2 * processes
    assert "resuming after" in done.stderr
    found = re.search(r"continuing with image (\d+) of (\d+) in (\w+)", done.stderr)
    if found is None:  # both processes were killed between two data sets
        assert f"{BATCHES['val'] // processes} batches of val" in done.stderr
    else:
        number, total, name = found.groups()
        assert int(total) <= 4 * BATCHES[name]
        assert 1 < int(number) <= int(total)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["resumed"]


def start(folder: Path, *, secret: str = "hunter2", streams: dict | None = None) -> dict:
    key = {"detectors": {"own": {"arguments": {"api_key": secret, "k": 5}}}, "streams": streams or {}}
    progress = Progress(folder, key=key, cut={"processes": 1}, process=0, every_s=0)
    found = progress.start(None, resume=True)
    if not found:
        progress.keep("val", Kept(3, False, {}))
    return found


def test_the_progress_of_a_run_keeps_no_secrets_and_still_distinguishes_them(tmp_path):
    assert start(tmp_path) == {}
    assert "hunter2" not in (tmp_path / ".progress" / "run.json").read_text()
    assert start(tmp_path)["val"].batches == 3
    assert start(tmp_path, secret="hunter3") == {}


@pytest.mark.parametrize("name", ["token", "license_key", "val"])
def test_data_sets_with_names_of_secrets_are_compared(tmp_path, name):
    assert start(tmp_path, streams={name: {"content": "a1"}}) == {}
    assert start(tmp_path, streams={name: {"content": "a1"}}) != {}
    assert start(tmp_path, streams={name: {"content": "b2"}}) == {}


def test_the_progress_of_an_earlier_version_is_resumed(tmp_path):
    start(tmp_path)
    key = {"detectors": {"own": {"arguments": {"api_key": "hunter2", "k": 5}}}, "streams": {}}
    (tmp_path / ".progress" / "run.json").write_text(json.dumps({"key": key, "cut": {"processes": 1}}))
    assert start(tmp_path)["val"].batches == 3
