"""Progress of a run, saved to disk so that the run can resume after an interruption.

The hidden folder `.progress` beside results or cache holds one small file for each stream and process, which is
replaced as a whole. Each kind of run decides what it keeps there: rows with scores, statistics of training streams, or
the parts of a cache that are on disk.
"""

import hashlib
import io
import json
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from oodlit._lightning import pl
from oodlit._version import __version__
from oodlit.base.atomic import remove, write_bytes, write_text
from oodlit.base.code_identity import code_digest
from oodlit.base.errors import DataError
from oodlit.base.json_files import read_json, to_plain
from oodlit.base.processes.distributed import Group, gather_objects
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.stream_identity import decoder_of, identity, other_fact
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.runs.choice import Choice

FOLDER, RUN = ".progress", "run.json"
TRAINING = "(training)"
"""Name under which the statistics of all training streams are saved."""
SHARE_OF_TIME = 0.05
"""Largest share of the run's time to spend on writing."""


_END = b"crc-32: "
"""Stands between the content of a file with tensors and the checksum of this content."""


def _loaded(data: bytes) -> Any:
    """Read tensors and compare their checksum; files of earlier versions have none."""
    content, end, checksum = data[: -len(_END) - 4], data[-len(_END) - 4 : -4], data[-4:]
    if end != _END:
        content = data
    elif zlib.crc32(content) != int.from_bytes(checksum, "big"):
        raise ValueError("the checksum differs")
    return torch.load(io.BytesIO(content), weights_only=True)


class Journal:
    """One file for each stream and process.

    Args:
        folder: Folder of the results or of the cache.
        suffix: ".pt" for entries with tensors, ".json" for plain values.
    """

    def __init__(self, folder: Path, suffix: str) -> None:
        self.folder, self.suffix = folder / FOLDER, suffix

    def files(self, process: int | None = None) -> list[Path]:
        """The files of one process, or of all."""
        if self.folder.is_symlink():
            raise DataError(f"{self.folder} is a link, not a folder that oodlit created; delete the link")
        return sorted(self.folder.glob(f"*{self.suffix}" if process is None else f"*-{process:04d}{self.suffix}"))

    def read(self, file: Path) -> Any:
        """The entry in a file.

        Raises:
            DataError: The file cannot be read.
        """
        try:
            return read_json(file, object) if self.suffix == ".json" else _loaded(file.read_bytes())
        except Exception as error:  # torch raises nearly anything
            raise DataError(
                f"{file} is damaged ({type(error).__name__}), so the run cannot resume; start over with resume=False"
                " (on the command line: --again)"
            ) from error

    def write(self, stream: str, process: int, entry: Mapping[str, Any]) -> None:
        """Write the entry of a stream and process; it replaces the earlier entry."""
        buffer = io.BytesIO()
        if self.suffix == ".json":
            buffer.write(json.dumps(entry).encode())
        else:
            torch.save(dict(entry), buffer)
            buffer.write(_END + zlib.crc32(buffer.getbuffer()).to_bytes(4, "big"))
        self.folder.mkdir(exist_ok=True)
        write_bytes(self._file(stream, process), buffer.getvalue())

    def drop(self, stream: str, process: int) -> None:
        """Remove the entry of a stream and process."""
        self._file(stream, process).unlink(missing_ok=True)

    def _file(self, stream: str, process: int) -> Path:
        name = hashlib.blake2b(stream.encode(errors="surrogatepass"), digest_size=8).hexdigest()
        return self.folder / f"{name}-{process:04d}{self.suffix}"


class Kept(NamedTuple):
    """Progress of one process in one stream.

    Args:
        batches: How many of its batches are in.
        is_over: Whether that is the whole of its share.
        state: What came of them.
    """

    batches: int
    is_over: bool
    state: dict[str, Any]


class Progress:
    """Saves the progress of one process.

    Args:
        folder: Folder of the results.
        key: What the run is, see `run_key`.
        cut: How streams are cut over processes and workers; a partial stream can only resume with the same.
        process: Number of this process.
        every_s: Least time between two writings, in seconds; longer where writing takes long. 0 = after every batch.
    """

    def __init__(
        self, folder: Path, *, key: Mapping[str, Any], cut: Mapping[str, int], process: int, every_s: float
    ) -> None:
        self.journal, self.process, self.every_s = Journal(folder, ".pt"), process, every_s
        self.folder = self.journal.folder
        self.key, self.cut = to_plain(key), to_plain(cut)
        self._last, self._pause = time.monotonic(), every_s

    @property
    def digest(self) -> str:
        """A short form of the key, for records."""
        return hashlib.blake2b(json.dumps(self.key, sort_keys=True).encode(), digest_size=16).hexdigest()

    def start(self, group: Group, *, resume: bool) -> dict[str, Kept]:
        """Return the progress of an earlier run with the same key, or delete it. All processes must call it.

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
            write_text(self.folder / RUN, json.dumps({"key": _without_settings(self.key), "cut": self.cut}))
        gather_objects(group, None)  # nobody writes before the folder is the new one
        return kept

    def is_due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() - self._last >= self._pause

    def keep(self, stream: str, kept: Kept) -> None:
        """Save the progress of this process in a stream."""
        start = time.monotonic()
        self.journal.write(stream, self.process, {"stream": stream, **kept._asdict()})
        self._last = time.monotonic()
        if self.every_s:
            self._pause = max(self.every_s, (self._last - start) / SHARE_OF_TIME)

    def drop(self, stream: str) -> None:
        """Delete the progress of this process in a stream."""
        self.journal.drop(stream, self.process)

    def clear(self) -> None:
        """Delete all progress, because the run is complete."""
        if self.process == 0:
            remove(self.folder)

    def _earlier(self) -> dict[str, int] | None:
        """How the earlier run was split into batches, if it had the same key."""
        try:
            found = read_json(self.folder / RUN, dict)
            return (
                dict(found["cut"]) if _is_same(_without_settings(found["key"]), _without_settings(self.key)) else None
            )
        except (FileNotFoundError, DataError, ValueError, KeyError, TypeError):
            return None

    def _load(self, earlier: Mapping[str, int]) -> dict[str, Kept]:
        """The progress that can be reused; if batches are formed differently, only finished streams."""
        if earlier["processes"] != self.cut["processes"]:
            return {}
        found = {one.pop("stream"): Kept(**one) for one in map(self.journal.read, self.journal.files(self.process))}
        return {s: kept for s, kept in found.items() if earlier == self.cut or (kept.is_over and s != TRAINING)}


def cut_of(trainer: pl.Trainer, datamodule: OODDataModule) -> dict[str, int]:
    """How streams are split across processes, workers and batches."""
    return {"processes": trainer.world_size, "num_workers": datamodule.num_workers, "batch_size": datamodule.batch_size}


def run_key(choice: Choice, datamodule: OODDataModule, trainer: pl.Trainer, streams: Sequence[Any]) -> dict[str, Any]:
    """Everything that the scores of a run depend on: runs with equal keys have equal scores."""
    decoder = decoder_of(datamodule.decode)
    return {
        "oodlit": __version__,
        "fingerprint": choice.fingerprint,
        "detectors": {
            name: {**detector_to_config(detector), "code": code_digest(map(type, detector.modules()))}
            | ({"content": detector.content} if detector.content else {})
            for name, detector in choice.detectors.items()
        },
        "kept": sorted(choice.kept),
        "earlier": None if choice.earlier is None else list(choice.earlier.__dict__.values()),
        "streams": {stream.name: identity(stream) for stream in streams},
        "on_error": datamodule.on_error,
        "precision": str(trainer.precision),
        "acceleration": _acceleration_of(trainer, datamodule),
        "limit": str(trainer.limit_predict_batches),
        # Only where they are set, so that earlier versions' runs can resume.
        **{name: value for name, value in (("decode", decoder), ("fit", choice.fit)) if value},
    }


def _without_settings(key: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the settings of detectors by a digest, which distinguishes runs without writing secrets."""
    detectors = key["detectors"]
    if isinstance(detectors, str):
        return dict(key)
    text = json.dumps(detectors, sort_keys=True).encode()
    return {**key, "detectors": hashlib.blake2b(text, digest_size=16).hexdigest()}


def _is_same(found: Any, key: Mapping[str, Any]) -> bool:
    """Whether two runs are the same; facts about streams that one of them did not record are ignored."""
    streams, known = key["streams"], found["streams"]
    if {**found, "streams": 0} != {**key, "streams": 0} or streams.keys() != known.keys():
        return False
    return not any(other_fact(known[name], facts) for name, facts in streams.items())


def _acceleration_of(trainer: Any, datamodule: OODDataModule) -> dict[str, Any]:
    """Options that speed up a run, and the kind of device if JPEGs are decoded on it, since pixels differ."""
    options: dict[str, Any] = trainer.lightning_module.acceleration.options
    return options | ({"decode_on_device": trainer.strategy.root_device.type} if datamodule.decode_on_device else {})
