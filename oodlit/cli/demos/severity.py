"""`oodlit demo severity`: how does detection fall from the easiest to the hardest unknown digits?"""

from pathlib import Path

from rich.console import Console

from oodlit.cli.demos.digits import train_and_score
from oodlit.datamodules.benchmarks.digit_pool import DigitPoolBenchmark


def run_severity(
    out: Path, *, seed: int = 0, epochs: int = 8, accelerator: str = "cpu", console: Console | None = None
) -> Path:
    """Train a small network on the digits 0-4, sort the others by severity for every detector, write results and page.

    Args:
        out: Folder for shards, results and page.
        seed: Of the data split, the training and every random choice.
        epochs: Length of the training. Default 8.
        accelerator: Lightning's name of the device.
        console: Where the table is printed. None (default) = nowhere.

    Returns:
        The HTML page.

    Raises:
        InvalidArgumentError: `out` holds something that no demo wrote.
    """
    return train_and_score(DigitPoolBenchmark, out, seed=seed, epochs=epochs, accelerator=accelerator, console=console)
