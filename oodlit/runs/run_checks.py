"""Checks before the first batch: packages, strategy, memory."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oodlit._lightning import check_package, pl
from oodlit.backbones.backbone import Backbone
from oodlit.base.errors import DataError, InvalidArgumentError, RequirementError
from oodlit.base.outputs import BackboneFacts, Outputs
from oodlit.base.processes.distributed import Group, gather_objects, is_distributed
from oodlit.base.text.warn import warn
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.stream_identity import identity
from oodlit.detectors import Detector
from oodlit.detectors.contract.fitting import estimate_bytes
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.detectors.statistics import FeatureBank, Statistics
from oodlit.detectors.statistics.feature_bank import Copies

SHARDED = (pl.strategies.DeepSpeedStrategy, pl.strategies.FSDPStrategy, pl.strategies.ModelParallelStrategy)
MANY_BYTES = 1_000_000_000
"""Size of the outputs kept by `trainer.predict(return_predictions=True)` above which a warning is shown."""


class Parts(NamedTuple):
    """Classes that a kind of run expects: module, data module and outputs.

    Args:
        module: Of the LightningModule.
        wrapper: Class that makes such a module of a network.
        data: Of the data module.
        outputs: Of what `predict_step` returns.
        example: How to make such a data module, as code.
    """

    module: type
    wrapper: str
    data: type
    outputs: type
    example: str


_OWN = 'OODDataModule([Stream("val", Role.ID, DatasetSource(dataset)), ...])'
IMAGES = Parts(Backbone, "OODModule", OODDataModule, Outputs, _OWN)


def check_packages(
    owner: str, trainer: object, module: object, datamodule: object, parts: Parts = IMAGES
) -> tuple[pl.Trainer, Any, Any]:
    """Check the classes of trainer, module and data module, and return the three objects.

    Raises:
        InvalidArgumentError: A part is of another class, or of another Lightning package.
    """
    for part, kind, what in (
        (trainer, pl.Trainer, "a Trainer"),
        (module, pl.LightningModule, "a module"),
        (datamodule, pl.LightningDataModule, "a data module"),
    ):
        check_package(owner, part, kind, what)
    if not isinstance(trainer, pl.Trainer):
        raise InvalidArgumentError(f"{owner}: expected a pl.Trainer, got a {type(trainer).__name__}")
    if not isinstance(module, parts.module):
        raise InvalidArgumentError(
            f"{owner}: expected an {parts.wrapper}, got a {type(module).__name__}; wrap the network:"
            f" {parts.wrapper}(network)"
        )
    if not isinstance(datamodule, parts.data):
        given = "no data module" if datamodule is None else f"a {type(datamodule).__name__}"
        raise InvalidArgumentError(
            f"{owner}: expected an {parts.data.__name__}, got {given}; call trainer.predict(module, {parts.example})"
        )
    return trainer, module, datamodule


def check_images(batch: Any, like: Any, stream: str) -> None:
    """Refuse images that differ in kind from the ID stream, before the network receives them.

    Args:
        batch: What the loader gives.
        like: Images of the ID stream, as a batch has them.
        stream: Name of the stream of the batch.

    Raises:
        DataError: Number of axes or channels differs, or integers stand for floating-point values.
    """
    images = batch["image"]
    kinds = [(i.ndim, tuple(i.shape[1:-2]), i.is_floating_point()) for i in (images, like)]
    if len(images) and kinds[0] != kinds[1]:
        raise DataError(
            f"data set {stream!r}: the images of the batch that begins with {batch['key'][0]!r} have shape"
            f" {tuple(images.shape[1:])} and dtype {images.dtype}, but the ID set has {tuple(like.shape[1:])}"
            f" and {like.dtype}; use the same transform for all data sets"
        )


def check_outputs(owner: str, module: object, outputs: object, parts: Parts) -> Any:
    """Check the class of the value that `predict_step` returned.

    Raises:
        InvalidArgumentError: It is of another class.
    """
    if not isinstance(outputs, parts.outputs):
        raise InvalidArgumentError(
            f"predict_step of {type(module).__name__} returned a {type(outputs).__name__}; {owner} requires the"
            f" {parts.outputs.__name__} that {parts.wrapper}.predict_step returns"
        )
    return outputs


def check_train_size(detectors: Sequence[Detector], num_train: int) -> None:
    """Check before the run that there are enough training images for every detector.

    Raises:
        RequirementError: Names the detector and both numbers.
    """
    for detector in (part for d in detectors for part in d.modules() if isinstance(part, Detector)):
        if detector.min_train > num_train:
            raise RequirementError(
                f"{detector!r} requires at least {detector.min_train} training images, got {num_train}; lower"
                " settings of the detector such as k or dim, or add training images"
            )


def check_memory(
    statistics: Statistics, facts: BackboneFacts, detectors: Sequence[Detector] = (), *, processes: int = 1
) -> int:
    """Check that there is enough memory for the fit; return the bytes that each process requires.

    Args:
        statistics: What is accumulated; in the end every process holds the union.
        facts: Width, classes and number of training images.
        detectors: Those that are fitted.
        processes: Processes of the run on this machine; they share its memory.

    Raises:
        RequirementError: All processes together need more than this machine has.
    """
    needed, available = estimate_bytes(statistics, facts, detectors), _memory_bytes("MemAvailable")
    if available is not None and needed * processes > available:
        parts = {type(s).__name__: estimate_bytes(Statistics([s]), facts) for s in statistics.values()}
        parts |= {repr(d): kept for d in detectors if (kept := estimate_bytes(Statistics(), facts, [d]))}
        sizes = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in parts.items())
        shared = f" in each of {processes} processes on this machine" if processes > 1 else ""
        fewer = ", or use fewer processes" if processes > 1 else ""
        raise RequirementError(
            f"the training statistics require {needed / 1e9:.2f} GB{shared} ({sizes}), but {available / 1e9:.2f} GB are"
            f" free; set bank_size of detectors that have this setting (such as KNN), or remove detectors with large"
            f" statistics{fewer}"
        )
    return needed


def place_bank(statistics: Statistics, facts: BackboneFacts, trainer: pl.Trainer, copies: Copies) -> str:
    """Choose whether each process or each machine holds a copy of the bank of training images.

    Returns:
        The choice as text; empty where there is no bank, or one process.
    """
    if FeatureBank not in statistics:
        return ""
    return statistics[FeatureBank].place(
        copies,
        width=facts.width,
        num_train=facts.num_train,
        processes=trainer.world_size,
        sharing=trainer.num_devices,
        memory=_memory_bytes("MemTotal"),  # unlike what is free, the same for all processes
    )


def check_alone(owner: pl.Callback, trainer: pl.Trainer) -> None:
    """Refuse a second callback of the same kind: both would set the outputs of the module and the streams to read.

    Raises:
        InvalidArgumentError: There are several.
    """
    others = [callback for callback in trainer.callbacks if isinstance(callback, type(owner))]  # type: ignore[attr-defined]
    if len(others) > 1:
        name = type(owner).__name__
        raise InvalidArgumentError(
            f"the Trainer has {len(others)} {name} callbacks, but only one is allowed; pass all detectors to one"
            f" {name}, and use results.recompute(...) for other settings of the metrics"
        )


def check_strategy(owner: str, strategy: pl.strategies.Strategy, *, loader: str = "") -> None:
    """Refuse strategies that shard the network, or whose processes end before the results can be used.

    Args:
        owner: Name of the callback.
        strategy: Of the Trainer.
        loader: Name of the class that loads results, where they are kept in memory alone.

    Raises:
        InvalidArgumentError: The strategy shards the weights, or starts processes that end with the run while there is
            no output folder.
    """
    if isinstance(strategy, SHARDED):
        raise InvalidArgumentError(
            f"strategy {type(strategy).__name__} shards the weights, but every process must hold the whole"
            " network; use strategy='ddp', or 'auto' with one device"
        )
    if loader and "MultiProcessing" in type(strategy.launcher).__name__:
        raise InvalidArgumentError(
            "the processes of ddp_spawn, ddp_fork and ddp_notebook end with the run, and the results in their memory"
            f" would be lost; pass output_dir to {owner}, and read the results with {loader}.load"
        )


def warn_of_many_predictions(needed: int) -> None:
    """Warn if `trainer.predict(return_predictions=True)` would keep very large outputs in memory."""
    if needed > MANY_BYTES:
        warn(
            f"trainer.predict keeps the outputs of all images in memory ({needed / 1e9:.1f} GB per process),"
            " although the results do not require the outputs; pass return_predictions=False to trainer.predict"
        )


def warn_of_skipped(skipped: Sequence[tuple[str, str]]) -> None:
    """Warn of images that could not be used."""
    if skipped:
        key, reason = skipped[0]
        warn(f"skipped images: {len(skipped)} (first: {key}, {reason}); results.run.skipped lists all of them")


def _memory_bytes(name: str) -> int | None:
    meminfo = Path("/proc/meminfo")
    found = re.search(rf"^{name}:\s*(\d+)", meminfo.read_text(), re.MULTILINE) if meminfo.is_file() else None
    return int(found[1]) * 1024 if found else None


def check_same_run(group: Group, streams: Iterable[Stream], detectors: Mapping[str, Detector] | None = None) -> None:
    """Refuse processes that were given different data or detectors: each would compute a part of another run.

    Args:
        group: The processes, which all call this.
        streams: All streams of the run.
        detectors: The detectors by name.

    Raises:
        InvalidArgumentError: Something differs; names it.
    """
    if not is_distributed():
        return
    facts = {f"data set {s.name!r}: {fact}": value for s in streams for fact, value in identity(s).items()}
    facts |= {
        f"detector {name!r}": json.dumps(detector_to_config(detector)) for name, detector in (detectors or {}).items()
    }
    first, *others = gather_objects(group, facts)
    differ = {name for one in others if list(one) != list(first) for name in ("the names or their order",)}
    differ |= {n for one in others for n in first if "" not in (a := first[n], b := one.get(n, a)) and a != b}
    if differ:
        raise InvalidArgumentError(
            f"the processes of this run were given different data or detectors ({', '.join(sorted(differ)[:5])})."
            " Every process must create the same data and detectors: sort file names, and do not rely on the iteration"
            " order of Python sets"
        )
