"""Load a gate from the folder of a run or of a saved gate, and save a gate."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from oodlit._version import __version__
from oodlit.backbones.loading import timm_config
from oodlit.base.atomic import fsync, move, temporary_folder, write_bytes, write_text
from oodlit.base.errors import DataError, FingerprintError, InvalidArgumentError, UnknownNameError
from oodlit.base.fractions import ShareLike
from oodlit.base.json_files import as_type, checksums_of, read_json, to_plain
from oodlit.base.roles import NAMES_OF_LABELS
from oodlit.base.text.resolve import resolve
from oodlit.base.text.warn import warn
from oodlit.detectors import Detector, FitOrigin, load, save
from oodlit.detectors.contract.saving import fit_digest
from oodlit.gate.calibration import Calibration, Decision, calibrate
from oodlit.gate.gate_record import FORMAT, GateBackbone, GateRecord
from oodlit.gate.threshold import threshold_of
from oodlit.module import OODModule
from oodlit.results import Results
from oodlit.results.display_names import display_names
from oodlit.results.files.storage import RUN, TABLE, UNFINISHED
from oodlit.results.names import some
from oodlit.results.record_parts import AccelerationRecord

GATE, WEIGHTS, FITTED, CONFIG = "gate.json", "weights.safetensors", "fitted", "config.json"
CALIBRATION = "calibration.safetensors"
_ENDS = ("value", "cut", "ci_low", "ci_high")


class Loaded(NamedTuple):
    """A detector with its record.

    Args:
        detector: The detector.
        record: Threshold, class names and description of the network.
        calibration: Calibration of p-values; None in gates of earlier versions.
        folder: Folder of a saved gate; None for a run.
        started_in: Folder in which the run was started, for relative paths; None for a saved gate.
    """

    detector: Detector
    record: GateRecord
    calibration: Calibration | None
    folder: Path | None = None
    started_in: Path | None = None


def load_run(
    folder: Path,
    detector: str | None,
    *,
    tpr: ShareLike | None,
    fpr: ShareLike | None,
    dataset: str | None,
    alpha: ShareLike | None,
    calibration: ShareLike | None,
    per_class: bool,
) -> Loaded:
    """Load detector, threshold and calibration of a run."""
    results = Results.load(folder)
    known = results.run.backbone
    if not known.input_shape:
        raise DataError(
            f"{folder}: run.json is missing the input_shape of the backbone, so a gate cannot be loaded from this run;"
            " evaluate again (pass fitted=FOLDER, or --fitted FOLDER, to reuse the fit)"
        )
    if known.arguments is None:
        raise InvalidArgumentError(
            f"{folder}: this run read recorded features or logits instead of images, so a gate cannot be loaded from"
            " it; evaluate again with the network (pass fitted=FOLDER, or --fitted FOLDER, to reuse the fit)"
        )
    name = _chosen(detector, display_names(results.run), folder)
    started_in = (folder / results.run.started_in).resolve() if results.run.started_in else Path()
    recorded = results.run.fitted_from
    places = [Path(recorded), started_in / recorded] if recorded else [folder / FITTED]
    place = next((place for place in [*places, folder / UNFINISHED / FITTED] if place.is_dir()), places[0])
    again = "evaluate again (pass fitted=FOLDER, or --fitted FOLDER, to use the current fit)"
    fitted, origin = _load_fit(place, results.run.fit_digest, again)
    UnknownNameError.check(f"fitted detector in {place}", name, fitted)
    copied: dict[str, Any] = {name: getattr(known, name, None) for name in GateBackbone.__struct_fields__}
    copied |= {"config": results.run.config or None, "one_shape": bool(known.one_shape)}
    backbone = GateBackbone(**copied)
    origin.check(FitOrigin(known.fingerprint), source=f"the fit in {folder}")
    if alpha is not None and (tpr, fpr, dataset) != (None, None, None):
        raise InvalidArgumentError(
            f"Gate: alpha cannot be combined with tpr, fpr or dataset, got alpha={alpha}, tpr={tpr}, fpr={fpr},"
            f" dataset={dataset!r}"
        )
    how: Any = {"per_class": per_class, "num_classes": known.num_classes}
    calibrated, threshold = calibrate(results, name, alpha=alpha, calibration=calibration, **how)
    threshold = threshold or threshold_of(results, name, tpr=tpr, fpr=fpr, dataset=dataset)
    classes = _class_names(results, known.num_classes)
    _warn_of_other_pixels(results.run.acceleration, name, folder)
    record = GateRecord(name, threshold, classes, backbone, results.run.trainer.precision, results.run.data.decoder)
    _warn_of_few_images(record, calibrated)
    return Loaded(fitted[name], record, calibrated, started_in=started_in)


def _warn_of_few_images(record: GateRecord, calibration: Calibration) -> None:
    """Warn about classes without p-values."""
    if missing := Decision(record.threshold, calibration, record.backbone.num_classes).no_p_value:
        names = record.class_names
        reasons = [f"{names[index] if names else index} ({reason})" for index, reason in missing.items()]
        warn(
            f"Gate: no p-values for {len(missing)} of {record.backbone.num_classes} classes: {some(reasons, 3)}. Images"
            " predicted as these classes are compared with the threshold for all classes together"
        )


def _load_fit(folder: Path, digest: str, otherwise: str) -> tuple[dict[str, Detector], FitOrigin]:
    """Load a fit, and refuse it if the threshold belongs to another fit; records of older versions have no digest."""
    fitted, origin = load(folder)
    if digest and fit_digest(folder) != digest:
        raise FingerprintError(
            f"{folder}: the fit has changed since the threshold was computed, so the threshold does not apply. Restore"
            f" the earlier fit, or {otherwise}"
        )
    return fitted, origin


def _warn_of_other_pixels(acceleration: AccelerationRecord, detector: str, folder: Path) -> None:
    """Warn if the run decoded images on its device: a gate decodes on the CPU, to slightly different pixels."""
    pixels = acceleration.deviation_of_pixels
    if pixels is None or not pixels.largest:
        return
    scores = acceleration.deviation_of_scores.get(detector)
    by = "" if scores is None else f", and scores of {detector!r} by {scores:.2g} standard deviations"
    warn(
        f"{folder}: this run decoded JPEGs on its device, but a gate decodes them on the CPU. For the first"
        f" images, the pixels of both decoders differ by up to {pixels.largest:.2g} of 255{by}. For a threshold that"
        " fits the gate, evaluate without decode_on_device"
    )


def load_gate(folder: Path, detector: str | None, *, asked: Sequence[object]) -> Loaded | None:
    """Load a folder that `save_gate` wrote; None if it is the folder of a run.

    Args:
        folder: The folder.
        detector: Name of the detector, or None.
        asked: Settings of a threshold; all must be None or False because a saved gate has its threshold.
    """
    if not (folder / GATE).is_file():
        if not folder.is_dir() or any((folder / name).exists() for name in (RUN, TABLE, UNFINISHED)):
            return None
        raise DataError(
            f"{folder}: expected the folder of a run, with {RUN}, or of a saved gate, with {GATE}; found"
            f" {some(sorted(path.name for path in folder.iterdir()), 3) or 'no files'}"
        )
    entries = read_json(folder / GATE, dict)
    if entries.get("format") != FORMAT:
        raise InvalidArgumentError(
            f"{folder}: expected a gate in format {FORMAT}, got format {entries.get('format')!r} of oodlit"
            f" {entries.get('oodlit')}; save the gate again"
        )
    as_written = _checksums(entries)
    if isinstance(entries.get("threshold"), dict):  # JSON has no infinities, so these numbers are text
        entries["threshold"] |= {n: _number(v) for n, v in entries["threshold"].items() if n in _ENDS}
    record = as_type(entries, GateRecord, where=str(folder / GATE))
    if not record.threshold.is_consistent:
        raise DataError(
            f"{folder / GATE}: the values of the threshold contradict each other ({record.threshold}); save the gate"
            " again"
        )
    if any(value is not None and value is not False for value in asked):
        raise InvalidArgumentError(
            f"{folder}: a saved gate has a fixed threshold ({record.threshold.value:.6g}); omit tpr, fpr, dataset,"
            " alpha, calibration and per_class, or load the folder of the run to choose another threshold"
        )
    fitted, _ = _load_fit(folder / FITTED, record.fit, "load the folder of the run and save the gate again")
    UnknownNameError.check(f"fitted detector in {folder / FITTED}", record.detector, fitted)
    shown = fitted[record.detector].display_name if record.detector == fitted[record.detector].key() else ""
    name = _chosen(detector, {record.detector: shown or record.detector}, folder)
    known = entries.get("entry_checksums") or as_written  # gates of earlier versions have none
    if changed := sorted(name for name in as_written.keys() | known.keys() if as_written.get(name) != known.get(name)):
        raise DataError(
            f"{folder / GATE}: {', '.join(changed)} changed since the gate was saved; restore the file. To"
            " choose another threshold, load the folder of the run and save the gate again"
        )
    return Loaded(fitted[name], record, _load_calibration(folder, record), folder)


def _load_calibration(folder: Path, record: GateRecord) -> Calibration | None:
    if not record.calibration:
        return None
    file = folder / CALIBRATION
    content = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(content).hexdigest() != record.calibration:
        raise DataError(f"{file}: {'changed since the gate was saved' if content else 'missing'}; restore the file")
    return Calibration(**from_bytes(content))


def _checksums(entries: Mapping[str, Any]) -> dict[str, str]:
    """Checksums of the entries that decide about an image, except the network, which has a fingerprint."""
    names = ("detector", "class_names", "precision", "decoder", "fit", "calibration")
    threshold = entries.get("threshold")
    decisive = threshold.items() if isinstance(threshold, dict) else ()
    parts = {f"threshold.{name}": value for name, value in decisive if name not in ("ci_low", "ci_high")}
    return checksums_of(to_plain({name: entries[name] for name in names if name in entries} | parts))


def _number(text: object) -> object:
    try:
        return float(str(text))
    except ValueError:
        return text


def save_gate(
    folder: Path,
    record: GateRecord,
    module: OODModule,
    detector: Detector,
    calibration: Calibration | None,
    origin: FitOrigin,
) -> None:
    """Write a folder with all of its files, or nothing."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgumentError(f"{folder} exists and is not an empty folder; choose a new folder")
    if not (isfinite(record.threshold.value) and isfinite(record.threshold.cut)):
        raise InvalidArgumentError(
            f"Gate.save: expected a finite threshold, got {record.threshold.value}; choose another detector or tpr"
        )
    weights = {name.replace("_orig_mod.", ""): value for name, value in module.network.state_dict().items()}
    if odd := [name for name, value in weights.items() if not isinstance(value, Tensor)]:
        raise InvalidArgumentError(
            f"the weights of {record.backbone.name} cannot be saved: expected tensors in its state_dict, got"
            f" {type(weights[odd[0]]).__name__} for {odd[0]!r}; remove it from the state_dict"
        )
    backbone = structs.replace(record.backbone, config=record.backbone.config_of_network)
    entries: dict[str, Any] = msgspec.to_builtins(structs.replace(record, backbone=backbone))
    entries["threshold"] |= {name: repr(getattr(record.threshold, name)) for name in _ENDS}
    entries |= {"format": FORMAT, "oodlit": __version__}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder) as made:
        copies = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
        write_bytes(made / WEIGHTS, to_bytes(copies))
        own = (module.arguments or {}).get("backbone") or record.backbone.arguments.get("backbone")
        if config := timm_config(str(own)):
            write_bytes(made / CONFIG, config)
        save({record.detector: detector}, made / FITTED, origin)
        content = b"" if calibration is None else to_bytes(calibration.state_dict())
        if content:
            write_bytes(made / CALIBRATION, content)
        entries["calibration"] = hashlib.sha256(content).hexdigest() if content else ""
        entries["fit"] = fit_digest(made / FITTED)
        entries["entry_checksums"] = _checksums(entries)
        write_text(made / GATE, json.dumps(entries, indent=1))
        fsync(made)
        move(made, folder, last=GATE)  # also replaces an empty folder
    fsync(folder.parent)


def _chosen(detector: str | None, known: Mapping[str, str], folder: Path) -> str:
    if detector is None and len(known) == 1:
        return next(iter(known))
    if detector is None:
        raise InvalidArgumentError(f"Gate: {folder} has several detectors; pass one of {', '.join(known)} as detector")
    return resolve(f"detector in {folder}", detector, known)


def _class_names(results: Results, num_classes: int) -> tuple[str, ...]:
    """Return the names of the labels if there is one per logit."""
    lists = (info.class_names for info in results.datasets if info.role in NAMES_OF_LABELS)
    return next((tuple(names) for names in lists if names and len(names) == num_classes), ())
