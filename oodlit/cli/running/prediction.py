"""One prediction from the command line: one progress bar, warnings kept for the record, everything saved once."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import nn

from oodlit._lightning import pl
from oodlit.callbacks import OODDetection
from oodlit.cli.console import progress, status
from oodlit.cli.running.outcome import check_folder, is_first_process, print_outcome
from oodlit.cli.running.quiet import RunProgress, quiet
from oodlit.cli.running.recording import check_recordable, record_missing
from oodlit.datamodules import OODDataModule
from oodlit.detectors import Detector, load
from oodlit.detectors.contract.fitting import name_detectors
from oodlit.errors import InvalidArgumentError, LoggingError, RunIsCompleteError
from oodlit.module import OODModule
from oodlit.recorded.cache_data import how_recorded, open_cache
from oodlit.recorded.module import RecordedModule
from oodlit.results import Results, Settings
from oodlit.results.files.storage import UNFINISHED, is_complete
from oodlit.results.files.unfinished import extent
from oodlit.results.limits import Limit
from oodlit.results.run_record import joined
from oodlit.runs import RunLog, figures_of, log_to_all


def predict_and_print(
    module: OODModule | RecordedModule,
    data: OODDataModule,
    detectors: Sequence[Detector] | Mapping[str, Detector] | None,
    *,
    out: Path,
    trainer: Mapping[str, Any],
    seed: int = 0,
    record: Mapping[str, Any] | None = None,
    console: Console | None = None,
    callbacks: Sequence[pl.Callback] = (),
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
        callbacks: Further ones.
        evaluation: Arguments of `OODDetection`.

    Returns:
        The HTML page; None on other processes than the first.

    Raises:
        LoggingError: A logger failed; the table is printed before.
    """
    with quiet() as warned, torch.random.fork_rng():
        torch.manual_seed(seed)
        detection = OODDetection(
            detectors,
            output_dir=out,
            # what is left out has a heading of its own
            record=lambda: joined(record or {}, {"warnings": [t for t in warned() if "is left out" not in t]}),
            **evaluation,
        )
        with progress(shown=is_first_process()) as bars:
            together = [detection, _Announcement(detection, console), RunProgress(bars), *callbacks]
            runner = pl.Trainer(callbacks=together, enable_progress_bar=False, **{"logger": False, **trainer})
            not_logged: LoggingError | None = None
            try:
                runner.predict(module, data, return_predictions=False)
            except LoggingError as error:  # the results are complete
                not_logged = error
    assert detection.results is not None  # predict came to its end
    if not runner.is_global_zero:
        return None
    if console is not None:
        print_outcome(detection.results, console)
    if not_logged is not None:
        raise not_logged
    return out / "report.html"


class _Announcement(pl.Callback):
    """Says what the detectors cost that apply: before the first batch, and again when the first ones were measured."""

    def __init__(self, detection: OODDetection, console: Console | None) -> None:
        self.detection, self.console = detection, console
        self._said = ""

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._say_cost("Before the start")

    def on_predict_batch_end(self, *_: Any) -> None:
        self._say_cost("After the first batches")

    def _say_cost(self, when: str) -> None:
        if self.detection.cost != self._said:
            self._said = self.detection.cost
            _say(self.console, f"{when}: {self._said}")


def run_evaluation(
    backbone: str | nn.Module,
    data: OODDataModule,
    detectors: Sequence[Detector] | Mapping[str, Detector] | None,
    *,
    out: Path,
    head: str | None = None,
    weights: str | None = "hub",
    faster: Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any],
    loading: Mapping[str, Any],
    max_batches: int | None = None,
    cache: Path | None = None,
    cache_dtype: str = "float32",
    again: bool = False,
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
        faster: `channels_last` and `compile` of `OODModule`, where they are asked for.
        trainer: Arguments of Lightning's Trainer.
        loading: "batch_size" and "num_workers" in place of the data's own; None keeps those.
        max_batches: Of each stream, as many images as fill so many batches of every device, spread over it; None = all.
        cache: Folder of features: what it lacks is recorded there first, then all are read from there.
        cache_dtype: How features are recorded.
        again: Start anew, also where the same run was killed or has come to its end in `out`.
        evaluation: Arguments of `OODDetection`.
        seed: Of everything random.
        config: The resolved configuration, kept in the record of the run.
        console: Where the table is printed. None = nowhere.

    Returns:
        The HTML page; None on other processes than the first.

    Raises:
        InvalidArgumentError: `head` is given for an OODModule, or `out` holds something that no run wrote.
        LoggingError: A logger failed; the table is printed before.
    """
    replaced = check_folder(out, fitted=evaluation.get("fitted"))
    started = None if again else extent(out / UNFINISHED)
    if started is not None:
        done = f"{started[0]} of {started[1]} sets are done"
        _say(console, f"{out}: an earlier start of a run lies there; if it is the same run, it goes on ({done})")
    if replaced and (started is None or is_complete(out)):
        _say(console, f"{out}: results of an earlier run lie there; unless it is this one, they are replaced")
    data = data.with_loading(**loading)
    if max_batches is not None:
        processes = int(trainer.get("devices", 1)) * int(trainer.get("num_nodes", 1))
        data = data.with_loading(max_images=max_batches * data.batch_size * processes)
    module, more = _module(backbone, head=head, weights=weights, seed=seed, faster=faster or {}), dict(evaluation)
    record: dict[str, Any] = {"config": config} if config else {}
    if cache is not None:
        check_recordable(detectors, strict=bool(evaluation.get("strict")))
        record["warnings"] = record_missing(
            module, data, cache, dtype=cache_dtype, trainer=trainer, seed=seed, say=partial(_say, console)
        )
        module, data = open_cache(cache, module, data)
        record["cache"] = {"folder": str(cache), **how_recorded(cache)}
        trainer = {**trainer, "precision": "32-true"}  # nothing is computed that half precision would speed up
    try:
        return predict_and_print(
            module,
            data,
            detectors,
            out=out,
            trainer=trainer,
            seed=seed,
            record=record,
            console=console,
            resume=not again,
            **more,
        )
    except RunIsCompleteError:
        _say(console, f"{out}: this run has come to its end before, and is not repeated; --again does")
        if not is_first_process():
            return None
        results = Results.load(out)
        if console is not None:
            print_outcome(results, console)
        _log(results, trainer.get("logger") or [])
        return out / "report.html"


def _log(results: Results, loggers: pl.loggers.Logger | Sequence[pl.loggers.Logger]) -> None:
    """Hand results that were there before to the loggers of now, one of which may have failed then."""
    loggers = list(loggers) if isinstance(loggers, Sequence) else [loggers]
    if loggers:
        log_to_all(loggers, RunLog.of(results, partial(figures_of, results, True)))
    for logger in loggers:
        logger.finalize("success")  # to the Trainer, a run that is not repeated has failed


def _say(console: Console | None, text: str) -> None:
    if console is not None and is_first_process():
        console.print(Text(text, style="dim"), soft_wrap=True)


def check_limits(
    limits: Sequence[Limit],
    data: OODDataModule,
    detectors: Sequence[Detector] | Mapping[str, Detector] | None,
    fitted: Path | None,
    *,
    tpr: float,
) -> None:
    """Refuse limits on what a run cannot have, before it begins.

    Raises:
        UnknownNameError: No such detector, metric or data set.
    """
    if not limits:
        return
    chosen = load(fitted)[0] if detectors is None and fitted is not None else name_detectors(detectors or [])
    for limit in limits:
        limit.check_names(chosen, [stream.name for stream in data.streams], Settings(tpr=tpr))


def _module(
    backbone: str | nn.Module, *, head: str | None, weights: str | None, seed: int, faster: Mapping[str, Any]
) -> OODModule | RecordedModule:
    if isinstance(backbone, OODModule | RecordedModule):
        if head is not None:
            raise InvalidArgumentError(f"head={head!r}: give it to the OODModule that is the backbone")
        if weights != "hub":
            raise InvalidArgumentError(f"weights={weights!r}: give them to the OODModule that is the backbone")
        backbone.acceleration = backbone.acceleration.with_options(**faster)
        return backbone
    task = f"loading {backbone}" if isinstance(backbone, str) else "preparing the network"
    with torch.random.fork_rng(), status(task):
        torch.manual_seed(seed)  # random weights belong to what is random
        return OODModule(backbone, head=head, weights=weights, **faster)
