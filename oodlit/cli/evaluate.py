"""`oodlit evaluate`: one run, described by a YAML file and options."""

from pathlib import Path
from typing import Annotated, Any, Literal

from oodlit.cli.command import missing_text
from oodlit.errors import UsageError


def _types() -> dict[str, Any]:
    from torch import nn

    from oodlit._lightning import pl
    from oodlit.datamodules import OODDataModule
    from oodlit.detectors import Detector

    several = list[Detector] | dict[str, Detector] | None
    loggers = list[pl.loggers.Logger] | pl.loggers.Logger | None
    return {"backbone": str | nn.Module, "data": OODDataModule, "detectors": several, "logger": loggers}


def evaluate(
    *,
    backbone: Annotated[Any, _types] = None,
    data: Annotated[Any, _types] = None,
    detectors: Annotated[Any, _types] = None,
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
    batch_size: int | None = None,
    num_workers: int | None = None,
    tpr: float = 0.95,
    rule: Literal["attained", "interpolated"] = "attained",
    strict: bool = False,
    again: bool = False,
    fail_if: list[str] | None = None,
    logger: Annotated[list[Any] | None, _types] = None,
    seed: int = 0,
    resolved_config: str = "",
) -> int:
    """Score a backbone with detectors on data sets.

    Data is streamed through the backbone once; results and one HTML page are written. Classes are given as
    class_path and init_args; those of oodlit by their name alone.

    Args:
        backbone: a timm name such as resnet50, or class_path and init_args of an nn.Module or OODModule
        data: class_path and init_args of an OODDataModule, such as ImageNetBenchmark
        detectors: a list of detectors: names, or class_path and init_args; or a mapping of names to them; with
            features, none = all that apply
        fitted: folder with fitted detectors of an earlier run (its out/fitted), in place of detectors; no training
            images are read then
        features: a YAML file that names files of features and logits, in place of backbone and data; see
            docs/features.md
        cache: a folder of features: what it lacks is recorded there, then all is read from there, in any run
        cache_dtype: how they are recorded
        out: folder for results and the page; those of another run there are replaced
        head: name of the final linear layer; found by itself for timm's networks
        weights: a checkpoint file; for a timm name also "hub" or "none" (random weights)
        accelerator: auto, cpu or gpu
        devices: processes of a machine, one per device
        num_nodes: machines that the command is started on
        bank: what holds a copy of KNN's training images: each process, each machine, or by size
        precision: of the forward pass; scores are formed in float32 at least
        channels_last: layout for convolutions in 16 bits on a GPU; verified
        compile: a mode of torch.compile; verified
        max_batches: a trial: so many batches per stream and device, of images spread over it
        batch_size: images per batch and device, not the data's own
        num_workers: reading processes per device, not the data's own
        tpr: share of ID images that the threshold keeps
        rule: how the threshold is taken
        strict: stop if a detector does not apply; else it is left out
        again: start anew; else a run that was killed goes on, and one that came to its end is not repeated
        fail_if: a limit, "DETECTOR: METRIC [on DATASET[/CLASS]] > NUMBER"; can be given several times; the exit code is
            1 if a value crosses one, see "oodlit guard --help"
        logger: tensorboard, wandb, mlflow or csv, in oodlit-logs; or class_path and init_args of Lightning's; can be
            given several times; see docs/loggers.md
        seed: of everything random, such as MC-dropout
        resolved_config: all of the above as YAML; filled in by the command line
    """
    for name, value, least in (
        ("max_batches", max_batches, 1),
        ("batch_size", batch_size, 1),
        ("num_workers", num_workers, 0),
        ("devices", devices, 1),
        ("num_nodes", num_nodes, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"--{name} {value}: at least {least} is needed")
    if features is not None and (backbone is not None or data is not None or cache is not None):
        raise UsageError("--features takes the place of --backbone, --data and --cache; leave these out")
    lacking = [name for name, value in (("backbone", backbone), ("data", data)) if value is None]
    if features is None and lacking:
        raise UsageError(missing_text([f"--{name}" for name in lacking]))
    if (detectors is None) == (fitted is None) and not (features is not None and detectors is None):
        both = ", not both; if the detectors stand in the file, add --detectors null"
        raise UsageError("either detectors or --fitted is needed" + (both if fitted is not None else ""))
    from oodlit.cli.console import console, say
    from oodlit.cli.guard import hold
    from oodlit.cli.running.prediction import check_limits, run_evaluation
    from oodlit.detectors.contract.every import every_detector
    from oodlit.recorded.description import read_description
    from oodlit.results import Results
    from oodlit.results.limits import Limit

    if features is not None:
        backbone, data = read_description(features)
        if detectors is None and fitted is None:
            detectors, _ = every_detector()
    limits = [Limit.of(text) for text in fail_if or ()]
    check_limits(limits, data, detectors, fitted, tpr=tpr)

    page = run_evaluation(
        backbone,
        data,
        detectors,
        out=out,
        head=head,
        weights=None if weights == "none" else weights,
        faster={
            **({"channels_last": True} if channels_last else {}),
            **({"compile": compile} if compile != "no" else {}),
        },
        trainer={
            "accelerator": accelerator,
            "devices": devices,
            "num_nodes": num_nodes,
            "precision": {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}[precision],
            "logger": logger or False,
        },
        loading={"batch_size": batch_size, "num_workers": num_workers},
        max_batches=max_batches,
        cache=cache,
        cache_dtype=cache_dtype,
        again=again,
        evaluation={"tpr": tpr, "rule": rule, "strict": strict, "fitted": fitted, "bank": bank},
        seed=seed,
        config=resolved_config,
        console=console(),
    )
    if page is not None:
        say(f"\nResults: {out}\nReport:  {page}")
        return hold(Results.load(out), limits) if limits else 0
    return 0
