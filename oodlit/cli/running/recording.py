"""The first half of `oodlit evaluate --cache`: what the cache lacks is recorded, so that the run can read all of it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from oodlit._lightning import pl
from oodlit.callbacks import FeatureCache
from oodlit.cli.console import progress
from oodlit.cli.running.outcome import is_first_process
from oodlit.cli.running.quiet import RunProgress, quiet
from oodlit.datamodules import OODDataModule
from oodlit.datamodules.stream import Stream
from oodlit.detectors import Detector
from oodlit.detectors.contract.fitting import name_detectors
from oodlit.errors import RequirementError
from oodlit.module import OODModule
from oodlit.recorded.cache_data import check_network, has_cache, split_by_cache
from oodlit.recorded.module import RecordedModule
from oodlit.recorded.store import read_manifest


def record_missing(
    module: OODModule | RecordedModule,
    data: OODDataModule,
    cache: Path,
    *,
    dtype: str,
    trainer: Mapping[str, Any],
    seed: int,
    say: Callable[[str], None],
) -> list[str]:
    """Record the streams that a cache lacks, in a prediction of its own; nothing if it holds all of them.

    Every process decides this before the prediction, in which the first one writes: all decide the same.

    Args:
        module: The network.
        data: The streams.
        cache: The folder; need not exist.
        dtype: How features are recorded.
        trainer: Arguments of Lightning's Trainer; its loggers are for the results.
        seed: Of everything random; the caller's random state is left as it was.
        say: Prints a line.

    Returns:
        Warnings, for the record of the run.
    """
    folder = cache.expanduser().absolute()
    manifest = read_manifest(folder)[0] if has_cache(folder) else None
    held, lacking, _ = split_by_cache(folder, manifest, data.streams, data.on_error)
    if not lacking:
        assert manifest is not None  # there is no set without it
        check_network(folder, manifest.how, module.fingerprint_with(data.transform_for(module)))
        say(f"--cache {cache}: {_names(held)} there; no image goes through the network")
        precision = str(trainer.get("precision", "32-true"))
        if other := _otherwise(manifest.how, dtype=dtype, precision=precision, data=data):
            say(f"--cache {cache}: it was recorded with {other}; that counts, since nothing is recorded now")
        return []
    with quiet() as warned, torch.random.fork_rng():
        torch.manual_seed(seed)
        recorder = FeatureCache(folder, dtype=dtype)
        with progress(shown=is_first_process()) as bars:
            shown = RunProgress(bars, doing="recording", then="closing the cache")
            runner = pl.Trainer(
                callbacks=[recorder, _Announcement(recorder, partial(_say_of, say, cache)), shown],
                **{**trainer, "enable_progress_bar": False, "logger": False},
            )
            runner.predict(module, data, return_predictions=False)
        return warned()


def check_recordable(detectors: Sequence[Detector] | Mapping[str, Detector] | None, *, strict: bool) -> None:
    """Refuse, before anything is recorded, a run that could not read its cache.

    Raises:
        RequirementError: A detector needs images or the network and `strict` is set, or all of them do.
    """
    if detectors is None:  # those of an earlier fit: to look at them, all that they keep would have to be read
        return
    chosen = name_detectors(detectors)
    beyond = [name for name, d in chosen.items() if d.required_needs & {"images", "hidden", "model"}]
    if beyond and (strict or len(beyond) == len(chosen)):
        raise RequirementError(
            f"--cache: {', '.join(beyond)} need images or the network, and a cache holds neither; leave them out, or"
            " run them without --cache"
        )


def _otherwise(how: Mapping[str, Any], *, dtype: str, precision: str, data: OODDataModule) -> str:
    """In what a cache was recorded in another way than is asked for, in words; empty = in nothing."""
    asked = {"dtype": dtype, "precision": precision}
    if (how.get("decoder", "workers") != "workers") != data.decode_on_device:
        asked["decoder"] = "that of the run's device" if data.decode_on_device else "workers"
    differing = {name: value for name, value in asked.items() if how.get(name, value) != value}
    recorded = {"decoder": "workers", **how}
    return ", ".join(f"{name} {recorded[name]}, not {value}" for name, value in differing.items())


class _Announcement(pl.Callback):
    """Says what is there and what is recorded, once it is known that the cache is of this network."""

    def __init__(self, recorder: FeatureCache, say: Callable[[str], None]) -> None:
        self.recorder, self.say = recorder, say

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.say(self.recorder.found)


def _say_of(say: Callable[[str], None], cache: Path, text: str) -> None:
    say(f"--cache {cache}: {text}")


def _names(streams: Sequence[Stream]) -> str:
    verb = "are" if len(streams) > 1 else "is"
    return f"{', '.join(stream.name for stream in streams)} {verb}"
