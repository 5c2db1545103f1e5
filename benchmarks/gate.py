"""Latency of gates: what p-values add, and a combination of three detectors against its parts.

    python benchmarks/gate.py                     # a network of 512 features, 1,000 classes, batches of 1 and 64

All gates take turns, and the shortest CPU time of many calls counts: other programs use the machine. The
detector of the plain gate returns one of the logits: it measures everything except a detector. A combination is to
take at most 1.05 of a gate that scores the same parts one after another without combining them.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from oodlit import Gate, OODModule
from oodlit.detectors import KNN, Combined, Detector, Energy, Mahalanobis, fit
from oodlit.detectors.contract.detector import TrainFreeDetector
from oodlit.detectors.contract.reference import Reference
from oodlit.detectors.statistics import Statistics
from oodlit.gate import Calibration
from oodlit.gate.gate_record import GateBackbone, GateRecord
from oodlit.gate.threshold import Threshold
from oodlit.outputs import Head, Outputs


@final
class First(TrainFreeDetector):
    """The logit of class 0."""

    needs = frozenset({"logits"})
    reference = Reference("The first logit", "-", "-", 2026, "https://example.org")

    def _score(self, outputs: Outputs) -> Tensor:
        return outputs.require("logits")[:, 0]


@final
class Parts(Detector):
    """The last score of several fitted detectors."""

    needs = frozenset({"logits", "features", "head"})
    reference = First.reference

    def __init__(self, parts: Sequence[Detector]) -> None:
        super().__init__()
        self.parts = list(parts)
        self._fitted = True

    def _fit(self, statistics: Statistics, head: Head | None) -> None: ...

    def _score(self, outputs: Outputs) -> Tensor:
        return [part.score(outputs) for part in self.parts][-1]


def make_gate(
    module: OODModule, detector: Detector, known: Tensor | None = None, classes: Tensor | None = None
) -> Gate:
    """A gate with p-values for the calibration scores `known`, per class if there are `classes`."""
    kind = "tpr" if known is None else "alpha" if classes is None else "alpha per class"
    threshold = Threshold(0.0, 0.0, 0.0, 0.0, kind, 0.05, "val", 1, 1, 0, 0.95)
    backbone = GateBackbone("network", "", 0, module.head.num_classes, "", None, {}, [3, 16, 16])
    record = GateRecord(detector.key(), threshold, (), backbone, "32-true")
    return Gate(module, detector, record, calibration=None if known is None else Calibration(known, known, classes))


def shortest(gates: Mapping[str, Gate], images: Tensor, rounds: int) -> dict[str, float]:
    """Shortest CPU time of a call of each gate, in seconds."""
    best, other = dict.fromkeys(gates, float("inf")), torch.zeros(2**24)
    for _ in range(rounds):
        for name, gate in gates.items():
            other += 1  # no gate finds its tensors in the cache of the processor
            start = time.process_time()
            gate(images)
            best[name] = min(best[name], time.process_time() - start)
    return best


def main() -> None:
    """Fit the detectors on noise, and compare the gates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"width": 512, "classes": 1000, "bank": 10_000, "calibration": 50_000, "rounds": 100}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(768, options.width), nn.ReLU(), nn.Linear(options.width, options.classes)
    )
    module = OODModule(network, transform=nn.Identity())
    with torch.no_grad():
        training = module(torch.randn(options.bank, 3, 16, 16))
    labels = torch.arange(options.bank) % options.classes
    parts, combined = [Mahalanobis(), Energy(), KNN()], Combined()
    fit([*parts, combined], [Outputs(training.logits, training.features, labels)], module.head)
    known, classes = torch.randn(options.calibration).double().sort().values, torch.arange(options.calibration) % 100
    gates = {part.key(): make_gate(module, part) for part in (First(), *parts, Parts(parts), combined)}
    gates |= {"p-values": make_gate(module, First(), known), "per class": make_gate(module, First(), known, classes)}
    for size in (1, 64):
        found = shortest(gates, torch.randn(size, 3, 16, 16), options.rounds)
        plain = found["first"]
        print(f"batches of {size}, ms: " + ", ".join(f"{name} {1e3 * spent:.2f}" for name, spent in found.items()))
        added = sum(found[part.key()] - plain for part in parts)
        print(
            f"  p-values {found['p-values'] / plain:.2f}, per class {found['per class'] / plain:.2f} x the plain gate"
        )
        print(f"  combined {found['combined'] / found['parts']:.3f} x its parts in one gate", end="")
        print(f", {found['combined'] / (plain + added):.3f} x the plain gate and what gates of its parts add")


if __name__ == "__main__":
    main()
