"""How fast shards stream, against a bare loop over the same bytes in memory with the same decoding and transform.

    python benchmarks/streaming.py [--images 600] [--workers 0 1 2] [--json out.json]

Prints images per second of wall time and per second of CPU time (of this process and its workers), the ratio of the
latter to the bare loop's, and the peak memory of reading few and many shards. Run it on an otherwise idle machine.
"""

import argparse
import io
import json
import resource
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timm.data import create_transform

from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.loader import StreamLoader
from oodlit.datamodules.shards import Entry, ShardSource, build_shards, shard_stream
from oodlit.roles import Role


def photo(number: int) -> bytes:
    """A JPEG of the size of an ImageNet photo (500 x 375, about 100 kB): smooth shapes with grain."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC), dtype=np.float32)
    grain = rng.normal(0, 12, smooth.shape)
    file = io.BytesIO()
    Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


@contextmanager
def clock() -> Iterator[Callable[[], tuple[float, float]]]:
    """Gives a function that returns the wall and CPU seconds since the start, workers included."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    yield lambda: (time.perf_counter() - wall, cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """CPU seconds of this process and of its workers that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_memory(folder: Path) -> float:
    """Peak MiB that Python allocates while all samples of a folder are read."""
    source = ShardSource(folder)
    tracemalloc.start()
    for _ in source.read(0, len(source)):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transform = create_transform((3, 224, 224), interpolation="bicubic", crop_pct=0.875)
    photos = [photo(number) for number in range(32)]
    payload = [photos[i % len(photos)] for i in range(args.images)]
    results: dict[str, dict[str, float]] = {}

    def note(name: str, wall: float, cpu: float) -> None:
        results[name] = {"wall": args.images / wall, "cpu": args.images / cpu}
        ratio = results[name]["cpu"] / results["bare loop"]["cpu"]
        print(f"{name:28s} {args.images / wall:8.1f} images/s  {args.images / cpu:8.1f} per core  {ratio:5.2f} of bare")

    with tempfile.TemporaryDirectory() as root:
        entries = [Entry(f"{i:06d}.jpg", lambda data=data: data, group=0) for i, data in enumerate(payload)]
        build_shards(entries, Path(root, "shards"), name="photos", role=Role.OOD, shard_size=100)
        stream = shard_stream(Path(root, "shards"))

        for repeat in range(2):  # the first round warms up
            with clock() as seconds:
                for start in range(0, args.images, 64):
                    torch.stack([transform(decode_image(data)) for data in payload[start : start + 64]])
                bare = seconds()
            if repeat:
                note("bare loop", *bare)
        for workers in args.workers:
            with clock() as seconds:
                count = sum(len(batch["key"]) for batch in StreamLoader(stream, transform, num_workers=workers))
                note(f"stream, {workers} workers", *seconds())
            assert count == args.images
        with clock() as seconds:
            source = ShardSource(Path(root, "shards"))
            for _ in source.read(0, len(source)):
                pass
            note("reading alone", *seconds())

        for shards in (2, 200):
            small = [Entry(f"{i:06d}.jpg", lambda i=i: photos[i % 32]) for i in range(shards * 5)]
            build_shards(small, Path(root, f"m{shards}"), name="m", role=Role.OOD, shard_size=5)
            memory = peak_memory(Path(root, f"m{shards}"))
            results[f"memory, {shards} shards"] = {"MiB": memory}
            print(f"peak memory of {shards} shards: {memory:.2f} MiB")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
