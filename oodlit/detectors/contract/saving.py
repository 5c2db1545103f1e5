"""Saving and loading fitted detectors: safetensors and JSON, no pickle.

A folder holds `detectors.json` (version, settings, what the fit belongs to) and `detectors.safetensors` (the buffers).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from oodlit._version import __version__
from oodlit.base.atomic import write_bytes
from oodlit.base.fingerprint import check_same
from oodlit.detectors.contract.class_paths import from_config, public_path
from oodlit.detectors.contract.detector import Detector
from oodlit.errors import FingerprintError, InvalidArgumentError, NotFittedError, OodlitError

FORMAT = 3
"""Version of the file format; a new number means that older files can no longer be read."""


@dataclass(frozen=True)
class FitOrigin:
    """What a fit belongs to.

    Args:
        fingerprint: Of the backbone's weights, head and transform; see `oodlit.base.fingerprint`.
        width: Number of features.
        num_classes: Number of logits.
        num_train: Number of training images.
    """

    fingerprint: str = ""
    width: int = 0
    num_classes: int = 0
    num_train: int = 0

    def check(self, other: "FitOrigin | Fingerprinted", *, source: str = "the saved fit") -> None:
        """Refuse a backbone that the fit does not belong to.

        Args:
            other: What is known of the backbone, or the `OODModule` itself.
            source: How the message calls the fit.

        Raises:
            FingerprintError: Fingerprint, width or number of classes differ.

        Example:
            >>> FitOrigin("weights=a transform=b").check(FitOrigin("weights=a"))
        """
        for name in ("width", "num_classes"):
            mine, theirs = getattr(self, name), getattr(other, name, 0)
            if mine and theirs and mine != theirs:
                raise FingerprintError(
                    f"{source} was fitted on a backbone with {name} {mine}, this one has {theirs};"
                    " fit again, or load the backbone and transform that the fit was made with"
                )
        check_same(self.fingerprint, other.fingerprint, source=source)


@runtime_checkable
class Fingerprinted(Protocol):
    """What a fit may belong to, such as an `OODModule`."""

    @property
    def fingerprint(self) -> str:
        """Tells it from others."""


def save(detectors: Mapping[str, Detector], directory: str | Path, origin: FitOrigin | None = None) -> None:
    """Write fitted detectors to a folder; either everything or nothing is written.

    Args:
        detectors: By name.
        directory: Made if missing; its two files are replaced.
        origin: What the fit belongs to; checked when the detectors are used again.

    Raises:
        NotFittedError: A detector is not fitted.

    Example:
        >>> import tempfile
        >>> from oodlit.detectors import Energy
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save({"energy": Energy(temperature=2.0)}, folder)
        ...     load(folder)[0]
        {'energy': Energy(temperature=2.0)}
    """
    unfitted = [name for name, detector in detectors.items() if not detector.is_fitted]
    if unfitted:
        raise NotFittedError(f"cannot save unfitted detectors: {', '.join(unfitted)}")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{i}.{key}": value.detach().to("cpu", copy=True).contiguous()
        for i, detector in enumerate(detectors.values())
        for key, value in detector.named_buffers()
    }
    description = {
        "format": FORMAT,
        "oodlit": __version__,
        "origin": asdict(origin or FitOrigin()),
        "checksum": _checksum(tensors),
        "detectors": [
            {
                "name": name,
                "notes": d.notes,
                "shapes": dict(d._shapes),
                "buffers": sorted(n for n, _ in d.named_buffers()),
                **detector_to_config(d),
            }
            for name, d in detectors.items()
        ],
    }
    # The description goes into the tensor file as well: two files of different fits are noticed when loading.
    text = json.dumps(description, indent=1, sort_keys=True)
    write_bytes(folder / "detectors.safetensors", to_bytes(tensors, metadata={"description": text}))
    write_bytes(folder / "detectors.json", text.encode())


def load(directory: str | Path) -> tuple[dict[str, Detector], FitOrigin]:
    """Read what `save` wrote.

    Returns:
        Detectors by name, and what the fit belongs to.

    Raises:
        InvalidArgumentError: A file is missing, damaged, of another format, or the two files do not belong together.
    """
    folder = Path(directory)
    text_file, tensor_file = folder / "detectors.json", folder / "detectors.safetensors"
    for file in (text_file, tensor_file):
        if not file.is_file():
            raise InvalidArgumentError(f"{folder} holds no saved detectors: {file.name} is missing")
    text = text_file.read_text(encoding="utf-8")
    try:
        metadata = _metadata(tensor_file)
        if metadata.get("description") != text:
            raise InvalidArgumentError(f"{folder}: {text_file.name} and {tensor_file.name} belong to different fits")
        description = json.loads(text)
        if description["format"] != FORMAT:
            raise InvalidArgumentError(
                f"{folder}: format {description['format']} was written by oodlit {description['oodlit']};"
                f" this version reads format {FORMAT} - fit again"
            )
        origin = FitOrigin(**description["origin"])
        tensors = load_file(tensor_file)
        if description["checksum"] != _checksum(tensors):
            raise InvalidArgumentError(
                f"{folder}: the saved detectors are damaged (the checksum of the tensors differs); fit again"
            )
        detectors = _detectors(description["detectors"], tensors)
        for detector in detectors.values():
            detector.fitted_on = origin.fingerprint
        return detectors, origin  # noqa: TRY300
    except OodlitError:
        raise
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"{folder}: the saved detectors are damaged ({type(error).__name__}: {error}); fit again"
        ) from error


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """A digest of the names and bytes of all tensors: without it, a flipped bit in the file would go unnoticed."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        digest.update(name.encode())
        if value.numel():
            digest.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _detectors(entries: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> dict[str, Detector]:
    """Detectors by name, from their descriptions and from buffers named `number.path`."""
    detectors: dict[str, Detector] = {}
    for i, entry in enumerate(entries):
        detector = from_config(entry, Detector)
        for key, value in tensors.items():
            number, _, path = key.partition(".")
            if int(number) == i:
                owner, _, buffer = path.rpartition(".")
                # Copied: in the file tensors lie on odd addresses, from which products may be rounded otherwise.
                detector.get_submodule(owner).register_buffer(buffer, value.clone())
        missing = sorted(set(entry.get("buffers", ())) - {n for n, _ in detector.named_buffers()})
        if missing:
            raise KeyError(f"{entry['name']}: no tensor {missing[0]}")
        for part in detector.modules():
            if isinstance(part, Detector):
                part._fitted = True
        detector.notes = tuple(entry.get("notes", ()))
        detector._shapes = dict(entry.get("shapes", {}))
        detectors[entry["name"]] = detector
    return detectors


def detector_to_config(detector: Detector) -> dict[str, Any]:
    """Class path and settings of a detector, as plain JSON values.

    Example:
        >>> from oodlit.detectors import Energy
        >>> detector_to_config(Energy())
        {'class_path': 'oodlit.detectors.Energy', 'init_args': {'temperature': 1.0}}
    """
    arguments = {n: detector_to_config(v) if isinstance(v, Detector) else v for n, v in detector.settings.items()}
    return {"class_path": public_path(type(detector)), "init_args": arguments}


def _metadata(file: Path) -> dict[str, str]:
    from safetensors import safe_open  # noqa: PLC0415  # only the file's header is read here

    with safe_open(file, framework="pt") as opened:
        return opened.metadata() or {}
