"""One prediction from the command line: one progress bar, warnings kept for the record, everything saved once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import nn

from oodlit._lightning import pl
from oodlit.callbacks import OODDetection
from oodlit.callbacks.choice import cost_text
from oodlit.cli.console import progress, status
from oodlit.cli.outcome import check_folder, is_first_process, print_outcome
from oodlit.cli.quiet import RunProgress, quiet
from oodlit.datamodules import OODDataModule
from oodlit.detectors import Detector
from oodlit.errors import InvalidArgumentError
from oodlit.module import OODModule


def predict_and_print(
    module: OODModule,
    data: OODDataModule,
    detectors: Sequence[Detector] | Mapping[str, Detector] | None,
    *,
    out: Path,
    trainer: Mapping[str, Any],
    seed: int = 0,
    record: Mapping[str, Any] | None = None,
    console: Console | None = None,
    **evaluation: Any,
) -> Path | None:
    """`Trainer.predict` with one progress bar, and the table of its results.

    Args:
        module: The backbone.
        data: The streams.
        detectors: What scores; None = the fitted ones of `evaluation["fitted"]`.
        out: Folder of the results.
        trainer: Arguments of Lightning's Trainer.
        seed: Of everything random during the prediction; the caller's random state is left as it was.
        record: Further entries of `run.json`.
        console: Where the table is printed. None = nowhere.
        evaluation: Arguments of `OODDetection`.

    Returns:
        The HTML page; None on other processes than the first.
    """
    with quiet() as warned, torch.random.fork_rng():
        torch.manual_seed(seed)
        detection = OODDetection(
            detectors,
            output_dir=out,
            # what is left out has a heading of its own
            record=lambda: {**(record or {}), "warnings": [text for text in warned() if "is left out" not in text]},
            **evaluation,
        )
        if console is not None and is_first_process() and (cost := cost_text(detection.detectors)):
            console.print(Text(f"Before the start: {cost}", style="dim"), soft_wrap=True)
        with progress(shown=is_first_process()) as bars:
            callbacks = [detection, RunProgress(bars)]
            runner = pl.Trainer(callbacks=callbacks, logger=False, enable_progress_bar=False, **dict(trainer))
            runner.predict(module, data, return_predictions=False)
    assert detection.results is not None  # predict came to its end
    if not runner.is_global_zero:
        return None
    if console is not None:
        print_outcome(detection.results, console)
    return out / "report.html"


def run_evaluation(
    backbone: str | nn.Module,
    data: OODDataModule,
    detectors: Sequence[Detector] | Mapping[str, Detector] | None,
    *,
    out: Path,
    head: str | None = None,
    weights: str | None = "hub",
    trainer: Mapping[str, Any],
    loading: Mapping[str, int | None],
    max_batches: int | None = None,
    evaluation: Mapping[str, Any],
    seed: int = 0,
    config: str = "",
    console: Console | None = None,
) -> Path | None:
    """Make the module, predict once, print the table.

    Args:
        backbone: A timm name, a network, or an OODModule.
        data: The streams.
        detectors: What scores; None = the fitted ones of `evaluation["fitted"]`.
        out: Folder of the results.
        head: Name of the final linear layer, for a network.
        weights: See `OODModule`.
        trainer: Arguments of Lightning's Trainer.
        loading: "batch_size" and "num_workers" in place of the data's own; None keeps those.
        max_batches: Of each stream, as many images as fill so many batches of every device, spread over it; None = all.
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
    data = data.with_loading(**loading)
    if max_batches is not None:
        data = data.with_loading(max_images=max_batches * data.batch_size * int(trainer.get("devices", 1)))
    return predict_and_print(
        _module(backbone, head=head, weights=weights, seed=seed),
        data,
        detectors,
        out=out,
        trainer=trainer,
        seed=seed,
        record={"config": config} if config else None,
        console=console,
        **evaluation,
    )


def _module(backbone: str | nn.Module, *, head: str | None, weights: str | None, seed: int) -> OODModule:
    if isinstance(backbone, OODModule):
        if head is not None:
            raise InvalidArgumentError(f"head={head!r}: give it to the OODModule that is the backbone")
        if weights != "hub":
            raise InvalidArgumentError(f"weights={weights!r}: give them to the OODModule that is the backbone")
        return backbone
    task = f"loading {backbone}" if isinstance(backbone, str) else "preparing the network"
    with torch.random.fork_rng(), status(task):
        torch.manual_seed(seed)  # random weights belong to what is random
        return OODModule(backbone, head=head, weights=weights)
