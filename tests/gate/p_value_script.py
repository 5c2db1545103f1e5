"""Gates with p-values in a process of its own: what they decide about saved images, and their exported programs."""

import json
import sys
import warnings
from pathlib import Path

import torch

from oodlit import Gate

SETTINGS = {
    "plain": {},
    "alpha": {"alpha": 0.1},
    "half": {"alpha": 0.1, "calibration": 0.5},
    "classes": {"alpha": 0.1, "per_class": True},
}
EXPORTED = ("alpha", "classes")


def main(run: Path, folder: Path) -> None:
    warnings.simplefilter("ignore", UserWarning)  # some classes have few images
    images = torch.load(folder / "images.pt")
    network = "tests.gate.support.TinyNetwork"
    found = {}
    for name, settings in SETTINGS.items():
        gate = Gate.load(run, detector="mahalanobis", model=network, **settings)
        gate.save(folder / name)
        verdicts = gate(images)
        assert Gate.load(folder / name)(images) == verdicts
        for ending in ("pt2", "onnx") if name in EXPORTED else ():
            gate.export(folder / f"{name}.{ending}")
        found[name] = [(v.accepted, v.p_value, v.class_index, v.threshold) for v in verdicts]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
