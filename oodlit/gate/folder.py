"""Folders that a gate is loaded from: that of a run, and its own, which needs no other file."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from oodlit._version import __version__
from oodlit.base.atomic import fsync, temporary_folder, write_bytes, write_text
from oodlit.base.fractions import ShareLike
from oodlit.detectors import Detector, FitOrigin, load, save
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.gate.threshold import Threshold, threshold_of
from oodlit.results import Results
from oodlit.results.files.storage import UNFINISHED
from oodlit.roles import NAMES_OF_LABELS

FORMAT = 1
GATE, WEIGHTS, FITTED = "gate.json", "weights.safetensors", "fitted"
_ENDS = ("value", "cut", "ci_low", "ci_high")
_BACKBONE = ("name", "fingerprint", "width", "num_classes", "transform", "transform_recipe", "arguments", "input_shape")


@dataclass(frozen=True)
class GateRecord:
    """What a gate knows beside its network and its detector.

    Args:
        detector: Name of the detector.
        threshold: From which score on it accepts.
        class_names: Names of the classes by index; empty where the run knows none, or as many as the network has.
        backbone: What `run.json` says of the network, with the configuration of the run.
        precision: Lightning's name of the precision of the run.
    """

    detector: str
    threshold: Threshold
    class_names: tuple[str, ...]
    backbone: dict[str, Any]
    precision: str

    def made_by(self, path: str) -> "GateRecord":
        """The same gate, whose network is made by what lies at a dotted path."""
        return replace(self, backbone={**self.backbone, "arguments": {**self.backbone["arguments"], "backbone": path}})


Loaded = tuple[Path | None, Detector, GateRecord]
"""File of weights, detector, record."""


def load_run(
    folder: Path, detector: str | None, *, tpr: ShareLike | None, fpr: ShareLike | None, dataset: str | None
) -> Loaded:
    """Detector and threshold of a run."""
    results = Results.load(folder)
    if missing := [name for name in _BACKBONE if name not in results.run.get("backbone", {})]:
        raise DataError(
            f"{folder}: its run.json does not say {missing[0]!r} of the backbone, as a run of this version does;"
            " evaluate again (the fit can be kept: fitted=...)"
        )
    if results.run["backbone"]["arguments"] is None:
        raise InvalidArgumentError(
            f"{folder}: this run read recorded outputs and saw no image, so that no gate can be made of it; evaluate"
            " once with the network (its fit serves: fitted=...)"
        )
    name = _chosen(detector, results.detectors, folder)
    places = [Path(results.run.get("fitted_from") or folder / "fitted"), folder / UNFINISHED / "fitted"]
    fitted, origin = load(next((place for place in places if place.is_dir()), places[0]))
    if name not in fitted:
        raise UnknownNameError.of(f"fitted detector in {places[0]}", name, fitted)
    known = results.run["backbone"]
    backbone = {entry: known[entry] for entry in _BACKBONE}
    backbone |= {"config": results.run.get("config"), "one_shape": known.get("one_shape", False)}
    origin.check(FitOrigin(backbone["fingerprint"]), source=f"the fit in {folder}")
    threshold = threshold_of(results, name, tpr=tpr, fpr=fpr, dataset=dataset)
    classes = _class_names(results, backbone["num_classes"])
    _warn_of_other_pixels(results.run.get("acceleration", {}), name, folder)
    return None, fitted[name], GateRecord(name, threshold, classes, backbone, results.run["trainer"]["precision"])


def _warn_of_other_pixels(acceleration: Mapping[str, Any], detector: str, folder: Path) -> None:
    """A gate reads pictures on the CPU: the threshold may be that of images that a device decoded to other pixels."""
    if (pixels := acceleration.get("deviation_of_pixels", {}).get("largest", 0.0)) == 0.0:
        return
    scores = acceleration.get("deviation_of_scores", {}).get(detector)
    by = "" if scores is None else f", and scores of {detector!r} by {scores:.2g} of their spread"
    warnings.warn(
        f"{folder}: the JPEGs of this run were decoded on its device, a gate decodes on the CPU; in the run's first"
        f" images pixels differ by up to {pixels:.2g} of 255{by}; for the threshold of the gate's own reading, evaluate"
        " without decode_on_device",
        stacklevel=4,
    )


def load_gate(folder: Path, detector: str | None, *, asked: Sequence[object]) -> Loaded | None:
    """What `save_gate` wrote; None if the folder is that of a run.

    Args:
        folder: Where it lies.
        detector: Its name, or None.
        asked: What is asked of a threshold; a saved gate has one.
    """
    if not (folder / GATE).is_file():
        return None
    try:
        entries = json.loads((folder / GATE).read_text(encoding="utf-8"))
        if entries["format"] != FORMAT:
            raise InvalidArgumentError(
                f"{folder}: format {entries['format']} was written by oodlit {entries['oodlit']}; this version reads"
                f" format {FORMAT} - save the gate again"
            )
        ends = {name: float(entries["threshold"][name]) for name in _ENDS}
        threshold = Threshold(**{**entries["threshold"], **ends})
        names = tuple(entries["class_names"])
        record = GateRecord(entries["detector"], threshold, names, entries["backbone"], entries["precision"])
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise DataError(f"{folder / GATE}: not the description of a gate ({type(error).__name__}: {error})") from error
    if any(value is not None for value in asked):
        raise InvalidArgumentError(
            f"{folder}: a saved gate has its threshold ({threshold}); load the folder of the run for another"
        )
    fitted, _ = load(folder / FITTED)
    return folder / WEIGHTS, fitted[_chosen(detector, (record.detector,), folder)], record


def save_gate(folder: Path, record: GateRecord, network: nn.Module, detector: Detector, origin: FitOrigin) -> None:
    """Write a folder that appears with all of its files, or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgumentError(f"{folder}: it is not empty; name a new folder, a gate never replaces another")
    weights = {name.replace("_orig_mod.", ""): value for name, value in network.state_dict().items()}
    if odd := [name for name, value in weights.items() if not isinstance(value, Tensor)]:
        raise InvalidArgumentError(f"the weights of {record.backbone['name']} cannot be saved: {odd[0]!r} is no tensor")
    threshold = asdict(record.threshold) | {name: repr(getattr(record.threshold, name)) for name in _ENDS}
    entries = asdict(record) | {"threshold": threshold, "format": FORMAT, "oodlit": __version__}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder) as made:
        copies = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
        write_bytes(made / WEIGHTS, to_bytes(copies))
        save({record.detector: detector}, made / FITTED, origin)
        write_text(made / GATE, json.dumps(entries, indent=1))
        fsync(made)
        made.rename(folder)  # takes the place of an empty folder, too
    fsync(folder.parent)


def _chosen(detector: str | None, known: Sequence[str], folder: Path) -> str:
    if detector is None and len(known) == 1:
        return known[0]
    if detector is None:
        raise InvalidArgumentError(f"Gate: which detector of {folder}? Give detector=, one of {', '.join(known)}")
    if detector not in known:
        raise UnknownNameError.of(f"detector in {folder}", detector, known)
    return detector


def _class_names(results: Results, num_classes: int) -> tuple[str, ...]:
    """Names of the labels, if there is one for each logit."""
    lists = (info.class_names for info in results.datasets if info.role in NAMES_OF_LABELS)
    return next((tuple(names) for names in lists if names and len(names) == num_classes), ())
