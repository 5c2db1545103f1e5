"""SIGTERM ends a run as Ctrl-C does, unless somebody has said what it does."""

import os
import signal

import pytest

from oodlit import OODModule, Results
from oodlit.base.termination import TerminatedError
from oodlit.detectors import MSP, Mahalanobis
from oodlit.testing.backbones import TinyConvNet
from tests.callbacks.support import run


class AskedToEnd(OODModule):
    """Somebody asks the process to end at one of the batches."""

    seen, at = 0, 12

    def predict_step(self, *arguments, **named):
        self.seen += 1
        if self.seen == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().predict_step(*arguments, **named)


@pytest.fixture
def module():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield AskedToEnd(TinyConvNet(6, dropout=0.2), name="tiny")
    signal.signal(signal.SIGTERM, before)


def test_a_run_ends_and_goes_on_later(tmp_path, module, caplog):
    options = {"output_dir": tmp_path, "resume": True, "keep_every_s": 0.0, "num_thumbnails": 0}
    with pytest.raises(TerminatedError, match="asked to end") as caught:
        run([MSP(), Mahalanobis()], module=module, **options)
    assert caught.value.code == 143
    assert f"asked to end (SIGTERM); what was finished is kept in {tmp_path / 'unfinished'}" in caplog.text
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    again = run([MSP(), Mahalanobis()], module=module, **options).results
    assert again.run.resumed.startswith("the fit")
    plain = run([MSP(), Mahalanobis()], module=module).results
    assert again.scores.equals(plain.scores)
    assert "unfinished" not in Results.load(tmp_path).run


def test_a_handler_of_the_user_stays(module):
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    module.at = 3
    assert run([MSP()], module=module).results is not None
    assert heard == [1]
