"""FeatureCache: record the network's outputs for every image once, so that later runs do not need the network."""

from pathlib import Path
from typing import Any

from oodlit._lightning import pl
from oodlit.base.checks import check_choice
from oodlit.base.errors import InvalidArgumentError
from oodlit.callbacks.detection import OODDetection
from oodlit.datamodules.stream_identity import workers_decoder
from oodlit.recorded.module import RecordedModule
from oodlit.recorded.store import DTYPES
from oodlit.runs.choice import probe
from oodlit.runs.features.recorder import FeaturePass, FeatureRecorder
from oodlit.runs.features.recording import Recording
from oodlit.runs.journal import cut_of
from oodlit.runs.run_checks import IMAGES, check_strategy
from oodlit.runs.shell import RunCallback
from oodlit.scoring.clock import Clock


class FeatureCache(RunCallback):
    """Keep features, logits, labels, groups and keys of every image that a prediction sees.

    Without `OODDetection`, the callback runs a recording pass: it skips streams that are complete in the cache, resumes
    partial ones, and adds missing ones. Beside `OODDetection` it records what that run reads. Every process writes its
    own part; memory is bounded, and what is on disk survives whatever happens later.

    Args:
        folder: Folder of the cache; created if it does not exist.
        dtype: "float32" (default: scores from the cache are those of the network), "float16" or "bfloat16", which take
            half the space; the largest difference is in the manifest, as `loss`.
        keep_every_s: Longest time until a batch is on disk, in seconds; default 60. 0 = every batch is a file.

    Attributes:
        plan: What a recording pass asks of module and data module; None outside of one.
        found: Which streams are already recorded and which will be, as text; empty before `setup`.

    Raises:
        InvalidArgumentError: `dtype` is unknown, the run omits a stream or a part of one, another run writes to the
            folder, or a value is too large for float16.
        FingerprintError: The folder contains a recording of another network or other data, or with another dtype,
            precision or decoder; the message names the difference.
        DataError: Images are missing at the end of the recording, or were recorded twice.

    Example:
        >>> FeatureCache("cache", dtype="bfloat16")
        FeatureCache('cache', dtype='bfloat16')
    """

    def __init__(self, folder: str | Path, *, dtype: str = "float32", keep_every_s: float = 60.0) -> None:
        super().__init__(IMAGES, folder, argument="cache", lock=".recording")
        check_choice("FeatureCache", "dtype", dtype, DTYPES)
        self.folder = Path(folder).expanduser().absolute()
        self.dtype, self.keep_every_s, self.found = dtype, keep_every_s, ""

    def make_recorder(self, trainer: pl.Trainer, module: Any, datamodule: Any) -> FeatureRecorder:
        """Check the settings before the first batch, and find what is already recorded."""
        if isinstance(module, RecordedModule):
            raise InvalidArgumentError(
                "FeatureCache: this run reads recorded features; remove FeatureCache, or run the network itself"
            )
        if trainer.limit_predict_batches != 1.0:
            raise InvalidArgumentError(
                f"FeatureCache: limit_predict_batches={trainer.limit_predict_batches} of the Trainer would record only"
                " a part of each data set; omit it. For a trial, pass OODDataModule(..., max_images=...)"
            )
        others: list[Any] = [callback for callback in trainer.callbacks if callback is not self]  # type: ignore[attr-defined]
        is_beside = any(isinstance(other, OODDetection) for other in others)
        if not is_beside and any(isinstance(other, FeatureCache) for other in others):
            raise InvalidArgumentError("FeatureCache: expected one FeatureCache callback, but the Trainer has several")
        check_strategy("FeatureCache", trainer.strategy)
        clock = Clock(trainer.strategy.root_device)
        probed = probe(trainer, module, datamodule)  # before the fingerprint, which needs the head and such images
        how = {
            "backbone": module.name,
            "fingerprint": module.fingerprint_with(datamodule.transform_for(module)),
            "dtype": self.dtype,
            "precision": str(trainer.precision),
            "decoder": trainer.strategy.root_device.type
            if datamodule.decode_on_device
            else workers_decoder(datamodule.decode),
        }
        self.lock_folder(trainer)
        recording = Recording(
            self.folder,
            how=how,
            cut=cut_of(trainer, datamodule),
            process=trainer.global_rank,
            every_s=self.keep_every_s,
            on_error=datamodule.on_error,
        )
        parts = (module, datamodule, recording, probed)
        recorder = FeatureRecorder(*parts) if is_beside else FeaturePass(*parts, trainer, clock)
        self.found = recorder.found
        return recorder

    def __repr__(self) -> str:
        """Name of the folder."""
        return f"FeatureCache({self.folder.name!r}, dtype={self.dtype!r})"
