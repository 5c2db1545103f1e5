"""Loggers: every one gets every value under a name that it can take, whatever happens to another."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from pytorch_lightning.loggers import CSVLogger

from oodlit import Results, Role
from oodlit.callbacks import OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import MSP, Energy
from oodlit.errors import DataError, InvalidArgumentError, LoggingError, UnknownNameError
from oodlit.runs.loggers import RunLog, figures_of, log_to_all
from tests.callbacks.support import Recorder, make_module, make_streams, make_trainer, predict, stream

pytestmark = pytest.mark.filterwarnings("ignore:.*undefined .NaN.")


class Offline(Recorder):
    """As W&B's logger without a network."""

    def log_metrics(self, metrics, step=None) -> None:
        raise ConnectionError("no route to the server")


class FullDisk(Recorder):
    """Takes the values and cannot write them."""

    def save(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_logger_that_fails_takes_nothing_from_the_others():
    loggers = [Offline(), Recorder(), FullDisk(), Recorder()]
    message = (
        r"parts of the run could not be logged: Offline \(number 1 of 4\), values: ConnectionError: no route to the"
        r" server; FullDisk \(number 3 of 4\), saving: OSError: .*No space left"
    )
    with pytest.raises(LoggingError, match=message) as caught:
        log_to_all(loggers, RunLog({"far/msp/auroc": 0.5}, {"detectors/msp/class": "MSP"}))
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert [logger.logged for logger in loggers[1:]] == [[({"far/msp/auroc": 0.5}, 0)]] * 3
    assert [logger.saved for logger in loggers] == [0, 1, 0, 1]
    # Where nobody answers, nothing further is asked.
    assert [logger.settings for logger in loggers] == [[], *[[{"detectors/msp/class": "MSP"}]] * 3]


def test_a_part_that_fails_takes_nothing_from_the_others(tmp_path):
    class Immutable(CSVLogger):
        def log_hyperparams(self, params=None) -> None:
            raise PermissionError("settings of a run cannot be changed")

    def broken() -> Image.Image:
        raise ValueError("no such font")

    def drawn() -> Image.Image:
        return Image.new("RGB", (4, 3))

    summary = pd.DataFrame([[0.5]], index=["msp"], columns=pd.MultiIndex.from_tuples([("far", "auroc")]))
    run = RunLog({"a": 1.0}, {"b": 2}, summary, figures=lambda: {"roc/far": broken, "roc/near": drawn})
    logger = Immutable(tmp_path)
    message = r"drawing roc/far: ValueError: no such font; Immutable \(number 1 of 1\), settings: PermissionError"
    with pytest.raises(LoggingError, match=message):
        log_to_all([logger], run)
    folder = Path(logger.log_dir)
    assert (folder / "summary.csv").read_text() == "detector,far/auroc\nmsp,0.5\n"
    assert pd.read_csv(folder / "metrics.csv")["a"].tolist() == [1.0]
    assert [file.name for file in (folder / "figures").rglob("*.png")] == ["near.png"]


def test_figures_are_drawn_for_loggers_that_take_them():
    def never() -> dict[str, Callable[[], Image.Image]]:
        raise AssertionError("nobody takes figures")

    log_to_all([Recorder()], RunLog({"a": 1.0}, {}, figures=never))


@pytest.mark.parametrize(
    ("chosen", "error", "message"),
    [
        ("roc", InvalidArgumentError, "log_figures to be .* a list .*, got 'roc'"),
        (["rock"], UnknownNameError, "unknown figure 'rock'; did you mean 'roc'"),
    ],
)
def test_unknown_figures_are_reported_immediately(chosen, error, message):
    with pytest.raises(error, match=message):
        OODDetection([MSP()], log_figures=chosen)


def test_figures_that_a_run_cannot_show():
    """Left out of the headline; of those that were named, it is said."""
    results = predict([MSP()], [stream("val", Role.ID, 6), stream("far", Role.OOD)]).results
    assert list(figures_of(results, True)) == ["score_histograms/far"]
    assert figures_of(results, False) == {}
    named = figures_of(results, ["roc", "unit_tests"])
    assert list(named) == ["roc/far", "unit_tests"]
    with pytest.raises(InvalidArgumentError, match="requires a set of unit tests, but the results have no such set"):
        named["unit_tests"]()


def test_names_of_figures_are_names_of_files_on_every_system(tmp_path):
    sets = [stream(name, Role.OOD) for name in ("far", "Far", "f" * 300, "f" * 299, "far..", "..")]
    results = predict([MSP()], [stream("val", Role.ID, 6), *sets], trainer={"logger": CSVLogger(tmp_path)}).results
    names = list(figures_of(results, True))
    assert len({name.casefold() for name in names}) == len(sets)
    assert all(len(name) < 130 and name.count("/") == 1 for name in names)
    assert len(list(tmp_path.rglob("figures/score_histograms/*.png"))) == len(sets)


def test_a_logger_that_changes_the_values_changes_its_own():
    class Greedy(Recorder):
        def log_metrics(self, metrics, step=None) -> None:
            super().log_metrics(metrics, step)
            metrics.clear()

    loggers = [Greedy(), Recorder()]
    log_to_all(loggers, RunLog({"a": 1.0}, {}))
    assert loggers[0].logged == loggers[1].logged == [({"a": 1.0}, 0)]


def test_an_interrupt_is_no_failed_logger():
    class Waiting(Recorder):
        def log_metrics(self, metrics, step=None) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log_to_all([Waiting()], RunLog({"a": 1.0}, {}))


def test_a_run_keeps_its_results_its_page_and_its_other_loggers(tmp_path):
    """Every logger gets every value, also if the first one is broken."""
    recorder = Recorder()
    detection = OODDetection([MSP()], output_dir=tmp_path)
    trainer, module = make_trainer(detection, logger=[Offline(), recorder]), make_module()
    data = OODDataModule(make_streams(with_train=False))
    before = module.transform, data.transform
    with pytest.raises(LoggingError, match=r"logged: Offline \(number 1 of 2\), values: ConnectionError"):
        trainer.predict(module, data, return_predictions=False)
    ((logged, _),) = recorder.logged
    assert (
        logged.keys() == Results.load(tmp_path).metrics_by_name().keys() == detection.results.metrics_by_name().keys()
    )
    assert (tmp_path / "report.html").is_file()
    assert (module.transform, data.transform) == before


def test_a_broken_logger_hides_no_broken_page(tmp_path, monkeypatch):
    def no_page(*_, **__):
        raise DataError("the images are gone")

    detection = OODDetection([MSP()], output_dir=tmp_path)
    monkeypatch.setattr("oodlit.callbacks.detection.write_report", no_page)
    trainer = make_trainer(detection, logger=[Offline()])
    with pytest.raises(DataError, match="images are gone") as caught:
        trainer.predict(make_module(), OODDataModule(make_streams(with_train=False)), return_predictions=False)
    assert isinstance(caught.value.__context__, LoggingError)


def test_names_with_blanks_colons_and_slashes_reach_every_logger(tmp_path):
    """One naming scheme, NaN included, in one call."""
    recorder = Recorder()
    streams = [stream("val: 1", Role.ID, 6), stream("far off", Role.OOD, names=("a/b", "c: d"), group=0)]
    trainer = {"logger": [CSVLogger(tmp_path, name="csv"), recorder]}
    results = predict({"my knn: k=3/x": MSP(), "b|c*?": Energy()}, streams, trainer=trainer).results
    ((logged, step),) = recorder.logged
    assert step == 0
    assert recorder.saved >= 1
    assert len(logged) == len(results.table)
    assert logged.keys() == results.metrics_by_name().keys()
    assert "far_off/my_knn_k_3_x/fpr95/a_b" in logged
    assert np.isnan(logged["far_off/my_knn_k_3_x/fpr95/c_d"])
    written = pd.read_csv(next(Path(tmp_path).rglob("metrics.csv")))
    assert len(written) == 1
    assert set(logged) <= set(written.columns)
