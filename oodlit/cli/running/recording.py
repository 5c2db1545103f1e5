"""`oodlit evaluate --cache`: record what the cache is missing, then read everything from it."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from oodlit._lightning import pl
from oodlit.base.errors import DataError, RequirementError
from oodlit.base.processes.rank import is_first_process
from oodlit.callbacks import FeatureCache
from oodlit.cli.console import progress
from oodlit.cli.running.quiet import Announcement, RunProgress, quiet, seeded
from oodlit.datamodules import OODDataModule
from oodlit.datamodules.stream_identity import workers_decoder
from oodlit.detectors.contract.fitting import GivenDetectors, name_detectors
from oodlit.module import OODModule
from oodlit.recorded.cache_data import RecordedCache, has_cache
from oodlit.recorded.data import RecordedData
from oodlit.recorded.module import RecordedModule

Say = Callable[[str], None]
"""Prints a line."""


def through_cache(
    module: OODModule | RecordedModule,
    data: OODDataModule,
    folder: Path,
    *,
    dtype: str,
    trainer: Mapping[str, Any],
    seed: int,
    say: Say,
) -> tuple[RecordedModule, RecordedData, dict[str, Any]]:
    """Return module and data that read a cache, after recording the streams that are missing from it.

    All processes reach the same decision before the first one writes. If the network and the cache have more classes
    than `data`, all classes are read and recorded, and the run gets those of `data`.

    Args:
        module: The network.
        data: The streams.
        folder: The folder of the cache; need not exist.
        dtype: Type of the features that are recorded.
        trainer: Arguments of Lightning's Trainer; its loggers receive results alone.
        seed: Seed of the recording; the caller's random state is restored.
        say: Prints a line.

    Returns:
        Module, data, and entries for the record of the run.
    """

    def tell(text: str) -> None:
        say(f"--cache {folder}: {text}")

    subset: dict[str, Any] = {}
    if data.class_subset and has_more_classes(folder, data) and not module.class_subset:
        subset = {"class_subset": data.class_subset, "dropped_as": data.dropped_as}
        data = data.with_all_classes()
    cache, warned = RecordedCache.read(folder) if has_cache(folder) else None, list[str]()
    names = [stream.name for stream in data.streams]
    opened = None
    if cache is not None and cache.names().issuperset(names):
        with suppress(DataError):  # recorded again, which reports a damaged stream, or skipped images
            opened = cache.open(module, data, **subset)
    if cache is None or opened is None:
        warned = _record(FeatureCache(folder, dtype=dtype), (module, data), trainer=trainer, seed=seed, say=tell)
        cache = RecordedCache.read(folder)
        opened = cache.open(module, data, **subset)
    else:
        tell(f"cache hit for {', '.join(names)}; the network will not run")
        asked = {"dtype": dtype, "precision": str(trainer.get("precision", "32-true"))}
        if differences := _differences(cache.manifest.how, asked, data):
            tell(f"the cache was recorded with {differences}; using the cache unchanged")
    return *opened, {"warnings": warned, "cache": {"folder": str(folder), **cache.settings}}


def has_more_classes(folder: Path, data: OODDataModule) -> bool:
    """Whether a folder has a cache of a network with more classes than the subset of the data."""
    head = RecordedCache.read(folder).head if has_cache(folder) else None
    return head is not None and head.num_classes > len(data.class_subset)


def _record(
    recorder: FeatureCache, run: tuple[Any, OODDataModule], *, trainer: Mapping[str, Any], seed: int, say: Say
) -> list[str]:
    """Record missing streams of module and data in a separate prediction; returns its warnings."""
    with quiet() as warned, seeded(seed):
        with progress(shown=is_first_process()) as bars:
            announcement = Announcement(lambda: recorder.found, say)
            shown = RunProgress(bars, doing="recording", then="closing the cache")
            options = {**trainer, "enable_progress_bar": False, "logger": False}
            pl.Trainer(callbacks=[recorder, announcement, shown], **options).predict(*run, return_predictions=False)
        return warned()


def check_recordable(detectors: GivenDetectors | None, *, strict: bool) -> None:
    """Reject detectors that cannot read a cache, before anything is recorded.

    Raises:
        RequirementError: A detector requires images or the network and `strict` is set, or all of them do.
    """
    if detectors is None:  # fitted ones: reading what they require would mean loading all their tensors
        return
    chosen = name_detectors(detectors)
    beyond = [name for name, d in chosen.items() if d.required_needs & {"images", "hidden", "model"}]
    if beyond and (strict or len(beyond) == len(chosen)):
        raise RequirementError(
            f"--cache: a cache contains neither images nor the network, so it cannot be used with"
            f" {', '.join(beyond)}; omit --cache, or leave {', '.join(beyond)} out of --detectors"
        )


def _differences(how: Mapping[str, Any], asked: Mapping[str, str], data: OODDataModule) -> str:
    """Describe the settings of a cache that differ from the requested ones; empty if there are none."""
    requested = dict(asked)
    if not data.decode_on_device:
        requested["decoder"] = workers_decoder(data.decode)
    elif how.get("decoder", "workers").startswith("workers"):
        requested["decoder"] = "the device of the run"
    recorded = {"decoder": "workers", **how}
    differing = {name: value for name, value in requested.items() if recorded.get(name, value) != value}
    return ", ".join(f"{name} {recorded[name]} (requested: {value})" for name, value in differing.items())
