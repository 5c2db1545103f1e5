"""The folder of a run: where it lies, what is replaced in it and what is kept."""

import errno
import json
import os
from pathlib import Path

import pytest
import pytorch_lightning as pl

from oodlit import Results
from oodlit.callbacks import OODDetection, detection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import KNN, MSP, Mahalanobis, TrainFreeDetector, load
from oodlit.detectors.contract.reference import Reference
from oodlit.results.files import storage
from oodlit.results.record_parts import DetectorOverview
from oodlit.runs import folder
from tests.callbacks.support import make_module, make_streams, make_trainer, run

pytestmark = pytest.mark.filterwarnings("ignore:.*undefined .NaN.")


def test_relative_folder_stays_where_it_was_named(tmp_path, monkeypatch):
    class Leave(pl.Callback):
        def on_predict_start(self, *_):
            (tmp_path / "elsewhere").mkdir()
            os.chdir(tmp_path / "elsewhere")

    monkeypatch.chdir(tmp_path)
    detection = OODDetection([MSP()], output_dir="Ergebnisse ü: 1/x", num_thumbnails=0)
    data = OODDataModule(make_streams(with_train=False))
    make_trainer(detection, Leave()).predict(make_module(), data, return_predictions=False)
    assert Results.load(tmp_path / "Ergebnisse ü: 1" / "x").detectors == ("msp",)


def test_nothing_of_an_earlier_run_is_left_in_the_folder(tmp_path):
    run([MSP(), Mahalanobis()], output_dir=tmp_path / "first", num_thumbnails=3)
    run([MSP(), Mahalanobis()], output_dir=tmp_path / "out", num_thumbnails=3)
    assert (tmp_path / "out" / "thumbnails").is_dir()
    (tmp_path / "out" / "mine.txt").write_text("kept")
    saved = {"fitted": tmp_path / "first" / "fitted", "streams": make_streams(with_train=False)}
    run(None, output_dir=tmp_path / "out", num_thumbnails=0, **saved)
    left = {str(f.relative_to(tmp_path / "out")) for f in (tmp_path / "out").rglob("*") if f.is_file()}
    assert left == {"table.csv", "scores.parquet", "run.json", "report.html", "mine.txt"}


def test_a_saved_fit_in_the_folder_of_the_run_is_kept(tmp_path):
    run([Mahalanobis()], output_dir=tmp_path, num_thumbnails=0)
    saved = {"fitted": tmp_path / "fitted", "streams": make_streams(with_train=False)}
    run(None, output_dir=tmp_path, num_thumbnails=0, **saved)
    assert (tmp_path / "fitted" / "detectors.json").is_file()


def test_a_run_saves_once_and_draws_once(tmp_path, monkeypatch):
    """One save, one page; what a caller knows of the run is in the record from the start."""
    calls = []
    for owner, name in ((storage, "write"), (detection, "write_report"), (folder, "save")):
        original = getattr(owner, name)

        def counted(*args, original=original, name=name, **options):
            calls.append(name)
            return original(*args, **options)

        monkeypatch.setattr(owner, name, counted)
    options = {"output_dir": tmp_path / "out", "record": lambda: {"config": "a: 1", "not_applicable": {"x": "why"}}}
    results = run([MSP(), Mahalanobis()], **options).results
    assert sorted(calls) == ["save", "write", "write_report"]
    kept = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (kept["config"], kept["not_applicable"]) == ("a: 1", {"x": "why"})
    assert kept["time"] == results.run.entries()["time"]


def test_the_same_run_twice_gives_the_same_files(tmp_path):
    contents = []
    for _ in range(2):
        run([MSP(), Mahalanobis(), KNN(k=3)], output_dir=tmp_path)
        files = [f for f in tmp_path.rglob("*") if f.is_file() and f.name not in ("run.json", "report.html")]
        contents.append({str(f): f.read_bytes() for f in files})
    assert contents[0] == contents[1]


def test_papers_are_part_of_the_record():
    record = run([Mine(), MSP()], streams=make_streams(with_train=False)).results.run
    assert record.references["mine"].title == "mine"
    assert record.references["msp"].year == 2017
    assert record.overview["mine"] == DetectorOverview("logits", is_fitted=False, cost="closed form", tuned="")


class Mine(TrainFreeDetector):
    """A detector of somebody's own."""

    needs = frozenset({"logits"})
    reference = Reference("mine", "me", "nowhere", 2026, "https://example.org/mine")

    def _score(self, outputs):
        return outputs.max_logits


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSYS])
def test_a_folder_on_an_object_store_is_written_replaced_and_resumed(tmp_path, monkeypatch, code):
    """Mounted object stores rename files but not folders, which some report as too many open files."""
    rename = os.rename

    def refuse(source, target):
        if Path(source).is_dir():
            raise OSError(code, os.strerror(code), str(source))
        rename(source, target)

    class Stop(pl.Callback):
        def on_predict_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
            if dataloader_idx > 1:
                raise ZeroDivisionError

    monkeypatch.setattr(os, "rename", refuse)
    out, detectors = tmp_path / "out", [MSP(), Mahalanobis()]
    run([MSP()], output_dir=out, num_thumbnails=2)
    data, options = OODDataModule(make_streams(), batch_size=16), {"output_dir": out, "resume": True}
    detection = OODDetection(detectors, keep_every_s=0, **options)
    with pytest.raises(ZeroDivisionError):
        make_trainer(detection, Stop()).predict(make_module(), data, return_predictions=False)
    assert sorted(load(out / "unfinished" / "fitted")[0]) == ["mahalanobis", "msp"]
    results = run(detectors, num_thumbnails=2, **options).results
    assert "the fit" in results.run.resumed
    assert Results.load(out).scores.equals(results.scores)
    assert sorted(load(out / "fitted")[0]) == ["mahalanobis", "msp"]
    names = {"table.csv", "scores.parquet", "run.json", "report.html", "fitted", "thumbnails"}
    assert {path.name for path in out.iterdir()} == names
