"""`oodlit demo objects`: test a detector of the digits 0-6 on scenes with other objects."""

from pathlib import Path

from rich.console import Console

from oodlit._lightning import silent_trainer
from oodlit.cli.console import progress, status
from oodlit.cli.demos.digit_scenes import DigitScenes
from oodlit.cli.demos.digits import SETTINGS
from oodlit.cli.demos.network import detection_loss, small_faster_rcnn
from oodlit.cli.demos.training import trained
from oodlit.cli.running.outcome import check_folder, print_outcome
from oodlit.cli.running.quiet import RunProgress, one_thread, quiet, seeded
from oodlit.detectors.contract.every import every_detector
from oodlit.objects import ObjectDetection, ObjectModule, ObjectSettings

CAVEAT = "This demo uses one small object detector on drawn scenes. Large networks may rank OOD detectors differently."


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
    """Train a small Faster R-CNN on scenes of the digits 0-6, score all boxes with every detector, and write the page.

    Args:
        out: Folder for scenes, results and page.
        seed: Seed of the scenes, the training and all random choices.
        epochs: Number of training epochs.
        scenes: Number of training scenes, and number of scenes per other set.
        accelerator: Accelerator of the Trainer.
        t_star: Minimum confidence of counted boxes.
        bootstrap: Repetitions of the bootstrap for intervals.
        console: Prints the tables. None = no output.

    Returns:
        The HTML page.

    Raises:
        InvalidArgumentError: `out` contains files that no demo wrote.
    """
    check_folder(out)
    with one_thread():
        with status("drawing scenes"):
            data = DigitScenes(out / "scenes", seed=seed, train=scenes[0], test=scenes[1])
        network = trained(
            small_faster_rcnn,
            detection_loss,
            data,
            learning_rate=4e-3,
            seed=seed,
            epochs=epochs,
            accelerator=accelerator,
        )
        module = ObjectModule(network, data.class_names, name="small Faster R-CNN")
        detectors, left_out = every_detector(SETTINGS)
        with quiet() as warned, seeded(seed), progress() as bars:
            detection = ObjectDetection(
                detectors,
                output_dir=out,
                settings=ObjectSettings(t_star=t_star, bootstrap=bootstrap, seed=seed),
                record=lambda: {
                    "title": "A detector of the digits 0-6 on scenes with OOD objects",
                    "not_applicable": left_out,
                    "every_detector": True,
                    "caveat": CAVEAT,
                    "warnings": [text for text in warned() if "is skipped" not in text],
                },
            )
            trainer = silent_trainer(detection, RunProgress(bars), accelerator=accelerator)
            trainer.predict(module, data, return_predictions=False)
    results = detection.results
    assert results is not None  # predict has returned
    if console is not None:
        print_outcome(results, console)
    return out / "report.html"
