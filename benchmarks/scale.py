"""Memory and time of a fit on as many images as ImageNet has, on features that are made as they are asked for.

    python benchmarks/scale.py                                      # 1 280 000 images, 768 features, 1000 classes
    python benchmarks/scale.py --images 128000 --parts time processes
    python benchmarks/scale.py --parts bank --queries 256           # takes the bank's 4 GB

Part "memory": `oodlit.detectors.fit` of the detectors of NINCO but KNN, in a separate process: the peak of the
resident memory above that of the process with everything imported and the generator ready, at every tenth of the stream
and after the fit, beside what the library announces.
Part "time": CPU time of logits and fit against the bare products X W' in float32 and X'X in float64, on the same
batches, in turns; the generator is in neither.
Part "processes": two processes with half of the batches each, their statistics merged over gloo, against one with all;
the generator is in both. By wall time, and by the CPU time of the busier process where others share the machine.
Part "bank": KNN (k = 1000) over all images: peak memory against the bank, time of an image against the bare product.

Every process has one thread. Features are class means plus noise after a ReLU, and depend on the number of the image.
"""

import argparse
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from oodlit import detectors as ours
from oodlit.detectors.contract.fitting import estimate_bytes, make_statistics
from oodlit.detectors.formulas.neighbors import chunks
from oodlit.detectors.statistics import synchronize
from oodlit.outputs import BackboneFacts, Head, Outputs

T = TypeVar("T")

NINCO = (
    *("MSP", "MaxLogit", "Energy", "KLMatching", "Mahalanobis", "RelativeMahalanobis", "ViM", "Cosine"),
    *("RelativeCosine", "ReAct"),
)
"""The detectors of NINCO's tables that keep no bank."""
NOISE = 4099
"""Rows of noise, a prime number: a row meets another class in every round."""
BLOCK = 16
"""Batches that both sides of a comparison are given in turns."""
MIB = 2**20


@dataclass(frozen=True)
class Sizes:
    """What is fitted.

    Args:
        images: Training images.
        width: Features of an image.
        classes: Classes.
        batch: Images in a batch.
    """

    images: int
    width: int
    classes: int
    batch: int


class Data:
    """Training images by number; the same for any cut into batches and processes."""

    def __init__(self, sizes: Sizes) -> None:
        generator = torch.Generator().manual_seed(0)
        self.sizes = sizes
        self.means = torch.randn(sizes.classes, sizes.width, generator=generator)
        self.noise = torch.randn(NOISE, sizes.width, generator=generator)
        self.head = Head(self.means / sizes.width**0.5, 0.1 * torch.randn(sizes.classes, generator=generator))

    def features(self, rank: int = 0, world: int = 1) -> Iterator[tuple[range, Tensor]]:
        """Numbers and features of the images of every batch of a process."""
        for start in range(rank * self.sizes.batch, self.sizes.images, world * self.sizes.batch):
            images = range(start, min(start + self.sizes.batch, self.sizes.images))
            number = torch.arange(images.start, images.stop)
            rows = self.means.index_select(0, number % self.sizes.classes)
            yield images, rows.add_(self.noise.index_select(0, number % NOISE)).relu_()

    def outputs(self, images: range, features: Tensor) -> Outputs:
        """What a network gives for a batch: logits are formed, for every side at the same cost."""
        labels = torch.arange(images.start, images.stop) % self.sizes.classes
        return Outputs(self.head(features), features, labels, keys=[f"train/{i}" for i in images])


def detectors() -> list[ours.Detector]:
    """New detectors of NINCO's tables."""
    return [getattr(ours, name)() for name in NINCO]


def memory(sizes: Sizes) -> dict[str, Any]:
    """Peak memory in MiB above the baseline: at every tenth of the stream, after the fit, and as announced."""
    data, baseline, peaks = Data(sizes), _start_of_peak(), []
    tenths = [sizes.images * i // 10 for i in range(1, 11)]

    def batches() -> Iterator[Outputs]:
        for images, features in data.features():
            yield data.outputs(images, features)
            while len(peaks) < 10 and images.stop >= tenths[len(peaks)]:
                peaks.append(_peak() - baseline)

    fitted = detectors()
    ours.fit(fitted, batches(), data.head)
    facts = BackboneFacts(width=sizes.width, num_classes=sizes.classes, num_train=sizes.images)
    announced = estimate_bytes(make_statistics(fitted), facts, fitted) / MIB
    return {"baseline": baseline, "stream": peaks, "fit": _peak() - baseline, "announced": announced}


def times(sizes: Sizes) -> dict[str, float]:
    """CPU microseconds an image, of the bare products and of logits and fit, and their ratio."""
    data, spent = Data(sizes), dict.fromkeys(("head", "square", "stream"), 0.0)
    fitted = detectors()
    statistics = make_statistics(fitted)
    square = torch.zeros(sizes.width, sizes.width, dtype=torch.float64)

    def bare(images: range, features: Tensor) -> None:
        start = time.process_time()
        features @ data.head.weight.T
        middle = time.process_time()
        double = features.double()
        square.addmm_(double.T, double)
        spent["head"] += middle - start
        spent["square"] += time.process_time() - middle

    def full(images: range, features: Tensor) -> None:
        start = time.process_time()
        statistics.update(data.outputs(images, features))
        spent["stream"] += time.process_time() - start

    for number, block in enumerate(_blocks(data.features())):
        for side in (bare, full) if number % 2 else (full, bare):
            for batch in block:
                side(*batch)
    start = time.process_time()
    for detector in fitted:
        detector.fit(statistics, data.head)
    spent["fit"] = time.process_time() - start
    found = {name: 1e6 * seconds / sizes.images for name, seconds in spent.items()}
    return found | {"ratio": (found["stream"] + found["fit"]) / (found["head"] + found["square"])}


def process(sizes: Sizes, rank: int, world: int, folder: str) -> tuple[float, float]:
    """Seconds of wall and CPU time of one of several processes: stream, merge and fit."""
    _start()
    data, fitted = Data(sizes), detectors()
    statistics = make_statistics(fitted)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=world)
        dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    for images, features in data.features(rank, world):
        statistics.update(data.outputs(images, features))
    synchronize(statistics.values())
    for detector in fitted:
        detector.fit(statistics, data.head)
    spent = time.perf_counter() - wall, time.process_time() - cpu
    if world > 1:
        dist.destroy_process_group()
    return spent


def processes(sizes: Sizes, repeats: int) -> dict[str, float]:
    """How many times faster two processes are than one: wall and CPU time, the best of several of each, in turns."""
    best: dict[tuple[str, int], float] = {}
    for world in (1, 2) * repeats:
        with tempfile.TemporaryDirectory() as folder, _pool(world) as pool:
            running = [pool.submit(process, sizes, rank, world, folder) for rank in range(world)]
            spent = [future.result() for future in running]
        for name, seconds in zip(("wall", "cpu"), map(max, zip(*spent, strict=True)), strict=True):
            best[name, world] = min(best.get((name, world), seconds), seconds)
    figures = {f"{name} of {world}": seconds for (name, world), seconds in best.items()}
    return figures | {f"speed-up by {name}": best[name, 1] / best[name, 2] for name in ("wall", "cpu")}


def bank(sizes: Sizes, queries: int) -> dict[str, float]:
    """Peak memory against the bank, in MiB, and milliseconds an image of KNN and of the bare product, in turns."""
    data, baseline = Data(sizes), _start_of_peak()
    knn = ours.KNN(k=min(1000, sizes.images))
    ours.fit([knn], (Outputs(features=features) for _, features in data.features()))
    rows, fit_peak = knn.bank, _peak() - baseline
    chosen = torch.randperm(NOISE, generator=torch.Generator().manual_seed(1))[:queries]
    test = (data.noise[chosen] + data.means[chosen % sizes.classes]).relu_()

    def bare() -> None:
        for part in chunks(len(test), len(rows), at_least=1):
            test @ rows[part].T

    best = {"bare": float("inf"), "knn": float("inf")}
    for name, run in [("bare", bare), ("knn", lambda: knn.score(Outputs(features=test)))] * 2:
        start = time.process_time()
        run()
        best[name] = min(best[name], 1e3 * (time.process_time() - start) / queries)
    facts = BackboneFacts(width=sizes.width, num_classes=sizes.classes, num_train=sizes.images)
    return {
        "bank": rows.numel() * rows.element_size() / MIB,
        "announced": estimate_bytes(make_statistics([knn]), facts, [knn]) / MIB,
        "fit": fit_peak,
        "score": _peak() - baseline,
        **best,
        "ratio": best["knn"] / best["bare"],
    }


def _blocks(batches: Iterator[T]) -> Iterator[list[T]]:
    while block := [batch for batch, _ in zip(batches, range(BLOCK), strict=False)]:
        yield block


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _apart(function: Callable[..., T], *arguments: object) -> T:
    """What a function returns in a new process, whose memory contains nothing else."""
    with _pool(1) as pool:
        return pool.submit(_started, function, *arguments).result()


def _started(function: Callable[..., T], *arguments: object) -> T:
    _start()
    return function(*arguments)


def _start() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # notes of the fits


def _start_of_peak() -> float:
    """Resident memory now, in MiB; the peak counts from here on, where the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()
    return _status("VmRSS")


def _peak() -> float:
    """Largest resident memory so far, in MiB."""
    return _status("VmHWM")


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the system does not tell {name}")


def _report(part: str, figures: dict[str, Any]) -> None:
    for name, value in figures.items():
        shown = " ".join(f"{v:.0f}" for v in value) if isinstance(value, list) else f"{value:.2f}"
        print(f"{part:10} {name:18} {shown}", flush=True)


def main() -> None:
    """Parse the sizes and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"images": 1_280_000, "width": 768, "classes": 1000, "batch": 512}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    every = ("memory", "time", "processes", "bank")
    parser.add_argument("--parts", nargs="+", choices=every, default=every[:3])
    parser.add_argument("--repeats", type=int, default=2, help="runs of one and of two processes")
    parser.add_argument("--queries", type=int, default=256, help="images that KNN scores, at most 4099")
    parser.add_argument("--json", type=Path, help="file for sizes and figures")
    arguments = parser.parse_args()
    sizes = Sizes(arguments.images, arguments.width, arguments.classes, arguments.batch)
    print(", ".join(f"{name} {value}" for name, value in asdict(sizes).items()))
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "memory": lambda: _apart(memory, sizes),
        "time": lambda: _apart(times, sizes),
        "processes": lambda: processes(sizes, arguments.repeats),
        "bank": lambda: _apart(bank, sizes, arguments.queries),
    }
    figures = {}
    for part in arguments.parts:
        figures[part] = runs[part]()
        _report(part, figures[part])
    if arguments.json:
        arguments.json.write_text(json.dumps({"sizes": asdict(sizes), "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
