"""How far a run has come on each process, kept on disk while it goes on, so that a run that was killed can go on.

In the hidden folder `.progress` of the results lie `run.json`, which says of what run, and one file a process and
stream: how many of its batches are in, and what came of them. Training streams leave statistics, others their rows.
"""

import hashlib
import inspect
import io
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from oodlit._lightning import pl
from oodlit._version import __version__
from oodlit.base.atomic import remove, write_bytes, write_text
from oodlit.base.distributed import Group, gather_objects
from oodlit.base.json_files import to_plain
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.identity import identity
from oodlit.detectors import Detector
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.errors import DataError
from oodlit.runs.choice import Choice

FOLDER, RUN = ".progress", "run.json"
TRAINING = "(training)"
"""In place of the name of a stream: the statistics of all training streams."""
SHARE_OF_TIME = 0.05
"""Largest share of the time that is spent on writing."""


class Kept(NamedTuple):
    """What one process had of one stream.

    Args:
        batches: How many of its batches are in.
        is_over: Whether that is the whole of its share.
        state: What came of them.
    """

    batches: int
    is_over: bool
    state: dict[str, Any]


class Progress:
    """Keeps the progress of one process.

    Args:
        folder: Folder of the results.
        key: What the run is, see `run_key`.
        cut: How streams are cut over processes and workers; a stream that was not over can only go on with the same.
        process: Number of this process.
        every_s: Least time between two writings, in seconds; longer where writing takes long. 0 = after every batch.
    """

    def __init__(
        self, folder: Path, *, key: Mapping[str, Any], cut: Mapping[str, int], process: int, every_s: float
    ) -> None:
        self.folder, self.process, self.every_s = folder / FOLDER, process, every_s
        self.key, self.cut = to_plain(key), to_plain(cut)
        self._last, self._pause = time.monotonic(), every_s

    @property
    def digest(self) -> str:
        """A short form of the key, for records."""
        return hashlib.blake2b(json.dumps(self.key, sort_keys=True).encode(), digest_size=16).hexdigest()

    def start(self, group: Group, *, resume: bool) -> dict[str, Kept]:
        """Find what an earlier run of the same key has left, or remove it. All processes call it.

        Returns:
            By name of the stream, what is this process's of it.

        Raises:
            DataError: A file cannot be read.
        """
        earlier = self._earlier() if resume else None
        kept = {} if earlier is None else self._load(earlier)
        # Cut otherwise, a batch has another place: nobody could go on in a stream that is not over for all.
        by_all = frozenset.intersection(*gather_objects(group, frozenset(kept)))  # all have read
        if earlier is not None and earlier != self.cut:
            kept = {stream: one for stream, one in kept.items() if stream in by_all}
        if self.process == 0:
            if not kept and (earlier is None or earlier["processes"] != self.cut["processes"]):
                remove(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.folder / RUN, json.dumps({"key": self.key, "cut": self.cut}))
        gather_objects(group, None)  # nobody writes before the folder is the new one
        return kept

    def is_due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() - self._last >= self._pause

    def keep(self, stream: str, kept: Kept) -> None:
        """Write what this process has of a stream."""
        start = time.monotonic()
        self._write(stream, kept)
        self._last = time.monotonic()
        if self.every_s:
            self._pause = max(self.every_s, (self._last - start) / SHARE_OF_TIME)

    def drop(self, stream: str) -> None:
        """Forget what this process has of a stream."""
        self._path(stream).unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget everything: the run has come to its end."""
        if self.process == 0:
            remove(self.folder)

    def _earlier(self) -> dict[str, int] | None:
        """How the earlier run was cut, if it was this one."""
        try:
            found = json.loads((self.folder / RUN).read_text(encoding="utf-8"))
            return dict(found["cut"]) if found["key"] == self.key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _load(self, earlier: Mapping[str, int]) -> dict[str, Kept]:
        """What is left of the streams; cut otherwise now, only of those that were over, and of no fit."""
        if earlier["processes"] != self.cut["processes"]:
            return {}
        found = [self._read(path) for path in sorted(self.folder.glob(f"*-{self.process:04d}.pt"))]
        return {s: kept for s, kept in found if earlier == self.cut or (kept.is_over and s != TRAINING)}

    def _read(self, path: Path) -> tuple[str, Kept]:
        try:
            loaded = torch.load(path, weights_only=True)
            return loaded["stream"], Kept(loaded["batches"], loaded["is_over"], loaded["state"])
        except Exception as error:  # torch raises nearly anything
            raise DataError(f"{path}: damaged ({type(error).__name__}); start without resuming") from error

    def _write(self, stream: str, kept: Kept) -> None:
        buffer = io.BytesIO()
        torch.save({"stream": stream, **kept._asdict()}, buffer)
        write_bytes(self._path(stream), buffer.getvalue())

    def _path(self, stream: str) -> Path:
        name = hashlib.blake2b(stream.encode(errors="surrogatepass"), digest_size=8).hexdigest()
        return self.folder / f"{name}-{self.process:04d}.pt"


def run_key(choice: Choice, datamodule: OODDataModule, trainer: pl.Trainer, streams: Sequence[Any]) -> dict[str, Any]:
    """All that the scores of a run depend on: two runs with one key have the same."""
    return {
        "oodlit": __version__,
        "fingerprint": choice.fingerprint,
        "detectors": {
            name: {**detector_to_config(detector), "code": _code_of(detector)}
            for name, detector in choice.detectors.items()
        },
        "kept": sorted(choice.kept),
        "earlier": None if choice.earlier is None else list(choice.earlier.__dict__.values()),
        "streams": {stream.name: identity(stream) for stream in streams},
        "on_error": datamodule.on_error,
        "precision": str(trainer.precision),
        "acceleration": _acceleration_of(trainer, datamodule),
        "limit": str(trainer.limit_predict_batches),
    }


def _acceleration_of(trainer: Any, datamodule: OODDataModule) -> dict[str, Any]:
    """Faster ways to the scores; JPEGs have other pixels on other kinds of devices."""
    options: dict[str, Any] = trainer.lightning_module.acceleration.options
    return options | ({"decode_on_device": trainer.strategy.root_device.type} if datamodule.decode_on_device else {})


def _code_of(detector: Detector) -> str:
    """A digest of the files of detectors that are none of oodlit's own: they may have been mended in between."""
    digest = hashlib.blake2b(digest_size=8)
    kinds = {type(module) for module in detector.modules() if isinstance(module, Detector)}
    foreign = sorted(
        (kind for kind in kinds if not kind.__module__.startswith("oodlit.")), key=lambda k: k.__qualname__
    )
    for kind in foreign:
        try:
            digest.update(inspect.getsource(inspect.getmodule(kind) or kind).encode())
        except (OSError, TypeError):  # written in a notebook or a console
            digest.update(repr(sorted(vars(kind))).encode())
    return digest.hexdigest() if foreign else ""
