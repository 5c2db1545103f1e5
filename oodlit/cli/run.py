"""One prediction from the command line: scored, saved, shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from rich.console import Console
from rich.text import Text
from torch import nn

from oodlit.callbacks import OODDetection
from oodlit.cli.console import progress, status
from oodlit.cli.outcome import check_folder, is_first_process, present
from oodlit.cli.quiet import RunProgress, quiet
from oodlit.datamodules import OODDataModule
from oodlit.detectors import Detector
from oodlit.errors import InvalidArgumentError
from oodlit.module import OODModule
from oodlit.results import Results

__all__ = ["Run", "predict", "run_evaluation"]


class Run(NamedTuple):
    """What a prediction gave."""

    results: Results
    warned: list[str]
    is_first: bool
    """False on all processes but one, which alone has written files."""


def predict(
    module: OODModule,
    data: OODDataModule,
    detectors: Sequence[Detector] | Mapping[str, Detector] | None,
    *,
    out: Path,
    seed: int = 0,
    trainer: Mapping[str, Any],
    **evaluation: Any,
) -> Run:
    """`Trainer.predict` with one progress bar and collected warnings.

    Args:
        module: The backbone.
        data: The streams.
        detectors: What scores; None = the fitted ones of `evaluation["fitted"]`.
        out: Folder of the results.
        seed: Of everything random during the prediction; the caller's random state is left as it was.
        trainer: Arguments of Lightning's Trainer.
        evaluation: Arguments of `OODDetection`.

    Returns:
        Results and warnings.
    """
    detection = OODDetection(detectors, output_dir=out, **evaluation)
    with quiet() as warned, torch.random.fork_rng(), progress(shown=is_first_process()) as bars:
        torch.manual_seed(seed)
        runner = pl.Trainer(
            callbacks=[detection, RunProgress(bars)], logger=False, enable_progress_bar=False, **dict(trainer)
        )
        runner.predict(module, data, return_predictions=False)
    assert detection.results is not None  # predict came to its end
    return Run(detection.results, warned, runner.is_global_zero)


def run_evaluation(
    backbone: str | nn.Module,
    data: OODDataModule,
    detectors: Sequence[Detector] | None,
    *,
    out: Path,
    head: str | None = None,
    weights: str | None = "hub",
    trainer: Mapping[str, Any],
    loading: Mapping[str, int | None],
    evaluation: Mapping[str, Any],
    seed: int = 0,
    config: str = "",
    console: Console | None = None,
) -> Path | None:
    """Predict once, save, write the page.

    Args:
        backbone: A timm name, a network, or an OODModule.
        data: The streams.
        detectors: What scores; None = the fitted ones of `evaluation["fitted"]`.
        out: Folder of the results.
        head: Name of the final linear layer, for a network.
        weights: See `OODModule`.
        trainer: Arguments of Lightning's Trainer.
        loading: "batch_size" and "num_workers" in place of the data's own; None keeps those.
        evaluation: Arguments of `OODDetection`.
        seed: Of everything random.
        config: The resolved configuration, kept in the record of the run.
        console: Where the table is printed. None = nowhere.

    Returns:
        The HTML page; None on other processes than the first.

    Raises:
        InvalidArgumentError: `head` is given for an OODModule, or `out` holds something that no run wrote.
    """
    replaced = check_folder(out, fitted=evaluation.get("fitted"))
    if replaced and console is not None and is_first_process():
        console.print(Text(f"{out}: the results of an earlier run are replaced", style="dim"), soft_wrap=True)
    for name, value in loading.items():
        if value is not None:
            setattr(data, name, value)
    if isinstance(backbone, OODModule):
        if head is not None:
            raise InvalidArgumentError(f"head={head!r}: give it to the OODModule that is the backbone")
        if weights != "hub":
            raise InvalidArgumentError(f"weights={weights!r}: give them to the OODModule that is the backbone")
        module = backbone
    else:
        loading_it = f"loading {backbone}" if isinstance(backbone, str) else "preparing the network"
        with torch.random.fork_rng(), status(loading_it):
            torch.manual_seed(seed)  # random weights belong to what is random
            module = OODModule(backbone, head=head, weights=weights)
    run = predict(module, data, detectors, out=out, seed=seed, trainer=trainer, **evaluation)
    if config:
        run.results.run["config"] = config
    if not run.is_first:
        return None
    return present(run.results, out, left_out={}, warned=run.warned, console=console)
