"""The three kinds of run, each small, for tests that all of them pass; and a run to which something happens."""

import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytorch_lightning as pl

from oodlit import OODModule, Results
from oodlit.callbacks import FeatureCache, ObjectDetection, OODDetection
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.detectors import MSP, Mahalanobis
from oodlit.objects import ObjectResults
from tests.callbacks import support
from tests.objects import runs
from tests.recorded.support import rows_in

FULL = 3_000
"""Bytes that a file may have on a disk that is full."""


class Kind(NamedTuple):
    """A kind of run.

    Args:
        callback: Makes the callback that writes into a folder, and resumes there.
        module: Makes the network.
        data: Makes the data, from a folder with sets of boxes.
        contents: What a complete run leaves in its folder.
        batches: How many batches a complete run reads.
        kept: Part of the message about what is kept of a run that the user ends.
    """

    callback: Callable[..., pl.Callback]
    module: Callable[[], pl.LightningModule]
    data: Callable[[Path], pl.LightningDataModule]
    contents: Callable[[Path], Any]
    batches: int
    kept: str


def some_detectors() -> list:
    return [MSP(), Mahalanobis()]


def images(out: Path | None, **options: Any) -> OODDetection:
    return OODDetection(some_detectors(), output_dir=out, num_thumbnails=0, keep_every_s=0.0, **options)


def boxes(out: Path | None, **options: Any) -> ObjectDetection:
    return ObjectDetection(some_detectors(), output_dir=out, settings=runs.SETTINGS, keep_every_s=0.0, **options)


def features(out: Path, *, resume: bool = True) -> FeatureCache:
    assert resume  # a cache always resumes
    return FeatureCache(out, keep_every_s=0.0)


def table_and_scores(out: Path) -> tuple[str, bytes]:
    results = Results.load(out)
    return (out / "table.csv").read_text(), pd.util.hash_pandas_object(results.scores).to_numpy().tobytes()


def table_and_boxes(out: Path) -> tuple[str, bytes]:
    results = ObjectResults.load(out)
    return (out / "table.csv").read_text(), pd.util.hash_pandas_object(results.boxes).to_numpy().tobytes()


def image_data(_sets: Path) -> OODDataModule:
    return OODDataModule(support.make_streams(), batch_size=16)


def box_data(sets: Path) -> OODDataModule:
    return runs.benchmark(sets, sets=["near_coco"], batch_size=1)


def image_module() -> OODModule:
    return support.make_module()


KINDS = {
    "images": Kind(images, image_module, image_data, table_and_scores, 16, "or resume the run with resume=True"),
    "boxes": Kind(boxes, runs.make_module, box_data, table_and_boxes, 16, "reuse the fit with ObjectDetection(fitted="),
    "features": Kind(features, image_module, image_data, rows_in, 16, "the next recording resumes after them"),
}


def run(kind: str, sets: Path, out: Path, what: str = "", at: int = 0, **options: Any) -> int:
    """One run that resumes an earlier one; the number of batches that it read.

    Args:
        kind: Name of the kind.
        sets: Folder with sets of boxes.
        out: Where it writes.
        what: What happens to it: "killed", "asked" (SIGTERM), "full" (disk).
        at: The batch at which it happens.
        options: Arguments of the Trainer.
    """
    one = KINDS[kind]
    module, seen = one.module(), [0]
    original = module.predict_step

    def predict_step(*arguments: Any, **named: Any) -> Any:
        seen[0] += 1
        if seen[0] == at:
            happen(what)
        return original(*arguments, **named)

    module.predict_step = predict_step
    trainer = support.make_trainer(one.callback(out, resume=True), devices=1, **options)
    trainer.predict(module, one.data(sets), return_predictions=False)
    return seen[0]


def happen(what: str) -> None:
    if what == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    elif what:
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "asked": signal.SIGTERM}[what])


def main(kind: str, sets: Path, out: Path, what: str, at: int) -> None:
    warnings.simplefilter("ignore")
    try:
        run(kind, sets, out, what, at)
    except OSError as error:  # on a full disk there is little room for its traceback
        print(type(error).__name__, flush=True)
        sys.exit(1)
