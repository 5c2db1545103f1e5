"""`oodlit evaluate`: one run, described by a YAML file and options."""

from pathlib import Path
from typing import Annotated, Any, Literal

from oodlit.base.errors import UsageError
from oodlit.cli.command import missing_text, naming_options

HEADINGS = {
    "evaluate": {
        "Data": ("data", "benchmark", "root", "incomplete", "features", "cache", "cache_dtype", "batch_size"),
        "Network": ("backbone", "head", "weights", "precision", "channels_last", "compile"),
        "Detectors": ("detectors", "fitted", "strict", "bank", "tpr", "rule", "controls", "untrained", "fail_if"),
        "Run": ("accelerator", "devices", "num_nodes", "num_workers", "max_batches", "dry_run", "seed", "again"),
    }
}


def _types() -> dict[str, Any]:
    from torch import nn

    from oodlit._lightning import pl
    from oodlit.datamodules import OODDataModule
    from oodlit.detectors import Detector

    several = Literal["all"] | list[Detector] | dict[str, Detector] | None
    loggers = list[pl.loggers.Logger] | pl.loggers.Logger | None
    return {"backbone": str | nn.Module, "data": OODDataModule, "detectors": several, "logger": loggers}


def evaluate(
    *,
    backbone: Annotated[Any, _types] = None,
    data: Annotated[Any, _types] = None,
    benchmark: str | None = None,
    root: Path = Path(),
    incomplete: bool = False,
    detectors: Annotated[list[Any] | str | None, _types] = None,
    fitted: Path | None = None,
    features: Path | None = None,
    cache: Path | None = None,
    cache_dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    out: Path = Path("oodlit-results"),
    head: str | None = None,
    weights: str = "hub",
    accelerator: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    bank: Literal["auto", "process", "machine"] = "auto",
    precision: Literal["32", "bf16", "16"] = "32",
    channels_last: bool = False,
    compile: Literal["no", "default", "reduce-overhead", "max-autotune"] = "no",
    max_batches: int | None = None,
    dry_run: bool = False,
    batch_size: int | None = None,
    num_workers: int | None = None,
    tpr: float = 0.95,
    rule: Literal["attained", "interpolated"] | None = None,
    controls: bool = False,
    untrained: bool = False,
    strict: bool = False,
    again: bool = False,
    fail_if: list[str] | None = None,
    logger: Annotated[list[Any] | None, _types] = None,
    seed: int = 0,
    resolved_config: str = "",
) -> int:
    """Score a backbone with detectors on data sets.

    Args:
        backbone: timm name, model of a paper (ninco:ResNet50), or class
        data: OODDataModule class, such as ImageNetBenchmark
        benchmark: name from 'oodlit list benchmarks', instead of --data
        root: folder with the data sets of the benchmark (default: .)
        incomplete: use the sets and images of the benchmark that exist
        detectors: KNN,MSP or all (default: all without extra passes)
        fitted: fitted detectors of an earlier run: its folder OUT/fitted
        features: YAML file that lists recorded features; no network runs
        cache: folder of recorded features; missing features are added
        cache_dtype: float32, float16 or bfloat16
        out: folder for results and page (default: oodlit-results)
        head: final linear layer (default: detected automatically)
        weights: checkpoint file, hub, or none for random (default: hub)
        accelerator: auto, cpu or gpu (default: auto)
        devices: number of processes per machine (default: 1)
        num_nodes: number of machines (default: 1)
        bank: one KNN bank per: process, machine
        precision: forward-pass precision: 32, bf16 or 16
        channels_last: faster memory layout for 16 bits; outputs are verified
        compile: torch.compile mode, such as default or max-autotune
        max_batches: trial run: use N batches per data set and device
        dry_run: show first images, memory and time; score nothing
        batch_size: images per batch and device (default: as set in --data)
        num_workers: worker processes (default: as set in the data module)
        tpr: share of ID images that are accepted
        rule: threshold: attained (an ID score), or interpolated (ninco)
        controls: check if detectors react to novelty or to shift
        untrained: also run with random weights (implies --controls)
        strict: fail if a detector is not applicable (default: skip it)
        again: start over (default: resume an interrupted run)
        fail_if: fail if results cross this limit (see oodlit guard --help)
        logger: tensorboard, wandb, mlflow, csv or a class; repeatable
        seed: random seed (default: 0)
        resolved_config: the configuration as YAML, from the command line
    """
    _check(given := dict(locals()))
    from oodlit.cli.console import console, say
    from oodlit.cli.guard import check
    from oodlit.cli.running.prediction import EvaluationOptions, check_limits, run_evaluation
    from oodlit.detectors.contract.every import every_detector
    from oodlit.results.finished import load_complete
    from oodlit.results.limits import Limit

    every = detectors == "all" or (detectors is None and fitted is None)
    backbone, data = _network_and_data(given)
    chosen, left_out = every_detector(one_pass=(detectors, features) == (None, None)) if every else (detectors, {})
    check_limits(limits := [Limit.of(text) for text in fail_if or ()], data, chosen, fitted, tpr=tpr)
    asked = EvaluationOptions(
        *(backbone, data, chosen, out, _trainer(given)),
        options=_detection(given),
        faster=_faster(given),
        loading={name: given[name] for name in ("batch_size", "num_workers")},
        record={"config": resolved_config, "every_detector": every, "not_applicable": left_out},
        **_run_options(given),
    )
    if page := run_evaluation(asked, console()):
        say(f"\nResults: {out}\nReport:  {page}")
    return check(load_complete(out), limits) if limits and page else 0


_INSTEAD = {"backbone": "backbone", "data": "benchmark"}
"""Option that replaces another one."""


def _check(given: dict[str, Any]) -> None:
    """Check numbers, and which options are given together."""
    for name in ("max_batches", "batch_size", "num_workers", "devices", "num_nodes"):
        least = 0 if name == "num_workers" else 1
        if given[name] is not None and given[name] < least:
            raise UsageError(f"--{name} must be at least {least}, got {given[name]}")
    _check_sources(given)
    _check_untrained(given)
    for one, other in (("data", "benchmark"), ("detectors", "fitted")):
        if given[one] is not None and given[other] is not None:
            raise UsageError(
                f"pass --{one} or --{other}, not both; if the configuration file has {one}, add --{one} null"
            )


def _check_sources(given: dict[str, Any]) -> None:
    """Check which of network, data, benchmark, and recorded features are given."""
    if given["features"] is not None:
        extra = [f"--{name}" for name in ("backbone", "data", "benchmark", "cache") if given[name] is not None]
        extra += [f"--{name}" for name in _faster(given)] + (["--dry_run"] if given["dry_run"] else [])
        if extra:
            raise UsageError(f"--features replaces the network and the images; omit {', '.join(extra)}")
    elif missing := [name for name in ("backbone", "data") if given[name] is None and given[_INSTEAD[name]] is None]:
        raise UsageError(missing_text([f"--{name}" for name in missing]))
    if given["incomplete"] and given["benchmark"] is None:
        raise UsageError("--incomplete requires --benchmark; with --data, use --data.complete=false instead")


def _check_untrained(given: dict[str, Any]) -> None:
    """Check that the network can be built again, with random weights."""
    if given["untrained"] and (extra := [f"--{name}" for name in ("features", "fitted") if given[name] is not None]):
        raise UsageError(f"--untrained fits new detectors to a network with random weights; omit {' and '.join(extra)}")
    if given["untrained"] and not isinstance(given["backbone"], str):
        raise UsageError(
            "--untrained builds the network a second time, without its weights: expected --backbone to be a timm name,"
            " or a dotted path such as my_package.MyNet (then pass the trained weights with --weights FILE), got"
            f" {type(given['backbone']).__name__}"
        )


def _network_and_data(given: dict[str, Any]) -> tuple[Any, Any]:
    """Network and data as given, of a description of features, or of a benchmark."""
    if given["features"] is not None:
        from oodlit.recorded.from_arrays import read_description

        return read_description(given["features"])
    if given["benchmark"] is None:
        return given["backbone"], given["data"]
    from oodlit.datamodules import Benchmark

    with naming_options({"complete=False": "--incomplete"}):
        return given["backbone"], Benchmark(given["benchmark"], given["root"], complete=not given["incomplete"])


def _detection(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `OODDetection`."""
    options = {name: given[name] for name in ("tpr", "rule", "strict", "fitted", "bank")}
    return options | {"controls": given["controls"] or given["untrained"]}


def _run_options(given: dict[str, Any]) -> dict[str, Any]:
    """Options of the run."""
    names = ("head", "max_batches", "dry_run", "cache", "cache_dtype", "again", "seed", "untrained")
    return {name: given[name] for name in names} | {"weights": None if given["weights"] == "none" else given["weights"]}


def _trainer(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of Lightning's Trainer."""
    options = {name: given[name] for name in ("accelerator", "devices", "num_nodes")}
    precision = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}[given["precision"]]
    return {**options, "precision": precision, "logger": given["logger"] or False}


def _faster(given: dict[str, Any]) -> dict[str, Any]:
    """Requested options that make a network faster."""
    return {name: given[name] for name in ("channels_last", "compile") if given[name] not in (False, "no")}
