"""`oodlit demo objects`: a detector that knows the digits 0-6, and scenes with others."""

from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from oodlit._lightning import pl
from oodlit.cli.console import progress, status
from oodlit.cli.demos.digit_scenes import DigitScenes
from oodlit.cli.demos.object_network import ObjectTraining, small_faster_rcnn
from oodlit.cli.running.outcome import check_folder, not_applicable_lines
from oodlit.cli.running.quiet import RunProgress, one_thread, quiet
from oodlit.detectors.contract.every import every_detector
from oodlit.objects import ObjectDetection, ObjectModule, ObjectSettings
from oodlit.objects.results.summary import summary_tables

SETTINGS = {"knn": {"k": 10}}
"""The default k of KNN is meant for ImageNet's 1.3 million training images, and not for a thousand boxes."""
CAVEAT = (
    "One small detector on drawn scenes: what is known and unknown is certain here, the order of the OOD detectors is"
    " not that of large networks."
)


def run_objects(
    out: Path,
    *,
    seed: int = 0,
    epochs: int = 16,
    scenes: tuple[int, int] = (400, 120),
    accelerator: str = "cpu",
    t_star: float = 0.5,
    bootstrap: int = 1000,
    console: Console | None = None,
) -> Path:
    """Train a small Faster R-CNN on scenes of the digits 0-6, score all boxes with every detector, write the page.

    Args:
        out: Folder for scenes, results and page.
        seed: Of the scenes, the training and every random choice.
        epochs: Length of the training.
        scenes: Number of training scenes, and of scenes of every other set.
        accelerator: Lightning's name of the device.
        t_star: Least confidence of the boxes that count.
        bootstrap: Repetitions for the intervals.
        console: Where the tables are printed. None = nowhere.

    Returns:
        The HTML page.

    Raises:
        InvalidArgumentError: `out` holds something that no demo wrote.
    """
    check_folder(out)
    with one_thread():
        with status("drawing scenes"):
            data = DigitScenes(out / "scenes", seed=seed, train=scenes[0], test=scenes[1])
        module = _trained(data, seed=seed, epochs=epochs, accelerator=accelerator)
        detectors, left_out = every_detector(SETTINGS)
        with quiet() as warned, torch.random.fork_rng(), progress() as bars:
            torch.manual_seed(seed)
            detection = ObjectDetection(
                detectors,
                output_dir=out,
                settings=ObjectSettings(t_star=t_star, bootstrap=bootstrap, seed=seed),
                record=lambda: {
                    "title": "A detector of the digits 0-6 meets others",
                    "not_applicable": left_out,
                    "caveat": CAVEAT,
                    "warnings": [text for text in warned() if "is left out" not in text],
                },
            )
            trainer = _trainer(accelerator, detection, RunProgress(bars))
            trainer.predict(module, data, return_predictions=False)
    results = detection.results
    assert results is not None  # predict came to its end
    if console is not None:
        for table in summary_tables(results):
            console.print(table)
        for line in not_applicable_lines(results.run.not_applicable):
            console.print(Text(line, style="dim"))
        console.print(Text(CAVEAT, style="yellow"))
    return out / "report.html"


def _trained(data: DigitScenes, *, seed: int, epochs: int, accelerator: str) -> ObjectModule:
    with quiet(), torch.random.fork_rng(), progress() as bars:
        torch.manual_seed(seed)
        network = small_faster_rcnn(len(data.class_names))
        trainer = _trainer(accelerator, RunProgress(bars), max_epochs=epochs)
        trainer.fit(ObjectTraining(network), data.train_dataloader())
    return ObjectModule(network, data.class_names, name="small Faster R-CNN")


def _trainer(accelerator: str, *callbacks: pl.Callback, max_epochs: int | None = None) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=max_epochs,
        accelerator=accelerator,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        callbacks=list(callbacks),
    )
