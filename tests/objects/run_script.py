"""Run by test_object_processes.py in one or several processes: the same run over boxes, results on disk.

Usage: python -m tests.objects.run_script DEVICES SETS OUT
"""

import sys
import warnings
from pathlib import Path

from pytorch_lightning import Trainer

from oodlit.detectors import KNN, MSP, Energy, LaRD, Mahalanobis, ViM
from oodlit.objects import ObjectDetection
from tests.objects.runs import SETTINGS, benchmark, make_module, make_trainer


def main(devices: int, sets: Path, out: Path) -> None:
    detectors = [MSP(), Energy(), Mahalanobis(), ViM(dim=8), KNN(k=3), LaRD()]
    for batch_size in (1, 4):
        for case, most in (("full", None), ("few", 2)):  # with three processes and two images, one gets none
            folder = out / f"{case}-{batch_size}"
            chosen = detectors if most is None else detectors[:2]
            detection = ObjectDetection(chosen, output_dir=folder, settings=SETTINGS, fit_on="predicted")
            strategy = "ddp" if devices > 1 else "auto"
            trainer: Trainer = make_trainer(detection, devices=devices, strategy=strategy)
            data = benchmark(sets, sets=["near_coco", "far_oi"], batch_size=batch_size, max_images=most)
            trainer.predict(make_module(), data, return_predictions=False)
            assert detection.results is not None, f"rank {trainer.global_rank} has no results"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
