"""Run by test_ended_runs.py: a run over boxes in one or several processes, of which one ends at a given point."""

import os
import signal
import warnings
from pathlib import Path

from oodlit.base.processes import peers
from oodlit.detectors import MSP, Mahalanobis
from oodlit.objects import ObjectDetection, ObjectModule
from tests.objects.runs import SETTINGS, benchmark, make_module, make_trainer


class Ends(ObjectModule):
    """Something happens to one process as soon as the run has come so far: "training" or "scoring"."""

    what, victim, at, detection = "", 0, "", None

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        rank = self.trainer.global_rank
        is_fitted = self.detection._recorder.is_fitted
        if rank == self.victim and (batch_idx == 1 if self.at == "training" else is_fitted):
            happen(self.what)
        return super().predict_step(batch, batch_idx, dataloader_idx)


def happen(what: str) -> None:
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "asked":
        os.kill(os.getpid(), signal.SIGTERM)
    if what == "interrupted":
        raise KeyboardInterrupt
    if what:
        raise TypeError("the network of one process")


def main(processes: int, sets: Path, out: Path, what: str, victim: int, at: str) -> None:
    warnings.simplefilter("ignore")
    peers.PATIENCE_S = 5.0
    module = make_module()
    object.__dict__["__class__"].__set__(module, Ends)
    module.what, module.victim, module.at = what, victim, at
    module.detection = detection = ObjectDetection(
        [MSP(), Mahalanobis()], output_dir=out, settings=SETTINGS, resume=True, keep_every_s=0.0
    )
    trainer = make_trainer(detection, devices=processes, strategy="ddp" if processes > 1 else "auto")
    trainer.predict(module, benchmark(sets, sets=["near_coco"], batch_size=1), return_predictions=False)
    print("done", flush=True)
