"""What detectors cost beside a network on one GPU: everything in one command, in at most five minutes.

    python benchmarks/gpu.py [--json gpu.json] [--parts closed,knn,fit,jpeg,options] [--batch 256]
    python benchmarks/gpu.py --tiny                   # a rehearsal on a CPU, in seconds; its numbers mean nothing

Each part runs in a separate process with a time limit, and its figures are written immediately: a part that fails or
hangs loses nothing of the others. The network is a ViT-B/16 with random weights in bf16; its time does not
depend on the weights. Needs oodlit, torch and timm; neither network access nor data.

    closed    the bare network, and with all closed-form detectors on top (goal: at most 5 %)
    knn       KNN with k = 1000 and a bank of 1.28 million x 768 (goal: at most 15 %)
    fit       the fit of the closed-form detectors from features in memory
    jpeg      end to end from JPEG shards, with where the time went: decoded by the workers, and on the device
    options   channels_last and torch.compile: their time, and how far they are from eager
"""

import argparse
import importlib
import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

LIMITS = {"closed": 75.0, "knn": 65.0, "fit": 45.0, "jpeg": 60.0, "options": 55.0}
"""Seconds of each part; together five minutes."""
GOALS = {"closed_form_share": 0.05, "knn_share": 0.15}
"""Largest shares of the time of the bare network that detectors are to take."""


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    network: str = "vit_base_patch16_224"
    batch: int = 256
    repeats: int = 20
    classes: int = 1000
    train: int = 100_000
    bank: int = 1_281_167
    k: int = 1000
    images: int = 4096
    workers: int = 12


TINY = Sizes("vit_tiny_patch16_224", batch=4, repeats=1, classes=10, train=200, bank=500, k=5, images=16, workers=0)
"""For a rehearsal on a CPU."""


def device_of() -> torch.device:
    """The GPU, or the CPU for a rehearsal."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def seconds(work: Callable[[], object], repeats: int, *, warm_up: int = 3) -> float:
    """Mean time of one call; the device is waited for before and after all of them."""
    for _ in range(min(warm_up, repeats)):
        work()
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronize()
    return (time.perf_counter() - start) / repeats


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def make_module(sizes: Sizes) -> Any:
    """The network as a run holds it: eval mode, on the device; random weights."""
    import timm

    from oodlit import OODModule

    torch.manual_seed(0)
    network = timm.create_model(sizes.network, num_classes=sizes.classes)
    return OODModule(network, name=sizes.network).to(device_of()).eval()


def forward(module: Any, images: torch.Tensor) -> Any:
    """One pass in bf16, as Lightning's "bf16-mixed" makes it."""
    with torch.autocast(images.device.type, dtype=torch.bfloat16):
        return module(images)


def closed_form() -> dict[str, Any]:
    """All closed-form detectors that read no more than logits, features and the head."""
    from oodlit.detectors import detectors
    from oodlit.detectors.contract.overview import overview

    made = {}
    for name, kind in detectors().items():
        try:
            detector = kind()
        except TypeError:  # it wants to be told something
            continue
        reads_words = hasattr(detector, "negatives")  # of a file that a text tower wrote; it has a test of its own
        if overview(detector).cost == "closed form" and detector.required_needs <= NEEDED and not reads_words:
            made[name] = detector
    return made


NEEDED = {"logits", "features", "head", "labels"}


def training(sizes: Sizes, head: Any, *, rows: int, batch: int = 8192) -> Iterator[Any]:
    """Outputs of training images around class means, on the device, in batches."""
    from oodlit.outputs import Outputs

    device = head.weight.device
    generator = torch.Generator(device).manual_seed(0)
    means = torch.randn(sizes.classes, head.width, device=device, generator=generator)
    for start in range(0, rows, batch):
        labels = torch.arange(start, min(start + batch, rows), device=device) % sizes.classes
        features = means[labels] + torch.randn(len(labels), head.width, device=device, generator=generator)
        keys = [f"train/{start + i}" for i in range(len(labels))]
        yield Outputs(head(features), features, labels=labels, keys=keys)


def fitted(detectors: dict[str, Any], sizes: Sizes, head: Any, *, rows: int, clock: Any) -> Any:
    """The detectors, fitted, as a run scores them; those that cannot be fitted are left out."""
    from oodlit.detectors.contract.fitting import make_statistics
    from oodlit.scoring.scoring import Scoring

    scoring = Scoring(detectors, strict=False, clock=clock)
    statistics = make_statistics([*detectors.values()])
    for outputs in training(sizes, head, rows=rows):
        clock.enter("statistics", images=len(outputs))
        statistics.update(outputs)
        clock.enter("other")
    for name in detectors:
        scoring.fit(name, statistics, head)
    return scoring


def part_closed(sizes: Sizes) -> dict[str, Any]:
    """The bare network, the same with all closed-form detectors, and each of them alone."""
    from oodlit.runs.images.rows import ImageRows
    from oodlit.scoring.clock import Clock

    module, rows = make_module(sizes), min(sizes.train, 50_000)
    images = torch.randn(sizes.batch, 3, 224, 224, device=device_of())
    keys = [f"val/{i}" for i in range(sizes.batch)]
    with torch.inference_mode():
        first = forward(module, images)
        bare = seconds(lambda: forward(module, images), sizes.repeats)
        scoring = fitted(closed_form(), sizes, module.head, rows=rows, clock=Clock(device_of()))
        scoring.score(with_keys(first, keys), "val")  # one that fails is left out before anything is measured
        kept = ImageRows("val", list(scoring.active))

        def whole() -> None:
            outputs = with_keys(forward(module, images), keys)
            kept.add(outputs, scoring.score(outputs, "val"))

        together = seconds(whole, sizes.repeats)
        alone = {
            name: seconds(partial(score_once, scoring.detectors[name], first), max(sizes.repeats // 4, 1), warm_up=1)
            for name in scoring.active
        }
    return {
        "bare_us": us(bare, sizes),
        "closed_form_us": us(together - bare, sizes),
        "closed_form_share": (together - bare) / bare,
        "wei_per_share": alone.get("wei_per", 0.0) / bare,
        "detectors": len(scoring.active),
        "each_alone_us": {n: us(s, sizes) for n, s in sorted(alone.items(), key=lambda item: -item[1])},
        "failed": scoring.failed,
    }


def with_keys(outputs: Any, keys: list[str]) -> Any:
    """The outputs of one pass as a run hands them on: nothing is remembered from before."""
    from oodlit.outputs import Outputs

    return Outputs(outputs.logits, outputs.features, keys=keys)


def score_once(detector: Any, outputs: Any) -> None:
    """One call with nothing remembered."""
    from oodlit.outputs import Outputs

    detector.score(Outputs(outputs.logits, outputs.features))


def us(spent: float, sizes: Sizes) -> float:
    """Microseconds an image."""
    return round(1e6 * spent / sizes.batch, 2)


def part_knn(sizes: Sizes) -> dict[str, Any]:
    """KNN against the full bank: fitted as in a run, with the bank on the CPU, and where a run places it."""
    from oodlit.detectors import KNN, fit
    from oodlit.detectors.contract.placement import place_large
    from oodlit.outputs import Outputs

    module = make_module(sizes)
    images = torch.randn(sizes.batch, 3, 224, 224, device=device_of())
    found: dict[str, Any] = {}
    with torch.inference_mode():
        bare = seconds(lambda: forward(module, images), sizes.repeats)
        detector, start = KNN(k=sizes.k), time.perf_counter()
        fit([detector], training(sizes, module.head, rows=sizes.bank), module.head)
        found["fit_s"] = round(time.perf_counter() - start, 2)
        features = next(iter(training(sizes, module.head, rows=sizes.batch))).features
        queries = Outputs(features=features + 0.1 * torch.randn_like(features))
        few = max(sizes.repeats // 4, 1)
        found["on_the_cpu_us"] = us(seconds(lambda: score_once(detector, queries), few, warm_up=1), sizes)
        found["placed"] = place_large({"knn": detector}, device_of())
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        spent = seconds(lambda: score_once(detector, queries), few, warm_up=1)
        if torch.cuda.is_available():
            found["peak_GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return {"bare_us": us(bare, sizes), **found, "knn_us": us(spent, sizes), "knn_share": spent / bare}


def part_fit(sizes: Sizes) -> dict[str, Any]:
    """Statistics and fits of the closed-form detectors from features that lie on the device."""
    from oodlit.runs.time_record import time_record
    from oodlit.scoring.clock import Clock

    head, clock = make_module(sizes).head, Clock(device_of())
    with torch.inference_mode():
        scoring = fitted(closed_form(), sizes, head, rows=sizes.train, clock=clock)
    record = time_record([clock.state(wait=True)])
    slowest = dict(sorted(record.fit.items(), key=lambda item: -item[1])[:8])
    spent = record.mean["statistics"]
    return {
        "rows": sizes.train,
        "statistics_s": spent,
        "statistics_us": round(1e6 * spent / sizes.train, 2),
        "fits_s": record.mean.get("fit", 0.0),
        "slowest_fits_s": slowest,
        "failed": scoring.failed,
    }


def part_jpeg(sizes: Sizes) -> dict[str, Any]:
    """Runs from shards of JPEGs of 500 x 375, decoded by the workers and on the device."""
    from gpu_jpeg import jpeg_streams, run_from  # the folder of this file is on the path

    found: dict[str, Any] = {"images": sizes.images, "workers": sizes.workers}
    how = {"batch_size": sizes.batch, "num_workers": sizes.workers}
    with tempfile.TemporaryDirectory() as root:
        streams = jpeg_streams(Path(root), sizes.images)
        found |= run_from(streams, make_module(sizes), **how)
        try:
            made = run_from(streams, make_module(sizes), **how, decode_on_device=True)
        except Exception as error:  # loses nothing of what the workers did
            return found | {"on_device": f"{type(error).__name__}: {error}"}
    told = made["acceleration"]
    return found | {
        "images_per_s_on_device": made["images_per_s"],
        "pixels_mean_on_device": told["deviation_of_pixels"]["mean"],
        "pixels_largest_on_device": told["deviation_of_pixels"]["largest"],
        "logits_on_device": told["deviation_of_logits"],
        "on_device": made,
    }


def part_options(sizes: Sizes) -> dict[str, Any]:
    """The network with other memory layouts and compiled, against eager in float32 and in bf16."""
    found: dict[str, Any] = {}
    images = torch.randn(sizes.batch, 3, 224, 224, device=device_of())
    with torch.inference_mode():
        module = make_module(sizes)
        exact, eager = module(images).logits, forward(module, images).logits
        found["bf16_to_float32"] = deviation(eager, exact)
        found["eager_us"] = us(seconds(lambda: forward(module, images), sizes.repeats), sizes)
        last = images.contiguous(memory_format=torch.channels_last)
        module.network.to(memory_format=torch.channels_last)
        found["channels_last"] = deviation(forward(module, last).logits, eager)
        found["channels_last_us"] = us(seconds(lambda: forward(module, last), sizes.repeats), sizes)
        if torch.cuda.is_available():
            module = make_module(sizes)
            compiled, start = torch.compile(module.network), time.perf_counter()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                made = compiled(images)
                synchronize()
                found["compile_s"] = round(time.perf_counter() - start, 1)
                found["compiled"] = deviation(made, eager)
                found["compiled_us"] = us(seconds(lambda: compiled(images), sizes.repeats), sizes)
    return found


def deviation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference of logits, relative to their spread."""
    return float((one.float() - other.float()).abs().amax() / other.float().std())


PARTS = {"closed": part_closed, "knn": part_knn, "fit": part_fit, "jpeg": part_jpeg, "options": part_options}


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": {n: importlib.metadata.version(n) for n in ("torch", "timm", "pytorch-lightning")},
    }


def run_part(name: str, arguments: list[str], limit: float) -> dict[str, Any]:
    """One part in its own process; a failure is a result, too."""
    with tempfile.TemporaryDirectory() as root:
        out, start = Path(root, "part.json"), time.perf_counter()
        command = [sys.executable, __file__, "--part", name, "--json", str(out), *arguments]
        try:
            # What it prints is shown as it comes; a limit kills it.
            subprocess.run(command, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"took more than {limit:.0f} s"}
        took = round(time.perf_counter() - start, 1)
        found = json.loads(out.read_text()) if out.exists() else {"error": "ended without a result"}
        return {**found, "part_s": took}


def table(results: dict[str, dict[str, Any]]) -> str:
    """What was measured, one line each, with the goals."""
    lines = [f"{'part':10}{'what':28}{'value':>14}  goal"]
    for part, found in results.items():
        for name, value in found.items():
            if isinstance(value, float | int):
                goal = f"{'met' if value <= GOALS[name] else 'MISSED'}: at most {GOALS[name]}" if name in GOALS else ""
                lines.append(f"{part:10}{name:28}{value:14.4g}  {goal}".rstrip())
            elif isinstance(value, str):
                lines.append(f"{part:10}{name:28}{value}")
            elif name == "failed" and value:
                lines += [f"{part:10}failed: {detector:20}{reason[:80]}" for detector, reason in value.items()]
    return "\n".join(lines)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the numbers are written")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of the parts, by comma")
    parser.add_argument("--part", choices=PARTS, help="one part, in this process")
    parser.add_argument("--batch", type=int, default=Sizes.batch)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of all parts together")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: sizes for a CPU")
    arguments = parser.parse_args()
    sizes = TINY if arguments.tiny else Sizes(batch=arguments.batch, workers=max((os.cpu_count() or 1) - 2, 0))
    logging.disable(logging.WARNING)  # notes of the fits
    if arguments.part:
        try:
            found = PARTS[arguments.part](sizes)
        except Exception as error:  # what failed is part of the result
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        arguments.json.write_text(json.dumps(found))
        return
    given = ["--tiny"] if arguments.tiny else ["--batch", str(arguments.batch)]
    results: dict[str, Any] = {}
    start = time.perf_counter()
    for package in ("timm", "oodlit.callbacks"):  # read from the disk once, on nobody's time
        importlib.import_module(package)
    for name in arguments.parts.split(","):
        left = arguments.limit - (time.perf_counter() - start)
        results[name] = run_part(name, given, min(LIMITS[name], left)) if left > 1 else {"error": "no time was left"}
        if arguments.json:
            whole = {"machine": machine(), "sizes": asdict(sizes), "parts": results}
            arguments.json.write_text(json.dumps(whole, indent=1))
        print(table({name: results[name]}), flush=True)
    print(f"\n{machine()}\n{table(results)}")


if __name__ == "__main__":
    main()
