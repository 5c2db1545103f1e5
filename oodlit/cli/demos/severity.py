"""`oodlit demo severity`: how does detection fall from the easiest to the hardest unknown digits?"""

from pathlib import Path

from rich.console import Console

from oodlit.cli.console import status
from oodlit.cli.demos.digits import SETTINGS, trained_network
from oodlit.cli.outcome import check_folder
from oodlit.cli.quiet import one_thread
from oodlit.cli.run import predict_and_print
from oodlit.datamodules.benchmarks.digit_pool import DigitPoolBenchmark
from oodlit.detectors.contract.every import every_detector
from oodlit.module import OODModule


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
    check_folder(out)
    with one_thread():
        with status("writing shards"):
            data = DigitPoolBenchmark(out / "shards", seed=seed)
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
