"""`oodlit demo`: which detector notices that 7, 8 and 9 are no digits from 0 to 6?"""

from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from oodlit._lightning import pl
from oodlit.cli.console import progress, status
from oodlit.cli.demos.network import DigitsTraining, SmallNetwork
from oodlit.cli.running.outcome import check_folder
from oodlit.cli.running.prediction import predict_and_print
from oodlit.cli.running.quiet import RunProgress, one_thread, quiet
from oodlit.datamodules.benchmarks.digits import DigitsBenchmark, DigitsData
from oodlit.detectors.contract.every import every_detector
from oodlit.module import OODModule

SETTINGS = {"knn": {"k": 10}}
"""The default k of KNN is meant for ImageNet's 1.3 million training images, and not for 758."""


def run_digits(
    out: Path, *, seed: int = 0, epochs: int = 15, accelerator: str = "cpu", console: Console | None = None
) -> Path:
    """Train a small network on the digits 0-6, score everything with every detector, write results and page.

    Args:
        out: Folder for shards, results and page.
        seed: Of the data split, the training and every random choice.
        epochs: Length of the training. Default 15.
        accelerator: Lightning's name of the device.
        console: Where the table is printed. None (default) = nowhere.

    Returns:
        The HTML page.

    Raises:
        InvalidArgumentError: `out` holds something that no demo wrote.
    """
    return train_and_score(DigitsBenchmark, out, seed=seed, epochs=epochs, accelerator=accelerator, console=console)


def train_and_score(
    benchmark: Callable[..., DigitsData],
    out: Path,
    *,
    seed: int,
    epochs: int,
    accelerator: str,
    console: Console | None,
) -> Path:
    """A demo of digits: write the shards of a benchmark, train, score with every detector; returns the page."""
    check_folder(out)
    with one_thread():
        with status("writing shards"):
            data = benchmark(out / "shards", seed=seed)
        network = trained_network(data, seed=seed, epochs=epochs, accelerator=accelerator)
        module = OODModule(network, head="head", transform=data.transform, name="digits network")
        detectors, left_out = every_detector(SETTINGS)
        page = predict_and_print(
            module,
            data,
            detectors,
            out=out,
            trainer={"accelerator": accelerator, "devices": 1},
            seed=seed,
            record={"not_applicable": left_out},
            console=console,
        )
    assert page is not None  # there is one process
    return page


def trained_network(data: DigitsData, *, seed: int, epochs: int, accelerator: str) -> SmallNetwork:
    """A small network after some epochs on the training digits, in eval mode."""
    with quiet(), torch.random.fork_rng(), progress() as bars:
        torch.manual_seed(seed)
        network = SmallNetwork(len(data.class_names))
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator=accelerator,
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            callbacks=[RunProgress(bars)],
        )
        trainer.fit(DigitsTraining(network), data.train_dataloader())
    return network.eval()
