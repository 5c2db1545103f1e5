"""Settings that a fit chooses are notes, which the footnote of a table shows."""

import logging

import pytest

from oodlit.detectors import NAC, NECO, ActSub, CoRP, Detector, Residual, ViM, fit

from .support import small_problem

CHOSEN = {
    ViM: {"dim": "8, chosen for 16 features"},
    Residual: {"dim": "8, chosen for 16 features"},
    NECO: {"dim": ", chosen for 70 % of the variance"},
    ActSub: {"dim": "a rest of similar norm (16 features)", "bank_size": "60, chosen for 60 training images"},
    CoRP: {"size": ", chosen for 16 features"},
    NAC: {"steepness": ", chosen for contributions to the prediction (feature times gradient) with root mean square "},
}


def fitted(detector: Detector) -> Detector:
    train, head = small_problem(n=60, width=16)
    fit([detector], [train], head)
    return detector


@pytest.mark.parametrize("kind", CHOSEN, ids=lambda kind: kind.__name__)
def test_a_setting_that_is_none_is_noted_without_a_warning(
    kind: type[Detector], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    detector = fitted(kind())
    for name, end in CHOSEN[kind].items():
        [note] = [note for note in detector.notes if note.startswith(f"{name}=")]
        assert end in note
        assert not any(note in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("detector", [ViM(dim=3), Residual(dim=3), NECO(dim=3), NAC(steepness=2.0)], ids=repr)
def test_a_given_setting_is_not_noted(detector: Detector) -> None:
    assert not any("chosen for" in note for note in fitted(detector).notes)
