"""Nothing that was computed is lost when a run is interrupted or fails."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from oodlit import Results, Role
from oodlit.callbacks import OODDetection, detection
from oodlit.datamodules.stream import Stream
from oodlit.detectors import ASH, KNN, MSP, ODIN, PRO, Energy, Mahalanobis, Reference, TrainFreeDetector, load
from oodlit.errors import DataError, InvalidArgumentError
from oodlit.results import UnfinishedRunWarning
from oodlit.runs.folder import lock_folder
from tests.callbacks import full_disk_script
from tests.callbacks.processes import check_ended, run_function
from tests.callbacks.support import make_streams, run

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore:.*undefined .NaN.")]


class BrokenLate:
    """A source whose last image cannot be read, which nobody knows before."""

    def __init__(self, source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def read(self, start, stop):
        for number, sample in enumerate(self.source.read(start, stop), start=start):
            if number == len(self) - 1:
                raise DataError("the disk is gone")
            yield sample


def streams_broken_in(name: str) -> list[Stream]:
    return [
        Stream(s.name, s.role, BrokenLate(s.source) if s.name == name else s.source, s.class_names)
        for s in make_streams()
    ]


def test_a_late_error_of_a_reader_keeps_the_fit_and_every_finished_stream(tmp_path):
    with pytest.raises(DataError, match="the disk is gone") as caught:
        run([MSP(), Mahalanobis()], streams=streams_broken_in("tests"), output_dir=tmp_path)
    assert "read finished data sets with Results.load" in caught.value.__notes__[0]
    whole = run([MSP(), Mahalanobis()]).results
    with pytest.warns(UnfinishedRunWarning, match="finished data sets: train, val, far; missing: tests, shifted"):
        results = Results.load(tmp_path)
    assert results.run.unfinished.missing == ["tests", "shifted"]
    for name in ("msp", "mahalanobis"):
        for metric in ("mean_fpr95", "mean_auroc", "pooled_der95"):
            place = {"dataset": "far", "detector": name}
            assert results.value(metric, **place) == whole.value(metric, **place)
    assert set(load(tmp_path / "unfinished" / "fitted")[0]) == {"msp", "mahalanobis"}


def test_detectors_that_score_no_training_images_are_among_the_results_of_a_broken_run(tmp_path):
    def every():
        return [MSP(), Mahalanobis(), KNN(k=3), PRO(), ODIN()]

    with pytest.raises(DataError, match="the disk is gone"):
        run(every(), streams=streams_broken_in("tests"), output_dir=tmp_path)
    whole = run(every()).results
    with pytest.warns(UnfinishedRunWarning):
        results = Results.load(tmp_path)
    assert results.detectors == whole.detectors == ("msp", "mahalanobis", "knn", "pro", "odin")
    finished = whole.scores[whole.scores["dataset"].isin(["train", "val", "far"])].reset_index(drop=True)
    assert finished[finished["dataset"] == "train"]["odin"].isna().all()
    pd.testing.assert_frame_equal(results.scores, finished, check_dtype=False)
    assert results.findings[0].kind == "unfinished"
    assert results.findings[0].text.startswith("the run was interrupted; missing data sets: tests, shifted")
    assert results.recompute(tpr=0.9).findings[0] == results.findings[0]


def test_a_detector_that_failed_in_a_broken_run_is_named(tmp_path):
    with pytest.raises(DataError, match="the disk is gone"):
        run({"bad": FailsOn("far/0029"), "msp": MSP()}, streams=streams_broken_in("tests"), output_dir=tmp_path)
    with pytest.warns(UnfinishedRunWarning):
        results = Results.load(tmp_path)
    assert results.detectors == ("msp",)
    assert results.run.not_applicable["bad"] == "has no scores of far; the run ended before the reason was recorded"


def test_a_reader_that_fails_in_the_first_test_stream_leaves_the_fit(tmp_path):
    with pytest.raises(DataError, match="the disk is gone"):
        run([Mahalanobis()], streams=streams_broken_in("val"), output_dir=tmp_path)
    about = r"\. Nothing can be evaluated yet, because the ID set is not complete \(finished data sets: train\)"
    with pytest.raises(DataError, match=f"the run was interrupted{about}"):
        Results.load(tmp_path)
    with lock_folder(tmp_path), pytest.raises(DataError, match=f"the run is still running{about}"):
        Results.load(tmp_path)
    again = run(None, fitted=tmp_path / "unfinished" / "fitted", streams=make_streams(with_train=False))
    assert again.results.detectors == ("mahalanobis",)


def test_an_error_in_training_leaves_nothing_that_looks_like_results(tmp_path):
    with pytest.raises(DataError, match="the disk is gone"):
        run([Mahalanobis()], streams=streams_broken_in("train"), output_dir=tmp_path)
    with pytest.raises(DataError, match="incomplete results"):
        Results.load(tmp_path)


class FailsOn(TrainFreeDetector):
    """Fails on one batch, as ASH does on a negative feature that the probe did not show."""

    needs = frozenset({"logits"})
    reference = Reference("t", "a", "v", 2024, "https://example.org")

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key_to_fail_on = key

    @property
    def settings(self):
        return {"key": self.key_to_fail_on}

    def _score(self, outputs):
        if self.key_to_fail_on in outputs.keys:
            raise InvalidArgumentError("one image has negative features")
        return outputs.max_logits.clone()


@pytest.mark.parametrize("key", ["val/0001", "far/0029", "shifted/0011"])
def test_a_detector_that_fails_on_one_image_is_left_out_and_named(key, tmp_path):
    results = run({"bad": FailsOn(key), "msp": MSP(), "knn": KNN(k=3)}, output_dir=tmp_path).results
    assert results.detectors == ("msp", "knn")
    reason = results.run.not_applicable["bad"]
    assert "negative features" in reason
    assert key.partition("/")[0] in reason
    assert len(results.scores) == 230
    assert Results.load(tmp_path).run.not_applicable["bad"] == reason
    assert set(load(tmp_path / "fitted")[0]) >= {"msp", "knn"}


def test_a_detector_whose_fit_fails_is_left_out_and_the_others_are_fitted():
    class Singular(Mahalanobis.__mro__[1]):  # a Detector
        needs = frozenset({"features"})
        statistics = Mahalanobis.statistics
        reference = Mahalanobis.reference

        def _fit(self, statistics, head):
            raise torch.linalg.LinAlgError("did not converge")

        def _score(self, outputs):
            return outputs.require("features").sum(dim=1)

    results = run({"singular": Singular(), "mahalanobis": Mahalanobis()}).results
    assert results.detectors == ("mahalanobis",)
    assert "did not converge" in results.run.not_applicable["singular"]


def test_if_no_detector_is_left_the_first_error_ends_the_run():
    with pytest.raises(InvalidArgumentError, match="negative features"):
        run({"bad": FailsOn("val/0001")})


@pytest.mark.parametrize("name", ["label", "key", "group", "dataset", "prediction", "n", "model", "", " ", "a\nb"])
def test_names_that_results_cannot_hold_are_refused_in_the_constructor(name):
    with pytest.raises(InvalidArgumentError, match="name"):
        OODDetection({name: MSP()})


def test_a_name_must_be_text():
    with pytest.raises((InvalidArgumentError, TypeError), match=r"name|type"):
        OODDetection({3: MSP()})


def test_old_results_stay_whole_until_the_new_ones_are(tmp_path):
    run([Energy()], output_dir=tmp_path)
    before = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(DataError, match="the disk is gone"):
        run([MSP(), Mahalanobis()], streams=streams_broken_in("tests"), output_dir=tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    with pytest.warns(UnfinishedRunWarning, match="a newer run was interrupted"):
        assert Results.load(tmp_path).detectors == ("energy",)
    with pytest.warns(UnfinishedRunWarning, match="missing: tests, shifted"):
        assert Results.load(tmp_path / "unfinished").detectors == ("msp", "mahalanobis")
    run([MSP()], output_dir=tmp_path)
    assert Results.load(tmp_path).detectors == ("msp",)
    assert not (tmp_path / "unfinished").exists()


def test_if_drawing_fails_there_is_no_old_page_beside_new_results(tmp_path, monkeypatch):
    run([Energy(), MSP()], output_dir=tmp_path)

    def no_page(*_, **__):
        raise ValueError("no ink")

    monkeypatch.setattr(detection, "write_report", no_page)
    with pytest.raises(ValueError, match="no ink"):
        run([MSP()], output_dir=tmp_path)
    assert Results.load(tmp_path).detectors == ("msp",)
    assert not (tmp_path / "report.html").exists()
    assert set(load(tmp_path / "fitted")[0]) == {"msp"}


@pytest.mark.ddp
def test_a_full_disk_leaves_the_old_results_or_the_new_ones(tmp_path):
    done = run_function(full_disk_script.main, tmp_path / "runs", folder=tmp_path / "logs", each=[{}], timeout=300)
    check_ended(done)
    told = json.loads((tmp_path / "runs" / "told.json").read_text())
    assert len(told) == 10
    for line in told:
        if line["ended"] == "done":
            assert line["left"] == "vim", line
        elif line["left"] == "vim":  # the numbers fitted on the disk, the page did not
            assert not line["old_page"], line
        else:
            assert line["left"] in ("msp", "msp and a run that broke off"), line
            assert line["old_page"], line
    assert {line["ended"] for line in told} == {"OSError", "done"}
    assert any("broke off" in line["left"] for line in told)


def test_results_say_what_each_detector_costs(tmp_path):
    results = run([MSP(), KNN(k=3), ASH()], output_dir=tmp_path).results
    assert set(results.run.ms_per_image) == {"msp", "knn", "ash"}
    assert all(value > 0 for value in results.run.ms_per_image.values())


def test_parts_of_the_time_are_named_for_what_they_are():
    with_train = run([Mahalanobis()]).results.run.time
    without = run([MSP()], streams=make_streams(with_train=False)).results.run.time
    assert {"statistics", "fit"} < set(with_train.mean)
    assert set(with_train.fit) == {"mahalanobis"}
    assert "statistics" not in without.mean
    assert all(Role(stream.role) for stream in make_streams())
