"""SIGTERM ends a run as Ctrl-C does, unless somebody has said what it does."""

import os
import signal

import pytest

from oodlit import OODModule
from oodlit.detectors import MSP
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


def test_a_handler_of_the_user_stays(module):
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    module.at = 3
    assert run([MSP()], module=module).results is not None
    assert heard == [1]
