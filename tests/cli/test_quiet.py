"""What libraries below print during a run is not the user's business."""

import logging

import pytest

from oodlit.backbones.loading import quiet_hub
from oodlit.cli.console import progress


def test_hub_prints_no_line_per_attempt_and_gets_its_level_back(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_hub():
        inside = logging.getLogger("huggingface_hub.utils._http")
        inside.warning("Retrying in 1s [Retry 1/5].")
    assert capfd.readouterr().err == ""
    assert logging.getLogger("huggingface_hub").level != logging.ERROR


def test_other_processes_than_the_first_show_no_bars(capfd: pytest.CaptureFixture[str]) -> None:
    with progress(shown=False) as bars:
        bars.advance(bars.add_task("streaming", total=1))
    assert capfd.readouterr().err == ""
