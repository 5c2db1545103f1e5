"""`oodlit demo`: compare how well detectors notice that 7, 8 and 9 are not among the digits 0-6."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from oodlit.cli.console import status
from oodlit.cli.demos.network import SmallNetwork, classification_loss
from oodlit.cli.demos.training import trained
from oodlit.cli.running.outcome import check_folder
from oodlit.cli.running.prediction import predict_and_print
from oodlit.cli.running.quiet import one_thread
from oodlit.datamodules.benchmarks.digits import DigitsBenchmark, DigitsData
from oodlit.detectors.contract.every import every_detector
from oodlit.module import OODModule

NEAR_AND_FAR = partial(DigitsBenchmark, far=True)
"""The digits 0-6, with other digits and patches of photographs as OOD sets."""
SETTINGS = {"knn": {"k": 10}}
"""The default k of KNN suits the 1.3 million training images of ImageNet. This data set has 758."""


def run_digits(
    out: Path,
    *,
    benchmark: Callable[..., DigitsData] = NEAR_AND_FAR,
    seed: int = 0,
    epochs: int = 15,
    accelerator: str = "cpu",
    console: Console | None = None,
) -> Path:
    """Train a small network on known digits, score all data sets with every detector, and write results and page.

    Args:
        out: Folder for shards, results and page.
        benchmark: The data sets; `DigitsBenchmark` (default) trains on the digits 0-6, with near and far OOD sets.
        seed: Seed of the data split, the training and all random choices.
        epochs: Number of training epochs; default 15.
        accelerator: Accelerator of the Trainer.
        console: Prints the table. None (default) = no output.

    Returns:
        The HTML page.

    Raises:
        InvalidArgumentError: `out` contains files that no demo wrote.
    """
    check_folder(out)
    with one_thread():
        with status("writing shards"):
            data = benchmark(out / "shards", seed=seed)
        network = trained_network(data, seed=seed, epochs=epochs, accelerator=accelerator)
        module = OODModule(network, head="head", transform=data.transform, name="digits network")
        detectors, left_out = every_detector(SETTINGS)
        predict_and_print(
            module,
            data,
            detectors,
            out=out,
            trainer={"accelerator": accelerator, "devices": 1},
            seed=seed,
            controls=True,
            record={"not_applicable": left_out, "every_detector": True},
            console=console,
        )
    return out / "report.html"


def trained_network(data: DigitsData, *, seed: int, epochs: int, accelerator: str) -> SmallNetwork:
    """A small network in eval mode, trained on the training digits."""
    return trained(
        SmallNetwork, classification_loss, data, learning_rate=0.01, seed=seed, epochs=epochs, accelerator=accelerator
    ).eval()
