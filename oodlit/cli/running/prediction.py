"""One prediction from the command line: one progress bar, warnings kept for the record, results saved once."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import nn

from oodlit._lightning import pl
from oodlit.base.errors import InvalidArgumentError, LoggingError, RunIsCompleteError
from oodlit.base.processes.rank import is_first_process
from oodlit.base.text.singular import singular
from oodlit.callbacks import OODDetection
from oodlit.cli.console import progress, say, status
from oodlit.cli.running.dry_run import describe_run
from oodlit.cli.running.outcome import UNTRAINED, check_folder, print_outcome, unused_lines
from oodlit.cli.running.quiet import Announcement, RunProgress, quiet, seeded
from oodlit.cli.running.recording import check_recordable, has_more_classes, through_cache
from oodlit.datamodules import OODDataModule
from oodlit.detectors import load
from oodlit.detectors.contract.fitting import GivenDetectors, name_detectors
from oodlit.detectors.contract.registry import readable_names
from oodlit.module import OODModule
from oodlit.recorded.module import RecordedModule
from oodlit.results import Results, Settings
from oodlit.results.comparing.controls import of_untrained
from oodlit.results.files.storage import UNFINISHED, is_complete
from oodlit.results.files.unfinished import extent
from oodlit.results.limits import Limit, priors_of
from oodlit.results.published import published_tables
from oodlit.results.run_record import joined
from oodlit.runs import RunLog, check_not_in_use, figures_of, log_to_all


def predict_and_print(
    module: OODModule | RecordedModule,
    data: OODDataModule,
    detectors: GivenDetectors | None,
    *,
    out: Path,
    trainer: Mapping[str, Any],
    seed: int = 0,
    record: Mapping[str, Any] | None = None,
    console: Console | None = None,
    **evaluation: Any,
) -> Path | None:
    """Run `Trainer.predict` with one progress bar, and print the table of results.

    Args:
        module: The backbone.
        data: The streams.
        detectors: Detectors to score with; None = the fitted ones in `evaluation["fitted"]`.
        out: Folder for the results.
        trainer: Arguments of Lightning's Trainer.
        seed: Seed of everything random in the prediction; the caller's random state is restored.
        record: Additional entries of `run.json`.
        console: Prints the table. None = no output.
        evaluation: Arguments of `OODDetection`.

    Returns:
        The HTML page; None on all processes but the first.

    Raises:
        LoggingError: A logger failed; the table has been printed.
    """
    with quiet() as warned, seeded(seed):
        detection = OODDetection(
            detectors,
            output_dir=out,
            # detectors that are left out are listed separately
            record=lambda: joined(record or {}, {"warnings": [t for t in warned() if "is skipped" not in t]}),
            **evaluation,
        )
        with progress(shown=is_first_process()) as bars:
            announcement = Announcement(lambda: detection.cost, lambda cost: _say(console, cost[:1].upper() + cost[1:]))
            resumed = Announcement(lambda: detection.position, lambda text: _say(console, text[:1].upper() + text[1:]))
            together = [detection, announcement, resumed, RunProgress(bars)]
            runner = pl.Trainer(callbacks=together, enable_progress_bar=False, **{"logger": False, **trainer})
            not_logged: LoggingError | None = None
            try:
                runner.predict(module, data, return_predictions=False)
            except LoggingError as error:  # the results are complete
                not_logged = error
    assert detection.results is not None  # predict has returned
    if not runner.is_global_zero:
        return None
    if console is not None:
        print_outcome(detection.results, console)
    if not_logged is not None:
        raise not_logged
    return out / "report.html"


@dataclass(frozen=True)
class EvaluationOptions:
    """Settings of `oodlit evaluate`.

    Args:
        backbone: A timm name, a network, or a module.
        data: The streams.
        detectors: Detectors to score with; None = the fitted ones in `options["fitted"]`.
        out: Folder for the results.
        trainer: Arguments of Lightning's Trainer.
        options: Arguments of `OODDetection`.
        head: Name of the final linear layer, for a network.
        weights: See `OODModule`.
        faster: `channels_last` and `compile` of `OODModule`, where requested.
        loading: "batch_size" and "num_workers"; None keeps those of the data.
        max_batches: Batches per stream and device, of images spread over the stream; None = all.
        dry_run: Whether to describe the run only.
        cache: Feature cache to read from, after recording what is missing.
        cache_dtype: Type of the features that are recorded.
        again: Start over, even if the same run was interrupted or is complete.
        seed: Seed of everything random.
        record: Entries of the record of the run: the resolved configuration, and which detectors were not selected.
        untrained: Whether to score the same data with random weights first, in the folder "untrained" of `out`.
    """

    backbone: str | nn.Module
    data: OODDataModule
    detectors: GivenDetectors | None
    out: Path
    trainer: Mapping[str, Any]
    options: Mapping[str, Any]
    head: str | None = None
    weights: str | None = "hub"
    faster: Mapping[str, Any] = field(default_factory=dict)
    loading: Mapping[str, Any] = field(default_factory=dict)
    max_batches: int | None = None
    dry_run: bool = False
    cache: Path | None = None
    cache_dtype: str = "float32"
    again: bool = False
    seed: int = 0
    record: Mapping[str, Any] = field(default_factory=dict)
    untrained: bool = False


def run_evaluation(asked: EvaluationOptions, console: Console | None = None) -> Path | None:
    """Make the module, predict once, print the table.

    Args:
        asked: What to evaluate.
        console: Prints the table. None = no output.

    Returns:
        The HTML page; None on all processes but the first, and for `dry_run`.

    Raises:
        InvalidArgumentError: `head` is given for a module, or `out` contains files that no run wrote.
        LoggingError: A logger failed; the table has been printed.
    """
    out, trainer = asked.out, asked.trainer
    if not asked.dry_run:
        _check_earlier(asked, console)
    data = asked.data.with_loading(**asked.loading)
    if asked.max_batches is not None:
        processes = int(trainer.get("devices", 1)) * int(trainer.get("num_nodes", 1))
        data = data.with_loading(max_images=asked.max_batches * data.batch_size * processes)
    module = _module(asked)
    if asked.dry_run:
        _describe(module, data, asked)
        return None
    record = dict(asked.record)
    if left_out := _left_out(asked):
        more = f"--detectors all adds {', '.join(readable_names()[key] for key in left_out)}"
        _say(console, f"No --detectors given: using all detectors that need no extra forward passes; {more}")
    if asked.max_batches is not None:
        record["dry_run"] = f"--max_batches {asked.max_batches}"
    if asked.untrained:
        record["untrained"] = _untrained(asked, data, console)
    if asked.cache is not None:
        check_recordable(asked.detectors, strict=bool(asked.options.get("strict")))
        say, dtype = partial(_say, console), asked.cache_dtype
        read = through_cache(module, data, asked.cache, dtype=dtype, trainer=trainer, seed=asked.seed, say=say)
        module, data, about = read
        record |= about
        trainer = {**trainer, "precision": "32-true"}  # nothing is computed that half precision would speed up
    options: dict[str, Any] = {"out": out, "trainer": trainer, "seed": asked.seed, "record": record}
    options |= {"resume": not asked.again, **asked.options}
    try:
        return predict_and_print(module, data, asked.detectors, console=console, **options)
    except RunIsCompleteError:
        _say(console, f"{out}: this run is already complete; pass --again to repeat it")
        if asked.untrained and is_first_process() and not Results.load(out).run.untrained:
            raise InvalidArgumentError(
                f"the run in {out} is complete, but was made without --untrained; pass --again to repeat it"
            ) from None
        return _report_complete(out, trainer.get("logger") or [], console)


def _left_out(asked: EvaluationOptions) -> Mapping[str, str]:
    """Detectors that were not selected, with the reasons."""
    entries: Mapping[str, Mapping[str, str]] = asked.record
    return entries.get("not_applicable", {})


def _untrained(asked: EvaluationOptions, data: OODDataModule, console: Console | None) -> dict[str, Any]:
    """Score the data with random weights, and return what the record of the run has of it."""
    out = asked.out / UNTRAINED
    _say(console, f"{out}: scoring the images with random weights before the run (--untrained)")
    module = _module(replace(asked, weights=None, cache=None))
    options = {**asked.options, "controls": False, "strict": False}
    trainer = {**asked.trainer, "logger": False}
    record = {"caveat": "This run is a control: its network has random weights (--untrained)."}
    detectors = copy.deepcopy(asked.detectors)
    how: dict[str, Any] = {"out": out, "trainer": trainer, "seed": asked.seed, "record": record}
    with suppress(RunIsCompleteError):
        predict_and_print(module, data, detectors, resume=not asked.again, **how, **options)
    return of_untrained(Results.load(out)) if is_first_process() else {}


def _describe(module: OODModule | RecordedModule, data: OODDataModule, asked: EvaluationOptions) -> None:
    """Print what the run would read and compute."""
    if not isinstance(module, OODModule):
        raise InvalidArgumentError("--dry_run requires a network and images, got recorded features; omit --dry_run")
    fitted = asked.options.get("fitted")
    detectors = name_detectors(asked.detectors) if asked.detectors is not None else load(fitted)[0] if fitted else {}
    accelerator = str(asked.trainer.get("accelerator", "auto"))
    device = "cuda" if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available() else "cpu"
    processes = int(asked.trainer.get("devices", 1)) * int(asked.trainer.get("num_nodes", 1))
    with quiet(), seeded(asked.seed):
        for line in describe_run(module, data, detectors, device=device, processes=processes):
            say(line)
    for line in unused_lines(_left_out(asked)):
        say(line)


def _check_earlier(asked: EvaluationOptions, console: Console | None) -> None:
    """Check the folder for the results, and report what an earlier run left in it."""
    out = asked.out
    if is_first_process():
        check_not_in_use(out)  # before the messages, which are wrong if another run is writing there
    is_replaced = check_folder(out, fitted=asked.options.get("fitted"))
    started = None if asked.again else extent(out / UNFINISHED)
    if started is not None:
        done = f"{started[0]} of {started[1]} data sets done"
        _say(console, f"{out}: found an unfinished run ({done}); it will be resumed if this run has the same settings")
    if is_replaced and (started is None or is_complete(out)):
        unless = "" if asked.again else ", unless the earlier run had the same settings"
        _say(console, f"{out} has results of an earlier run; this run replaces them{unless}")


def _report_complete(
    out: Path, loggers: pl.loggers.Logger | Sequence[pl.loggers.Logger], console: Console | None
) -> Path | None:
    """Print the results of a complete run and send them to the current loggers, which may not have them yet."""
    if not is_first_process():
        return None
    results = Results.load(out)
    if console is not None:
        print_outcome(results, console)
    if every := list(loggers) if isinstance(loggers, Sequence) else [loggers]:
        log_to_all(every, RunLog.of(results, partial(figures_of, results, True)))
    for logger in every:
        logger.finalize("success")  # to the Trainer, a run that is not repeated has failed
    return out / "report.html"


def _say(console: Console | None, text: str) -> None:
    if console is not None and is_first_process():
        console.print(Text(singular(text), style="dim"), soft_wrap=True)


def check_limits(
    limits: Sequence[Limit], data: OODDataModule, detectors: GivenDetectors | None, fitted: Path | None, *, tpr: float
) -> None:
    """Reject limits on names that a run will not have, before it starts.

    Raises:
        UnknownNameError: A detector, metric or data set is unknown.
    """
    if not limits:
        return
    chosen = load(fitted)[0] if detectors is None and fitted is not None else name_detectors(detectors or [])
    names, settings = [stream.name for stream in data.streams], Settings(tpr=tpr, prior=priors_of(limits))
    for limit in limits:
        limit.check_names([*chosen], names, settings)


def _module(asked: EvaluationOptions) -> OODModule | RecordedModule:
    backbone, head, weights = asked.backbone, asked.head, asked.weights
    if isinstance(backbone, OODModule | RecordedModule):
        for option, value, default in (("head", head, None), ("weights", weights, "hub")):
            if value != default:
                way_out = f"the backbone is already an OODModule; pass {option} to that OODModule instead"
                if isinstance(backbone, RecordedModule):
                    way_out = f"recorded features have no network; omit --{option}"
                raise InvalidArgumentError(f"{option}={value!r}: {way_out}")
        backbone.acceleration = backbone.acceleration.with_options(**asked.faster)
        return backbone
    task = f"loading {backbone}" if isinstance(backbone, str) else "preparing the network"
    with seeded(asked.seed), status(task):  # random weights follow the seed
        cached = asked.cache is not None and has_more_classes(asked.cache, asked.data)  # which is cut when it is read
        subset = None if cached else asked.data.class_subset or None
        return OODModule(**_arguments(backbone), head=head, weights=weights, class_subset=subset, **asked.faster)


def _arguments(backbone: str | nn.Module) -> dict[str, Any]:
    """Arguments of `OODModule` for a network, its name, or a model of a published table such as `ninco:ResNet50`."""
    table, _, model = backbone.partition(":") if isinstance(backbone, str) else ("", "", "")
    tables = published_tables() if model else {}
    return tables[table].network(model) if table in tables else {"backbone": backbone}
