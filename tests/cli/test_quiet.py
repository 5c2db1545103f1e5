"""What libraries below print during a run is not the user's business."""

import io
import logging

import pandas as pd
import pytest
import pytorch_lightning as pl
import torch
from rich.console import Console

from oodlit import Results, Role
from oodlit.backbones.loading import quiet_hub
from oodlit.callbacks import OODDetection
from oodlit.cli.console import progress
from oodlit.cli.running.outcome import print_outcome
from oodlit.cli.running.quiet import RunProgress
from oodlit.datamodules import OODDataModule, Sample, pipeline_stream
from oodlit.detectors import MSP
from oodlit.results import DatasetInfo
from tests.callbacks.support import make_module, make_streams, make_trainer


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


@pytest.mark.filterwarnings("ignore:.*undefined .NaN.")
def test_a_file_of_standard_error_shows_which_stream_is_read(capfd: pytest.CaptureFixture[str]) -> None:
    """A bar is drawn only at its end if standard error is not a terminal."""
    shown: list[str] = []

    class Look(pl.Callback):
        def on_predict_epoch_end(self, *_: object) -> None:
            shown.append(capfd.readouterr().err)

    data = OODDataModule(make_streams(with_train=False), batch_size=16)
    with progress() as bars:
        trainer = make_trainer(OODDetection([MSP()]), RunProgress(bars), Look())
        trainer.predict(make_module(), data, return_predictions=False)
    assert [line for line in shown[0].splitlines() if "images" in line] == [
        "streaming val: 30 images",
        "streaming far: 30 images",
        "streaming tests: 8 images",
        "streaming shifted: 12 images",
    ]


def test_a_pipeline_which_does_not_tell_its_batches_has_a_bar_without_an_end(capfd: pytest.CaptureFixture[str]) -> None:
    items = [{"__key__": str(i)} for i in range(5)]
    how = {"name": "piped", "role": Role.OOD, "count": 5, "class_names": ("x",)}
    pipeline = pipeline_stream(items, to_sample=lambda item: Sample(item["__key__"], torch.ones(3, 8, 8), 0, 0), **how)
    data = OODDataModule([*(s for s in make_streams() if s.name == "val"), pipeline], batch_size=16)
    with progress() as bars:
        make_trainer(OODDetection([MSP()]), RunProgress(bars)).predict(make_module(), data, return_predictions=False)
        assert bars.tasks[0].completed == 3
    assert "streaming piped: 5 images" in capfd.readouterr().err


@pytest.mark.parametrize(("colours", "said"), [("standard", True), (None, False)])
def test_green_is_spoken_of_only_where_there_are_colours(colours: str | None, said: bool) -> None:
    frame = pd.DataFrame(
        {"key": ["val/0", "val/1", "near/0"], "dataset": ["val", "val", "near"], "group": -1, "label": [0, 1, -1]}
        | {"prediction": [0, 0, 1], "msp": [0.9, 0.5, 0.7]}
    )
    results = Results.from_scores(frame, [DatasetInfo("val", Role.ID), DatasetInfo("near", Role.OOD)], ["msp"])
    written = io.StringIO()
    console = Console(file=written, color_system=colours, force_terminal=colours is not None, width=200)
    print_outcome(results, console)
    (line,) = [line for line in written.getvalue().splitlines() if "Thresholds accept" in line]
    assert ("best values in green" in line) is said
