"""Loggers: every one gets every value under a name that it can take, whatever happens to another."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from oodlit import Results, Role
from oodlit.callbacks import OODDetection, output
from oodlit.callbacks.loggers import log_to_all
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import MSP, Energy
from oodlit.errors import DataError, LoggingError
from tests.callbacks.support import Recorder, make_module, make_streams, make_trainer, predict, stream

pytestmark = pytest.mark.filterwarnings("ignore:.*values are undefined")


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
        r"2 of 4 loggers could not take the metrics - Offline \(number 1 of 4\): ConnectionError: no route to the"
        r" server; FullDisk \(number 3 of 4\): OSError: .*No space left"
    )
    with pytest.raises(LoggingError, match=message) as caught:
        log_to_all(loggers, {"far/msp/auroc": 0.5})
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert [logger.logged for logger in loggers[1:]] == [[({"far/msp/auroc": 0.5}, 0)]] * 3
    assert [logger.saved for logger in loggers] == [0, 1, 0, 1]


def test_a_logger_that_changes_the_values_changes_its_own():
    class Greedy(Recorder):
        def log_metrics(self, metrics, step=None) -> None:
            super().log_metrics(metrics, step)
            metrics.clear()

    loggers = [Greedy(), Recorder()]
    log_to_all(loggers, {"a": 1.0})
    assert loggers[0].logged == loggers[1].logged == [({"a": 1.0}, 0)]


def test_an_interrupt_is_no_failed_logger():
    class Waiting(Recorder):
        def log_metrics(self, metrics, step=None) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log_to_all([Waiting()], {"a": 1.0})


def test_a_run_keeps_its_results_its_page_and_its_other_loggers(tmp_path):
    """FAULTS: several back-ends: every logger gets every value, also if the first one is broken."""
    recorder = Recorder()
    detection = OODDetection([MSP()], output_dir=tmp_path)
    trainer, module = make_trainer(detection, logger=[Offline(), recorder]), make_module()
    data = OODDataModule(make_streams(with_train=False))
    before = module.transform, data.transform
    with pytest.raises(LoggingError, match=r"1 of 2 loggers .* Offline \(number 1 of 2\)"):
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
    monkeypatch.setattr(output, "write_report", no_page)
    trainer = make_trainer(detection, logger=[Offline()])
    with pytest.raises(DataError, match="images are gone") as caught:
        trainer.predict(make_module(), OODDataModule(make_streams(with_train=False)), return_predictions=False)
    assert isinstance(caught.value.__context__, LoggingError)


def test_names_with_blanks_colons_and_slashes_reach_every_logger(tmp_path):
    """FAULTS: several back-ends: one naming scheme, NaN included, in one call."""
    from pytorch_lightning.loggers import CSVLogger

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
