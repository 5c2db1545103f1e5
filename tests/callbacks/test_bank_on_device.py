"""A run places large buffers once, after the fit or with an earlier one, and says where they are."""

import logging

import pytest
import torch

from oodlit import Results
from oodlit.detectors import KNN, MSP, Detector, NNGuide
from oodlit.detectors.contract import placement
from oodlit.runs import scored as run_of_callbacks
from tests.callbacks.support import make_streams, run


@pytest.fixture
def placed(monkeypatch):
    """Copies on the CPU in place of those on a GPU; gives what was asked for."""
    asked = []

    def place_large(detectors, device):
        asked.append((list(detectors), device, all(detector.is_fitted for detector in detectors.values())))
        for _, places in placement._large(detectors, torch.device("meta")):
            placement._move(places, device)
        return "on cuda:0 lie rows"

    monkeypatch.setattr(run_of_callbacks, "place_large", place_large)
    return asked


def kinds():
    return {"msp": MSP(), "near": KNN(k=3), "far": KNN(k=9), "guide": NNGuide(k=3)}


def test_a_run_places_what_was_fitted_and_one_of_an_earlier_fit_what_was_loaded(placed, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    made = kinds()
    first = run(made, streams=make_streams(), output_dir=tmp_path / "first").results
    assert placed == [([*made], torch.device("cpu"), True)]
    assert made["near"].bank.data_ptr() == made["far"].bank.data_ptr()
    assert Results.load(tmp_path / "first").run.bank == "on cuda:0 lie rows"
    assert "oodlit: on cuda:0 lie rows" in caplog.text
    streams = make_streams(with_train=False)
    again = run(None, streams=streams, fitted=tmp_path / "first" / "fitted").results
    assert len(placed) == 2
    assert placed[1] == placed[0]
    assert again.run.bank == "on cuda:0 lie rows"
    tests = first.scores[first.scores["dataset"] != "train"].reset_index(drop=True)
    for name in made:
        assert again.scores[name].tolist() == tests[name].tolist(), name


def test_scores_and_record_are_those_of_a_run_that_places_nothing(placed):
    copied = run(kinds(), streams=make_streams()).results
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_of_callbacks, "place_large", placement.place_large)
        plain = run(kinds(), streams=make_streams()).results
    assert plain.run.bank == ""
    assert copied.scores.equals(plain.scores)
    assert copied.table.equals(plain.table)


class Broken(Detector):
    needs, statistics, reference = KNN.needs, KNN.statistics, KNN.reference

    def _fit(self, statistics, head):
        raise ValueError("no fit")

    def _score(self, outputs):
        raise AssertionError


def test_a_detector_whose_fit_failed_has_no_place(placed):
    run({"msp": MSP(), "broken": Broken(), "near": KNN(k=3)}, streams=make_streams())
    assert placed[0][0] == ["msp", "near"]
