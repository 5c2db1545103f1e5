"""One of the processes that `oodlit.testing.launch` starts: python -m oodlit.testing.worker FOLDER RANK."""

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.processes.distributed import cpu_group, gather_objects
from oodlit.detectors import Detector, load
from oodlit.detectors.contract.class_paths import from_config
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.detectors.statistics import synchronize
from oodlit.testing.launch import FRACTIONS, batches_of, find_object
from oodlit.testing.problems import Problem, ProblemFactory

PATIENCE = timedelta(seconds=60)


def main(folder: Path, rank: int) -> None:
    """Load and score every saved detector; then fit it again with the other processes, and score."""
    task = json.loads((folder / "task.json").read_text())
    torch.set_num_threads(1)
    for module, file in task["modules"].items():
        find_object(module, "", file)
    problem: ProblemFactory = find_object(*task["problem"])  # type: ignore[assignment]  # passed by the parent
    dist.init_process_group(
        "gloo", init_method=(folder / "rendezvous").as_uri(), rank=rank, world_size=task["processes"], timeout=PATIENCE
    )
    for number, written in task["saved"].items():
        _one_detector(folder, number, written, rank, problem)
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    dist.destroy_process_group()
    del backend  # last, because torch < 2.8 deadlocks here while gloo's threads are running


def _one_detector(folder: Path, number: str, written: str, rank: int, problem: ProblemFactory) -> None:
    scores: dict[str, Tensor] = {}
    errors: dict[str, str] = {}

    def attempt(what: str, action: Callable[[], Tensor]) -> None:
        try:
            scores[what] = action().contiguous()
        except Exception as error:  # the parent reports it
            errors[what] = f"{type(error).__name__}: {error}"

    def loaded() -> Detector:
        return load(folder / number)[0]["detector"]

    def score_loaded() -> Tensor:
        detector = loaded()
        if repr(detector) != written:
            raise InvalidArgumentError(f"expected the loaded detector to be {written}, got {detector!r}")
        return detector.score(problem().tests)

    attempt("saved", score_loaded)
    for what, fraction in FRACTIONS.items():
        gather_objects(None, what)  # wait for all processes
        attempt(what, lambda fraction=fraction: _fit_together(loaded(), problem(), rank, fraction))  # type: ignore[misc]
    save_file(scores, folder / f"{number}.{rank}.safetensors")
    (folder / f"{number}.{rank}.json").write_text(json.dumps(errors))


def _fit_together(saved: Detector, data: Problem, rank: int, fraction: float) -> Tensor:
    detector = from_config(detector_to_config(saved), Detector)
    if not detector.required_statistics:
        return saved.score(data.tests)
    statistics = make_statistics([detector])
    for batch in batches_of(data, fraction, rank):
        statistics.update(batch)
    synchronize(statistics.values(), cpu_group())
    detector.fit(statistics, data.head if "head" in detector.required_needs else None)
    return detector.score(data.tests)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
