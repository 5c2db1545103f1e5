"""What is checked before the first batch: packages, data, and which detectors apply to this backbone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytorch_lightning as pl
from torch import Tensor

from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.loader import StreamLoader
from oodlit.detectors import BackboneFacts, Detector
from oodlit.detectors.contract.fitting import estimate_bytes
from oodlit.detectors.statistics import Statistics
from oodlit.errors import DataError, InvalidArgumentError, RequirementError
from oodlit.module import OODModule
from oodlit.roles import Role

__all__ = [
    "Applicable",
    "check_alone",
    "check_memory",
    "check_packages",
    "check_train_size",
    "predictions_bytes",
    "select_detectors",
    "take_facts",
]

PROBE_IMAGES = 2


@dataclass(frozen=True)
class Applicable:
    """Detectors that apply to a backbone, and why the others do not."""

    detectors: dict[str, Detector]
    not_applicable: dict[str, str]


def check_packages(
    owner: str, trainer: object, module: object, datamodule: object
) -> tuple[pl.Trainer, OODModule, OODDataModule]:
    """The three parts of a run, or an error that names what is wrong with them.

    Raises:
        InvalidArgumentError: A part is of another class, or of a Lightning package other than pytorch_lightning.
    """
    for part, kind, what in (
        (trainer, pl.Trainer, "the Trainer"),
        (module, pl.LightningModule, "the module"),
        (datamodule, pl.LightningDataModule, "the data module"),
    ):
        package = type(part).__module__.partition(".")[0]
        if not isinstance(part, kind) and _is_named(part, kind.__name__):
            raise InvalidArgumentError(
                f"{owner} is made for pytorch_lightning, but {what} comes from the package {package!r};"
                " the two do not mix - import pytorch_lightning as pl and build all parts from it"
            )
    if not isinstance(trainer, pl.Trainer):
        raise InvalidArgumentError(f"{owner}: the trainer is a {type(trainer).__name__}; pl.Trainer is needed")
    if not isinstance(module, OODModule):
        raise InvalidArgumentError(
            f"{owner} runs on an OODModule, not on a {type(module).__name__}; wrap the network: OODModule(network)"
        )
    if not isinstance(datamodule, OODDataModule):
        given = "no data module" if datamodule is None else f"a {type(datamodule).__name__}"
        raise InvalidArgumentError(
            f"{owner} needs the roles of the data, but got {given};"
            " call trainer.predict(module, datamodule) with an OODDataModule"
        )
    return trainer, module, datamodule


def take_facts(module: OODModule, datamodule: OODDataModule) -> tuple[BackboneFacts, Tensor]:
    """Facts about the backbone from the first ID images: also shows early that data and transform work together.

    Returns:
        The facts, and the images.

    Raises:
        DataError: No ID image can be used.
        InvalidArgumentError: The network cannot take the images.
    """
    stream = next(s for s in datamodule.streams if s.role is Role.ID)
    loader = StreamLoader(
        stream,
        datamodule.transform,
        batch_size=PROBE_IMAGES,
        on_error=datamodule.on_error,
        decode=datamodule.decode,
    )
    skipped: list[tuple[str, str]] = []
    for batch in loader:
        if batch["key"]:
            break
        skipped += batch["skipped"]
    else:
        raise DataError(
            f"stream {stream.name!r}: none of its {len(stream)} images can be used,"
            f" first {skipped[0][0]}: {skipped[0][1]}"
        )
    num_train = sum(len(s) for s in datamodule.streams if s.role is Role.TRAIN)
    return module.probe(batch["image"], num_train=num_train), batch["image"]


def select_detectors(detectors: Mapping[str, Detector], facts: BackboneFacts, *, strict: bool) -> Applicable:
    """Detectors that apply; the others with their reason.

    Raises:
        RequirementError: One does not apply and `strict` is set, or none applies.
    """
    reasons = {name: reason for name, d in detectors.items() if (reason := d.why_not(facts))}
    listing = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    if reasons and (strict or len(reasons) == len(detectors)):
        without = "leave them out, or pass strict=False (on the command line: without --strict)"
        way_out = without if strict else "choose others"
        raise RequirementError(f"{len(reasons)} of {len(detectors)} detectors do not apply ({listing}); {way_out}")
    return Applicable({n: d for n, d in detectors.items() if n not in reasons}, reasons)


def check_train_size(detectors: Sequence[Detector], num_train: int) -> None:
    """Refuse, before the pass over the training images, what they are too few for.

    Raises:
        RequirementError: Names the detector and both numbers.
    """
    for detector in (part for d in detectors for part in d.modules() if isinstance(part, Detector)):
        if detector.min_train > num_train:
            raise RequirementError(
                f"{detector!r} needs at least {detector.min_train} training images, the train stream has {num_train};"
                " use smaller settings, or more images"
            )


def check_memory(statistics: Statistics, facts: BackboneFacts, *, processes: int = 1) -> int:
    """Bytes that the training statistics will take in each process.

    Args:
        statistics: What is accumulated; in the end every process holds the union.
        facts: Width, classes and number of training images.
        processes: Processes of the run on this machine; they share its memory.

    Raises:
        RequirementError: All processes together need more than this machine has.
    """
    needed, available = estimate_bytes(statistics, facts), _available_bytes()
    if available is not None and needed * processes > available:
        sizes = ", ".join(
            f"{type(s).__name__} {estimate_bytes(Statistics([s]), facts) / 1e9:.2f} GB" for s in statistics.values()
        )
        shared = f" in each of {processes} processes on this machine" if processes > 1 else ""
        fewer = ", or use fewer processes" if processes > 1 else ""
        raise RequirementError(
            f"the training statistics need {needed / 1e9:.2f} GB{shared} ({sizes})"
            f" and {available / 1e9:.2f} GB are free; give KNN a bank_size, or leave the detector out{fewer}"
        )
    return needed


def check_alone(owner: pl.Callback, trainer: pl.Trainer) -> None:
    """Refuse a second callback of the same kind: both would set what the module gives and which streams are read.

    Raises:
        InvalidArgumentError: There are several.
    """
    others = [callback for callback in trainer.callbacks if isinstance(callback, type(owner))]  # type: ignore[attr-defined]
    if len(others) > 1:
        name = type(owner).__name__
        raise InvalidArgumentError(
            f"the Trainer has {len(others)} {name} callbacks, one is possible; give all detectors to one {name},"
            " and use results.recompute(...) for other settings of the metrics"
        )


def predictions_bytes(datamodule: OODDataModule, facts: BackboneFacts, *, processes: int) -> int:
    """Memory that `trainer.predict(return_predictions=True)` fills with logits and features in each process."""
    images = sum(len(stream) for stream in datamodule.active_streams)
    return -(-images // processes) * 4 * (facts.width + facts.num_classes)


def _available_bytes() -> int | None:
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _is_named(part: object, name: str) -> bool:
    return any(base.__name__ == name for base in type(part).__mro__)
